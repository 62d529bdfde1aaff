"""What real networks cost here, measured, so that streams of them can be simulated.

*Each alone.* A network is compiled as a real run compiles it, by its file alone, and runs some
dozens of times with pauses between, as in a stream: a run after a pause finds its data out of the
caches. Then it does so again while an execution that loads nothing runs: the runtime takes the form
of a plan with fewer threads then, if it has one. Its steps are those between which the prepared
plan can be interrupted (`step_meter`).

*All together.* Then all networks of an experiment are streams of real runs of some seconds, in
which they come at random, as often as at its points (`measured_together`): at each load of a sweep
and each share of the networks in it, or in four such mixes, of which each point has the nearest
one. A machine is not the same for long, so there are more of these between real runs that a
simulation is compared with.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import anyio
import anyio.to_thread
import numpy as np
from msgspec.structs import replace

from nnasync._core.drivers import default_devices
from nnasync._core.execution import Net
from nnasync._core.model import ModelBuilder
from nnasync._core.runtime import Options, Runtime, open_runtime
from nnasync.errors import ExperimentError
from nnasync.experiments.arrivals import ClosedLoop
from nnasync.experiments.costs import Network, RunTimes
from nnasync.experiments.experiment import Experiment, Point
from nnasync.experiments.measured_together import File, Kind, Mix, Together, load_of
from nnasync.experiments.real import best_form
from nnasync.experiments.real_device import CostEngine, at_multiples
from nnasync.experiments.record import RunResult
from nnasync.experiments.run_of_point import DISTURBED
from nnasync.experiments.step_meter import StepMeter
from nnasync.experiments.times_of_runs import quantiles_ms
from nnasync.experiments.workload import Stream
from nnasync.hal import NOT_AVAILABLE, Array, Priority
from nnasync.machine import WaitMeter

T = TypeVar("T")

_WARM, _RUNS = 10, 80
_PAUSE_S = 0.003
_RESTS_NS, _REST_STEP_NS = 60_000_000_000, 50_000_000
_COMPETITION_MS = 300
_ATTEMPTS = 3
_MOST_MIXES = 4
_IS_WIDE = 0.85
"""A form with more threads that is no quicker than this, of the time with one, is none."""


class MeasuredNetworks:
    """Points whose networks are measured, more precisely with each further measurement."""

    def __init__(self, points: Sequence[Point], together: Mapping[int, Together]) -> None:
        self._points = tuple(points)
        self._together = together
        self._turn = 0

    @classmethod
    async def of(cls, points: Sequence[Point]) -> MeasuredNetworks:
        """Measures the networks whose steps the points do not state.

        Loads become the rates that they mean by this measurement; later ones do not change them.

        Raises:
            ExperimentError: A network does not say how long it runs, or a point is not legal with
                it.
        """
        together = await _together(points)
        known = await _known(points, together)
        return cls(list(map(_with_rates, points, known)), together)

    async def measure_more(self) -> None:
        """Makes one more run of the networks that share cores, for the next point in turn."""
        every = _each(self._together)
        if every:
            await every[self._turn % len(every)].measure_more()
            self._turn += 1

    async def points(self) -> tuple[Point, ...]:
        """Returns the points with the measured costs of their networks."""
        return await _known(self._points, self._together)

    def runs(self) -> dict[int, tuple[RunResult, ...]]:
        """Returns the runs in which networks shared cores, by the numbers of their points."""
        runs = {each: each.runs for each in _each(self._together)}
        return {index: runs[together] for index, together in self._together.items()}


async def _together(points: Sequence[Point]) -> dict[int, Together]:
    """Returns the networks of each point that has any, measured alone and ready to run together."""
    alone: dict[tuple[File, int], Network] = {}
    alike: dict[tuple[int, tuple[Kind, ...]], list[Point]] = {}
    for point in points:
        if kinds := _kinds(point.experiment):
            alike.setdefault((point.experiment.cores, kinds), []).append(point)
    found: dict[int, Together] = {}
    for (cores, kinds), group in alike.items():
        for kind in kinds:
            if (kind.file, cores) not in alone:
                limit_bytes = kind.value_limit_bytes
                alone[kind.file, cores] = await _measured_calmly(kind.model, cores, limit_bytes)
        networks = {kind: alone[kind.file, cores] for kind in kinds}
        found |= await _by_mix(group, networks, cores)
    return dict(sorted(found.items()))


async def _by_mix(
    points: Sequence[Point], networks: dict[Kind, Network], cores: int
) -> dict[int, Together]:
    """Measures networks in each mix, or in a few from the least load to the most.

    Returns for each point the measurement of the nearest mix, by what each network asks for.
    """
    mixes = {point.index: _mix(point, networks) for point in points}
    different = {tuple(mix.values()): mix for mix in mixes.values()}
    every = sorted(different.values(), key=lambda mix: load_of(mix, networks, cores))
    places = np.linspace(0, len(every) - 1, min(len(every), _MOST_MIXES)).round()
    few = [every[int(place)] for place in places]
    together = [Together(networks, cores, mix) for mix in few]
    for each in together:
        await each.measure()

    def apart(mix: Mix, other: Mix) -> float:
        return load_of({kind: abs(mix[kind] - other[kind]) for kind in mix}, networks, cores)

    return {
        index: min(zip(few, together, strict=True), key=lambda each: apart(mix, each[0]))[1]
        for index, mix in mixes.items()
    }


def _mix(point: Point, networks: dict[Kind, Network]) -> Mix:
    """Returns how often each network comes at a point; 0 where that is not known."""
    mix = dict.fromkeys(networks, 0.0)
    names = {stream.name for stream in _unmeasured(point.experiment)}
    for stream in _with_costs(point, networks).experiment.workload().streams:
        if stream.name in names:
            mix[_kind(stream)] += _rate_hz(stream)
    return mix


def _rate_hz(stream: Stream) -> float:
    arrivals = stream.arrivals
    if isinstance(arrivals, ClosedLoop):
        return arrivals.callers * 1e3 / (arrivals.think_ms + stream.cost.mean_ns / 1e6)
    try:
        return arrivals.mean_rate_hz
    except ExperimentError:
        return 0.0


def _each(together: Mapping[int, Together]) -> tuple[Together, ...]:
    return tuple(dict.fromkeys(together.values()))


async def _known(points: Sequence[Point], together: Mapping[int, Together]) -> tuple[Point, ...]:
    costs = {each: await anyio.to_thread.run_sync(each.networks) for each in _each(together)}
    return tuple(
        _with_costs(point, costs[together[point.index]]) if point.index in together else point
        for point in points
    )


def _with_rates(point: Point, known: Point) -> Point:
    """Returns the point with the arrival rates that its load means for the known costs."""
    if point is known:
        return point
    rated = known.experiment.workload().streams
    streams = tuple(
        replace(stream, arrivals=each.arrivals)
        for stream, each in zip(point.experiment.streams, rated, strict=True)
    )
    return replace(point, experiment=replace(point.experiment, streams=streams, load=None))


async def _measured_calmly(model: str, cores: int, value_limit_bytes: int | None) -> Network:
    """Measures a network a few times at most, and returns the least disturbed measurement."""
    found: list[tuple[float, Network]] = []
    for _ in range(_ATTEMPTS):
        meter = WaitMeter()
        network = await measured(model, cores, value_limit_bytes)
        waited = meter.read() or 0.0
        found.append((waited, network))
        if waited < DISTURBED:
            break
    return min(found, key=lambda each: each[0])[1]


async def measured(model: str, cores: int, value_limit_bytes: int | None = None) -> Network:
    """Returns the network in a file with its costs on this machine, for so many usable cores."""
    options = Options(cores=cores, inline_budget_us=0, competition_budget_ms=_COMPETITION_MS)
    meter = StepMeter()
    rest = CostEngine("rest", at_multiples(_REST_STEP_NS), spins=False)
    async with open_runtime(
        devices=[*default_devices(), rest], options=options, instruments=[meter]
    ) as runtime:
        net = await best_form(runtime, model, Priority.MEDIUM, value_limit_bytes)
        async with net:
            wide = await _durations_ns(net, model)
            usual, borders = wide, meter.borders()
            if cores > 1:
                async with _something_running(runtime, rest.name):
                    usual = await _durations_ns(net, model)
    is_wide = np.quantile(wide, 0.25) < _IS_WIDE * np.quantile(usual, 0.25)
    times = RunTimes(quantiles_ms(usual), {}, quantiles_ms(wide) if is_wide else ())
    mean_ms = float(np.mean(times.usual_ms))
    steps_ms = tuple((np.diff(borders, prepend=0.0) * mean_ms).tolist())
    return Network(model, steps_ms, times=times, value_limit_bytes=value_limit_bytes)


@asynccontextmanager
async def _something_running(runtime: Runtime, device: str) -> AsyncIterator[None]:
    """Keeps an execution that loads no core running while the block runs."""
    builder = ModelBuilder("rest")
    told = builder.input("cost", (1, 1))
    builder.output("done", builder.add(told, told))
    net = await runtime.compile(builder.build(), devices=[device])
    async with anyio.create_task_group() as group:
        group.start_soon(net, np.array([[_RESTS_NS]], np.float32))
        await anyio.sleep(_PAUSE_S)
        yield
        group.cancel_scope.cancel()


async def _durations_ns(net: Net[Array], model: str) -> list[int]:
    """Runs the network some dozens of times; returns the durations that the device reports."""
    rng = np.random.default_rng(0)
    found: list[int] = []
    shapes = [([max(1, n) for n in port.shape], port.dtype) for port in net.inputs]
    given: list[Any] = [rng.random(shape).astype(dtype) for shape, dtype in shapes]
    for _ in range(_WARM + _RUNS):
        found.append((await net.measured(*given)).timing.time_on_device_ns)
        await anyio.sleep(_PAUSE_S)
    if NOT_AVAILABLE in found:
        raise ExperimentError(f"{model}: its device does not say how long runs take")
    return found[_WARM:]


def _kinds(experiment: Experiment) -> tuple[Kind, ...]:
    """Returns the experiment's networks that are to be measured, each once, in order."""
    kinds = {_kind(stream) for stream in _unmeasured(experiment)}
    return tuple(sorted(kinds, key=lambda kind: (*kind[:2], kind.value_limit_bytes or 0)))


