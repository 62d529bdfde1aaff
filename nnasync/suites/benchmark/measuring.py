"""One network on one device, measured: compilations, then inferences on all of the data.

The first compilation chooses among the ways that a device knows, and is told apart; inferences are
those of what it made. Then compilations of each kind are measured: without a cache, to an empty
one, and from a full one. Inputs are prepared and outputs copied outside of what is measured; what
counts is the time of `await net(x)`, as an application sees it.

The outputs of the first pass over the data are kept; whoever compares them has the same for all
devices.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import anyio.lowlevel
import anyio.to_thread
import msgspec
import numpy as np

from nnasync._core.compilation.report import devices_of
from nnasync._core.execution import Net
from nnasync._core.importers import load
from nnasync._core.runtime import CompileOptions, Runtime
from nnasync._core.words import counted
from nnasync.device import Device
from nnasync.errors import InvalidArgument, NNError
from nnasync.extensions import operation_label
from nnasync.hal import Array
from nnasync.suites.benchmark.data import Outputs
from nnasync.suites.benchmark.dividing import dividing_pin
from nnasync.suites.benchmark.energy import consumed_joules, spent_joules
from nnasync.suites.benchmark.timing import TimingRules

Inputs = Sequence[tuple[Array, ...]]
KINDS = ("without cache", "to cache", "from cache")
_WITHOUT, _TO, _FROM = KINDS


class MeasureJob(msgspec.Struct, frozen=True):
    """What is to be measured: the network in a file on devices of a runtime; None is its choice.

    `precision` is that of `compile`. With `has_compilations` they are measured. `moved` answers the
    inputs again, moved by a step where they are whole numbers. `value_limit_bytes` is that of
    `load`.
    """

    model: str
    devices: tuple[str, ...] | None
    rules: TimingRules
    precision: str | None = None
    has_compilations: bool = True
    moved: bool = False
    value_limit_bytes: int | None = None


class DeviceMeasurement(msgspec.Struct, frozen=True):
    """What was measured, in seconds, and the outputs of the first pass, by sequence.

    `plan` says what ran. `is_whole` is whether the first pass was done in time; `outputs` end where
    it was not. `moved` are outputs of moved inputs. `joules` are of one inference.
    """

    plan: str
    first_compile_s: float
    compilations: dict[str, tuple[float, ...]]
    cache_bytes: int
    latencies: tuple[float, ...]
    outputs: tuple[Outputs, ...]
    is_whole: bool
    moved: tuple[Outputs, ...] = ()
    joules: float | None = None


async def measure(
    runtime: Runtime,
    job: MeasureJob,
    inputs: Inputs,
    tell: Callable[[str], object] = lambda text: None,
) -> DeviceMeasurement:
    """Measure; `tell` gets what is being done. Raises what compiling and running raise."""
    tell("compile")
    pin = None
    if job.devices is not None and len(job.devices) > 1:
        limit_bytes = job.value_limit_bytes
        pin = await dividing_pin(runtime, job.model, job.devices, limit_bytes)
    compiler = _Compiler(runtime, job, pin)
    begun = time.perf_counter()
    async with compiler.compiled() as net:
        first = time.perf_counter() - begun
        check_inputs(net, inputs)
        plan = _plan_of(net)
        tell("run")
        clock = _Invocations(net)
        await clock.warm_up(inputs, job.rules.warm_up_s)
        before = consumed_joules()
        outputs = await clock.measure(inputs, job.rules)
        joules = spent_joules(before, consumed_joules())
        moved = await _moved(net, inputs) if job.moved else []
    cache_bytes = 0
    compilations: dict[str, tuple[float, ...]] = {}
    if job.has_compilations:
        with tempfile.TemporaryDirectory(prefix="nnasync-bench-") as folder:
            cache_bytes, compilations = await _compilations(
                compiler, job.rules, Path(folder), first, tell
            )
    count = len(clock.times)
    return DeviceMeasurement(
        plan,
        first,
        compilations,
        cache_bytes,
        tuple(clock.times),
        tuple(outputs),
        len(outputs) == len(inputs),
        tuple(moved),
        None if joules is None or not joules else joules / count,
    )


def check_inputs(net: Net, inputs: Inputs) -> None:
    """Raise InvalidArgument where a sequence does not fit the inputs of a network."""
    ports = net.inputs
    for number, arrays in enumerate(inputs):
        shapes = [array.shape[1:] for array in arrays]
        if len(arrays) != len(ports) or any(
            port.is_settled and (shape != port.shape or array.dtype != port.dtype)
            for port, shape, array in zip(ports, shapes, arrays, strict=True)
        ):
            given = ", ".join(f"{a.dtype}{list(a.shape[1:])}" for a in arrays)
            wanted = ", ".join(map(str, ports))
            raise InvalidArgument(
                f"sequence {number} has steps of {given}; the network takes {wanted}"
            )


# -- compilations


class _Compiler:
    """Compiles the network of a job, again and again; each is closed before the next begins."""

    def __init__(self, runtime: Runtime, job: MeasureJob, pin: str | None) -> None:
        self._runtime = runtime
        self._job = job
        self._options = CompileOptions(
            wait="best", pin=pin, value_limit_bytes=job.value_limit_bytes
        )

    @contextlib.asynccontextmanager
    async def compiled(self, cache: Path | None = None) -> AsyncIterator[Net]:
        """The network, until the end of the block."""
        net: Net = await self._runtime.compile(
            self._job.model,
            devices=self._job.devices,
            precision=self._job.precision,
            cache_dir=cache,
            options=self._options,
        )
        try:
            yield net
        finally:
            await net.aclose()

    async def timed(self, cache: Path | None = None) -> float:
        """Returns how long a compilation takes."""
        begun = time.perf_counter()
        async with self.compiled(cache):
            return time.perf_counter() - begun


async def _compilations(
    compiler: _Compiler,
    rules: TimingRules,
    root: Path,
    first: float,
    tell: Callable[[str], object],
) -> tuple[int, dict[str, tuple[float, ...]]]:
    """The size of the cache, and the times of each kind; those of caches where there is one.

    What the `first` compilation took is part of the warm-up.
    """
    fresh = (root / f"{number}" for number in itertools.count())
    tell("compile without cache")
    times = {_WITHOUT: await _repeated(lambda: compiler.timed(None), rules, spent=first)}
    full = root / "full"
    filling = await compiler.timed(_made(full))
    size = sum(each.stat().st_size for each in full.rglob("*") if each.is_file())
    if size:
        tell("compile to cache")
        once = functools.partial(_to_cache, compiler, fresh)
        times[_TO] = await _repeated(once, rules, spent=filling)
        tell("compile from cache")
        times[_FROM] = await _repeated(lambda: compiler.timed(full), rules)
    return size, times


async def _to_cache(compiler: _Compiler, fresh: Iterator[Path]) -> float:
    """A compilation to an empty cache."""
    return await compiler.timed(_made(next(fresh)))


async def _repeated(
    once: Callable[[], Awaitable[float]], rules: TimingRules, *, spent: float = 0.0
) -> tuple[float, ...]:
    """Times of compilations; what was `spent` on others of their kind is part of the warm-up."""
    while spent < rules.compile_warm_up_s:
        spent += await once()
    times: list[float] = []
    while len(times) < rules.compilations and sum(times) < rules.compile_s:
        times.append(await once())
    return tuple(times)


def _made(folder: Path) -> Path:
    folder.mkdir(mode=0o700)
    return folder


# -- inferences


class _Invocations:
    """Runs sequences on a network and notes the times of the invocations."""

    def __init__(self, net: Net) -> None:
        self._net = net
        self.times: list[float] = []

    async def warm_up(self, inputs: Inputs, limit_s: float) -> None:
        """Run sequences until that much time is spent, at least one; nothing is kept."""
        spent = 0.0
        for arrays in itertools.cycle(inputs):
            await self.outputs_of(arrays)
            spent += sum(self.times)
            self.times.clear()
            if spent >= limit_s:
                break

    async def measure(self, inputs: Inputs, rules: TimingRules) -> list[Outputs]:
        """Run all sequences, and again until the time is spent; returns outputs of the first pass.

        They end early where the limit for the whole data comes first.
        """
        outputs: list[Outputs] = []
        spent = 0.0
        for number, arrays in enumerate(itertools.cycle(inputs)):
            begun = len(self.times)
            results = await self.outputs_of(arrays)
            spent += sum(self.times[begun:])
            is_first_pass = number < len(inputs)
            if is_first_pass:
                outputs.append(results)
            is_done = number + 1 >= len(inputs) and spent >= rules.run_s
            if is_done or (is_first_pass and spent >= rules.data_limit_s):
                break
        return outputs

    async def outputs_of(self, arrays: tuple[Array, ...]) -> Outputs:
        """The outputs of all steps; a network with a state begins with zeros."""
        await anyio.lowlevel.checkpoint()
        steps = zip(*arrays, strict=True)
        if not self._net.states:
            results = [await self._timed(self._net, step) for step in steps]
        else:
            async with self._net.burst() as burst:
                results = [await self._timed(burst, step) for step in steps]
        return tuple(np.stack(column) for column in zip(*results, strict=True))

    async def _timed(
        self, call: Callable[..., Awaitable[Any]], step: tuple[Array, ...]
    ) -> tuple[Array, ...]:
        begun = time.perf_counter()
        result = await call(*step)
        self.times.append(time.perf_counter() - begun)
        return result if isinstance(result, tuple) else (result,)


async def _moved(net: Net, inputs: Inputs) -> list[Outputs]:
    """The outputs for inputs that were moved by a step, up or down or not at all, by chance."""
    clock, random = _Invocations(net), np.random.default_rng(0)
    moved: Inputs = [
        tuple(_moved_by_a_step(array, random) for array in arrays) for arrays in inputs
    ]
    return [await clock.outputs_of(arrays) for arrays in moved]


def _moved_by_a_step(array: Array, random: np.random.Generator) -> Array:
    if array.dtype.kind not in "iu" or array.dtype.itemsize > 2:
        return array
    limits = np.iinfo(array.dtype)
    wide = array.astype(np.int32) + random.integers(-1, 2, array.shape)
    moved: Array = np.clip(wide, limits.min, limits.max).astype(array.dtype)
    return moved


async def unsupported(devices: Sequence[Device], job: MeasureJob) -> str:
    """Returns which operations none of the devices takes, in words; empty if there are none."""
    try:
        model = await anyio.to_thread.run_sync(
            lambda: load(job.model, value_limit_bytes=job.value_limit_bytes)
        )
        takes = [await device.get_supported_operations(model) for device in devices]
    except (NNError, OSError):
        return ""
    count = len(model.main.operations)
    lacking = [n for n in range(count) if not any(each[n] for each in takes)]
    if not lacking:
        return ""
    entries = model.extension_name_to_prefix
    types = (model.main.operations[n].type for n in lacking)
    kinds = dict.fromkeys(operation_label(entries, type) for type in types)
    return f"does not take {len(lacking)} of {counted(count, 'operation')}: {', '.join(kinds)}"


def _plan_of(net: Net) -> str:
    """The devices that run it, and in which way."""
    report = net.report()
    ways = [each.lowering for each in report.candidates if each.fate.value == "chosen"]
    return devices_of(report) + (f" ({', '.join(ways)})" if ways else "")
