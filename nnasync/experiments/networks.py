"""What real networks cost here, measured, so that streams of them can be simulated.

A network is compiled as a real run compiles it, by its file alone, and runs some dozens of times
with pauses between, as in a stream: a run after a pause finds its data out of the caches. What the
device says a run took becomes its cost, as one step, with the spread that was seen; one run in
fifty, the longest, is left out as the system's doing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import anyio
import numpy as np
from msgspec.structs import replace

from nnasync._core.drivers import default_devices
from nnasync._core.runtime import Options, Runtime, open_runtime
from nnasync.errors import ExperimentError
from nnasync.experiments.costs import Network
from nnasync.experiments.experiment import Experiment, Point
from nnasync.hal import NOT_AVAILABLE

_WARM, _RUNS = 5, 60
_PAUSE_S = 0.003
_LEFT_OUT = 0.02
_COMPETITION_MS = 300


async def with_measured_networks(points: Sequence[Point]) -> tuple[Point, ...]:
    """The points with the costs of networks whose steps they do not say, each measured once.

    Raises:
        ExperimentError: A network does not say how long it runs, or a point is not legal with it.
    """
    unknown = {
        (model, point.experiment.cores) for point in points for model in _models(point.experiment)
    }
    if not unknown:
        return tuple(points)
    known = {(model, cores): await measured(model, cores) for model, cores in sorted(unknown)}
    return tuple(_with_costs(point, known) for point in points)


async def measured(model: str, cores: int) -> Network:
    """A network of a file, with what it costs on this machine when so many cores may be used."""
    options = Options(cores=cores, inline_budget_us=0, competition_budget_ms=_COMPETITION_MS)
    async with open_runtime(devices=default_devices(), options=options) as runtime:
        durations_ns = sorted(await _durations_ns(runtime, model))
    kept = np.array(durations_ns[: math.ceil(len(durations_ns) * (1 - _LEFT_OUT))], float)
    mean_ns = float(kept.mean())
    return Network(model, (mean_ns / 1e6,), float(kept.std()) / mean_ns)


async def _durations_ns(runtime: Runtime, model: str) -> list[int]:
    rng = np.random.default_rng(0)
    found = []
    async with runtime.compile(model) as net:
        shapes = [([max(1, n) for n in port.shape], port.dtype) for port in net.inputs]
        given = [rng.random(shape).astype(dtype) for shape, dtype in shapes]
        for _ in range(_WARM + _RUNS):
            timing = (await net.measured(*given)).timing
            found.append(timing.time_on_device_ns)
            await anyio.sleep(_PAUSE_S)
    if NOT_AVAILABLE in found:
        raise ExperimentError(f"{model}: its device does not say how long runs take")
    return found[_WARM:]


def _models(experiment: Experiment) -> Iterable[str]:
    return (
        stream.cost.model
        for stream in experiment.streams
        if isinstance(stream.cost, Network) and not stream.cost.steps_ms
    )


def _with_costs(point: Point, known: dict[tuple[str, int], Network]) -> Point:
    experiment = point.experiment
    streams = tuple(
        replace(stream, cost=known.get((stream.cost.model, experiment.cores), stream.cost))
        if isinstance(stream.cost, Network) and not stream.cost.steps_ms
        else stream
        for stream in experiment.streams
    )
    changed = replace(experiment, streams=streams)
    changed.workload()
    return replace(point, experiment=changed)
