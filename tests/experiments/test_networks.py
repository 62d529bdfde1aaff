"""Networks in experiments: each is measured once, and then simulated with what it costs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import pytest
from msgspec.structs import replace

from nnasync.errors import ExperimentError
from nnasync.experiments import (
    ClosedLoop,
    Experiment,
    Network,
    Periodic,
    Poisson,
    RunResult,
    RunTimes,
    Stream,
    Trace,
    read_experiment,
    run,
)
from nnasync.experiments import networks as module
from nnasync.experiments.arrivals import Arrivals
from nnasync.experiments.experiment import Point
from nnasync.experiments.measured_together import Kind, Mix
from nnasync.experiments.networks import MeasuredNetworks, measured

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


class Shared:
    """Stands for networks that are run together; each is half as slow again beside any."""

    made: ClassVar[list[Shared]] = []

    def __init__(self, networks: Mapping[Kind, Network], cores: int, mix: Mix) -> None:
        self._networks = networks
        self.mix = mix
        self.made.append(self)
        self.usual_ms = 2.0
        self.runs: tuple[RunResult, ...] = ()

    async def measure(self) -> None:
        """Nothing to do."""

    async def measure_more(self) -> None:
        """The networks turn out to be slower."""
        self.usual_ms += 1.0

    def networks(self) -> dict[Kind, Network]:
        names = map(str, range(len(self._networks)))
        times = RunTimes((self.usual_ms,), dict.fromkeys(names, (3.0,)))
        found = self._networks.items()
        return {kind: replace(each, steps_ms=(self.usual_ms,), times=times) for kind, each in found}


@pytest.fixture
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is measured: a network takes 2 ms alone, and `Shared` has those that run together."""

    async def told(model: str, cores: int, value_limit_bytes: int | None) -> Network:
        return Network(model, (2.0,), value_limit_bytes=value_limit_bytes)

    monkeypatch.setattr(module, "_measured_calmly", told)
    monkeypatch.setattr(module, "Together", Shared)
    monkeypatch.setattr(Shared, "made", [])


@pytest.mark.slow
async def test_a_network_is_measured_and_simulated() -> None:
    results = await run(experiment(overheads="none"))
    low, high = (each.result for each in results.runs)
    assert 0 < low.streams[0].submitted < high.streams[0].submitted
    assert low.busy_ns / low.duration_ns == pytest.approx(0.2, rel=0.5)


async def test_each_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    async def told(model: str, cores: int, value_limit_bytes: int | None) -> Network:
        asked.append((model, cores))
        return Network(model, (2.0,))

    class Calm:
        def read(self) -> float:
            return 0.0

    monkeypatch.setattr(module, "WaitMeter", Calm)
    monkeypatch.setattr(module, "measured", told)
    monkeypatch.setattr(module, "Together", Shared)
    sweep = {"cores": [1, 2], "load": [0.2, 0.4]}
    networks = await MeasuredNetworks.of(experiment("net.tflite", sweep=sweep).points())
    points = await networks.points()
    assert asked == [("net.tflite", 1), ("net.tflite", 2)]
    costs = [point.experiment.streams[0].cost for point in points]
    times = RunTimes((2.0,), {"words": (3.0,)})
    assert costs == [Network("net.tflite", (2.0,), times=times)] * 4
    assert set(networks.runs()) == {0, 1, 2, 3}

    # What is measured later changes the costs, not the rates of what was run for real meanwhile.
    for _ in points:
        await networks.measure_more()
    later = await networks.points()
    assert [point.experiment.streams[0].cost.mean_ns for point in later] == [3_000_000] * 4
    rates = [point.experiment.workload().streams[0].arrivals for point in points]
    assert [point.experiment.workload().streams[0].arrivals for point in later] == rates
    found = [each.rate_hz for each in rates if isinstance(each, Poisson)]
    assert found == pytest.approx([100, 200, 200, 400])


@pytest.mark.usefixtures("stand_ins")
async def test_they_run_together_as_often_as_at_the_points() -> None:
    # Seven loads, of which four are measured; policies make no difference.
    loads = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7]
    points = experiment(sweep={"load": loads, "policy": ["default", "edf"]}).points()
    networks = await MeasuredNetworks.of(points)
    rates = [rate_hz for each in Shared.made for rate_hz in each.mix.values()]
    assert rates == pytest.approx([50.0, 150.0, 250.0, 350.0])
    # Each time another one is measured once more.
    await networks.measure_more()
    await networks.measure_more()
    assert [each.usual_ms for each in Shared.made] == [3.0, 3.0, 2.0, 2.0]
    costs = [point.experiment.streams[0].cost.mean_ns / 1e6 for point in await networks.points()]
    assert costs[::2] == costs[1::2]
    assert (costs[:6], costs[8:]) == ([3.0] * 6, [2.0] * 6)