def _unmeasured(experiment: Experiment) -> Iterable[Stream]:
    costs = ((stream, stream.cost) for stream in experiment.streams)
    return (s for s, cost in costs if isinstance(cost, Network) and not cost.steps_ms)


def _kind(stream: Stream) -> Kind:
    cost = stream.cost
    if not isinstance(cost, Network):
        return Kind("", stream.urgency)
    return Kind(cost.model, stream.urgency, cost.value_limit_bytes)


def _with_costs(point: Point, costs: dict[Kind, Network]) -> Point:
    """Returns the point with measured costs; what runs beside is named by the point's streams."""
    experiment = point.experiment
    kinds = {stream.name: _kind(stream) for stream in _unmeasured(experiment)}
    names = {kind: str(number) for number, kind in enumerate(costs)}

    def cost(kind: Kind) -> Network:
        network = costs[kind]
        if network.times is None:
            return network

        def named(known: Mapping[str, T]) -> dict[str, T]:
            by_kind = {name: names[each] for name, each in kinds.items()}
            return {name: known[each] for name, each in by_kind.items() if each in known}

        times = network.times
        beside, joined = named(times.beside_ms), named(times.joined_ms)
        return replace(network, times=replace(times, beside_ms=beside, joined_ms=joined))

    streams = tuple(
        replace(stream, cost=cost(kinds[stream.name])) if stream.name in kinds else stream
        for stream in experiment.streams
    )
    changed = replace(experiment, streams=streams)
    changed.workload()
    return replace(point, experiment=changed)
