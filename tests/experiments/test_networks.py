"""Networks in experiments: each is measured once, and then simulated with what it costs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from nnasync.errors import ExperimentError
from nnasync.experiments import (
    ClosedLoop,
    Delays,
    Experiment,
    Network,
    Poisson,
    Span,
    Stream,
    read_experiment,
    run,
)
from nnasync.experiments import networks as module
from nnasync.experiments.networks import (
    Company,
    _times_slower,
    measured,
    measured_company,
    with_measured_networks,
)

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


async def company(networks: Sequence[Network], cores: int) -> Company:
    """Each is half as slow again beside any."""
    models = [network.model for network in networks]
    pairs = [(one, other) for one in models for other in models]
    return Company(dict.fromkeys(pairs, 1.5), Delays())


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
    monkeypatch.setattr(module, "measured_company", company)
    sweep = {"cores": [1, 2], "load": [0.2, 0.4]}
    points, busy = await with_measured_networks(experiment("net.tflite", sweep=sweep).points())
    assert asked == [("net.tflite", 1), ("net.tflite", 2)]
    costs = [point.experiment.streams[0].cost for point in points]
    assert costs == [Network("net.tflite", (2.0,), 0.1, beside={"words": 1.5})] * 4
    assert busy == {1: Delays(), 2: Delays()}


async def test_networks_that_say_what_they_cost_are_not_measured() -> None:
    stream = Stream(name="words", arrivals=Poisson(100), cost=Network("none.tflite", (1.0,)))
    points = Experiment(streams=(stream,), sweep={"load": [0.5]}).points()
    assert await with_measured_networks(points) == (points, {})


async def test_a_load_without_open_arrivals_is_told_after_measuring(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def told(model: str, cores: int) -> Network:
        return Network(model, (2.0,))

    monkeypatch.setattr(module, "measured", told)
    monkeypatch.setattr(module, "measured_company", company)
    closed = Stream(name="words", arrivals=ClosedLoop(1, 5.0), cost=Network(WORDS))
    broken = experiment(streams=(closed,), sweep={}, load=0.5)
    with pytest.raises(ExperimentError, match="no stream has open arrivals"):
        await with_measured_networks(broken.points())


async def test_what_networks_do_to_each_other_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BESIDE_NS", 400_000_000)
    words = Network(WORDS, (0.1,))
    found = await measured_company([words], 2)
    assert list(found.slower) == [(WORDS, WORDS)]
    assert found.slower[WORDS, WORDS] >= 1
    assert max(found.delays.heard_ns) > 0


def test_how_much_slower_runs_are_is_told_without_the_longest() -> None:
    spans = [Span(0, 0, number, 0, 20) for number in range(99)] + [Span(0, 0, 99, 0, 10**9)]
    assert _times_slower(spans, 10.0) == 2.0
    assert _times_slower(spans, 40.0) == 1.0
    assert _times_slower([], 40.0) == 1.0


async def test_a_model_that_is_not_there() -> None:
    with pytest.raises(FileNotFoundError):
        await measured("nothing.nnm", 1)


@pytest.mark.parametrize("name", ["simulation", "simulation_networks"])
async def test_what_measures_the_simulation_is_read(name: str) -> None:
    found = read_experiment(ROOT / "benchmarks" / f"{name}.toml")
    loads = {point.values["load"] for point in found.points()}
    assert min(loads, key=float) == 0.3
    assert found.cores == 2