@pytest.mark.usefixtures("stand_ins")
async def test_points_of_one_load_have_the_mix_that_is_theirs() -> None:
    urgent = Stream(name="urgent", arrivals=Poisson(50), cost=Network(WORDS), priority="high")
    other = Stream(name="other", arrivals=Poisson(50), cost=Network(WORDS))
    points = Experiment(
        streams=(urgent, other),
        load=0.2,
        sweep={"streams.urgent.arrivals.rate_hz": [50, 150], "policy": ["default", "edf"]},
    ).points()
    networks = await MeasuredNetworks.of(points)
    rates = [rate_hz for each in Shared.made for rate_hz in each.mix.values()]
    assert sorted(rates) == pytest.approx([25.0, 50.0, 50.0, 75.0])
    await networks.measure_more()
    costs = [point.experiment.streams[0].cost.mean_ns / 1e6 for point in await networks.points()]
    # One of both mixes was measured once more; policies make no difference.
    assert costs[0] == costs[1] != costs[2] == costs[3]


@pytest.mark.usefixtures("stand_ins")
@pytest.mark.parametrize(
    ("arrivals", "rate_hz"),
    [(ClosedLoop(3, 8.0), 300.0), (Trace("none.csv"), 0.0), (Periodic(20.0), 50.0)],
)
async def test_how_often_networks_come_where_that_is_known(
    arrivals: Arrivals, rate_hz: float
) -> None:
    stream = Stream(name="words", arrivals=arrivals, cost=Network(WORDS))
    await MeasuredNetworks.of([Point(0, {}, Experiment(streams=(stream,)))])
    (shared,) = Shared.made
    assert list(shared.mix.values()) == pytest.approx([rate_hz])


async def test_networks_that_say_what_they_cost_are_not_measured() -> None:
    stream = Stream(name="words", arrivals=Poisson(100), cost=Network("none.tflite", (1.0,)))
    points = Experiment(streams=(stream,), sweep={"load": [0.5]}).points()
    networks = await MeasuredNetworks.of(points)
    assert (await networks.points(), networks.runs()) == (points, {})


async def test_a_load_without_open_arrivals_is_told_after_measuring(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def told(model: str, cores: int, value_limit_bytes: int | None) -> Network:
        return Network(model, (2.0,), value_limit_bytes=value_limit_bytes)

    monkeypatch.setattr(module, "measured", told)
    monkeypatch.setattr(module, "Together", Shared)
    closed = Stream(name="words", arrivals=ClosedLoop(1, 5.0), cost=Network(WORDS))
    broken = experiment(streams=(closed,), sweep={}, load=0.5)
    with pytest.raises(ExperimentError, match="no stream has open arrivals"):
        await MeasuredNetworks.of(broken.points())


async def test_what_is_measured_has_steps_and_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_RUNS", 5)
    found = await measured(WORDS, 2)
    assert found.times is not None
    assert sum(found.steps_ms) == pytest.approx(sum(found.times.usual_ms) / 199)
    assert list(found.times.usual_ms) == sorted(found.times.usual_ms)


async def test_the_calmest_of_several_measurements_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    waits, costs = iter([0.5, 0.2, 0.3]), iter([3.0, 2.0, 4.0])

    class Meter:
        def read(self) -> float:
            return next(waits)

    async def told(model: str, cores: int, value_limit_bytes: int | None) -> Network:
        return Network(model, (next(costs),), value_limit_bytes=value_limit_bytes)

    monkeypatch.setattr(module, "measured", told)
    monkeypatch.setattr(module, "WaitMeter", Meter)
    found = await module._measured_calmly("a.nnm", 2, 64)
    assert found == Network("a.nnm", (2.0,), value_limit_bytes=64)


async def test_a_model_that_is_not_there() -> None:
    with pytest.raises(FileNotFoundError):
        await measured("nothing.nnm", 1)


@pytest.mark.parametrize("name", ["simulation", "simulation_networks"])
async def test_what_measures_the_simulation_is_read(name: str) -> None:
    found = read_experiment(ROOT / "benchmarks" / f"{name}.toml")
    loads = {point.values["load"] for point in found.points()}
    assert min(loads, key=float) == 0.3
    assert found.cores == 2
