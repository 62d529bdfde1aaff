"""Networks in experiments: each is measured once, and then simulated with what it costs."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from nnasync.errors import ExperimentError
from nnasync.experiments import (
    ClosedLoop,
    Experiment,
    Network,
    Poisson,
    Stream,
    read_experiment,
    run,
)
from nnasync.experiments import networks as module
from nnasync.experiments.networks import measured, with_measured_networks

ROOT = Path(__file__).resolve().parents[2]
WORDS = str(ROOT / "nnasync" / "cli" / "demo_data" / "words.nnm")

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.one_loop("what is measured is the same on all of them"),
]


def experiment(model: str = WORDS, **changes: object) -> Experiment:
    stream = Stream(name="words", arrivals=Poisson(100), cost=Network(model))
    whole = Experiment(streams=(stream,), duration_s=0.5, sweep={"load": [0.2, 0.4]})
    return replace(whole, **changes)


@pytest.mark.slow
async def test_a_network_is_measured_and_simulated() -> None:
    results = await run(experiment(overheads="none"))
    low, high = (each.result for each in results.runs)
    assert 0 < low.streams[0].submitted < high.streams[0].submitted
    assert low.busy_ns / low.duration_ns == pytest.approx(0.2, rel=0.5)


async def test_each_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    async def told(model: str, cores: int) -> Network:
        asked.append((model, cores))
        return Network(model, (2.0,), 0.1)

    monkeypatch.setattr(module, "measured", told)
    sweep = {"cores": [1, 2], "load": [0.2, 0.4]}
    points = await with_measured_networks(experiment("net.tflite", sweep=sweep).points())
    assert asked == [("net.tflite", 1), ("net.tflite", 2)]
    assert {point.experiment.streams[0].cost for point in points} == {
        Network("net.tflite", (2.0,), 0.1)
    }


async def test_networks_that_say_what_they_cost_are_not_measured() -> None:
    stream = Stream(name="words", arrivals=Poisson(100), cost=Network("none.tflite", (1.0,)))
    points = Experiment(streams=(stream,), sweep={"load": [0.5]}).points()
    assert await with_measured_networks(points) == points


async def test_a_load_without_open_arrivals_is_told_after_measuring(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def told(model: str, cores: int) -> Network:
        return Network(model, (2.0,))

    monkeypatch.setattr(module, "measured", told)
    closed = Stream(name="words", arrivals=ClosedLoop(1, 5.0), cost=Network(WORDS))
    broken = experiment(streams=(closed,), sweep={}, load=0.5)
    with pytest.raises(ExperimentError, match="no stream has open arrivals"):
        await with_measured_networks(broken.points())


async def test_a_model_that_is_not_there() -> None:
    with pytest.raises(FileNotFoundError):
        await measured("nothing.nnm", 1)


@pytest.mark.parametrize("name", ["simulation", "simulation_networks"])
async def test_what_measures_the_simulation_is_read(name: str) -> None:
    found = read_experiment(ROOT / "benchmarks" / f"{name}.toml")
    loads = {point.values["load"] for point in found.points()}
    assert min(loads, key=float) == 0.3
    assert found.cores == 2
