"""The composition root: devices, workers and clocks under one async context manager.

A runtime belongs to one event loop. While it is open it holds two settings of the process that all
of its threads share, and restores them at the end: BLAS runs one thread per call (the workers are
the parallelism), and the interpreter offers its lock more often than by default, without which a
loop beside busy workers lags by many milliseconds.
"""

from __future__ import annotations

import functools
import importlib
import logging
import os
import sys
import threading
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import anyio
import anyio.abc
import anyio.to_thread
import msgspec

from nnasync.clock import Deadline, Watchdog, now_ns
from nnasync.compilation import (
    REFERENCE,
    Compilation,
    Verdicts,
    calibrated,
    compile_model,
    read_calibration,
    state_folder,
)
from nnasync.device import Device, PreparedModel
from nnasync.drivers import DRIVERS, check_installed, default_devices
from nnasync.engine import Engine, EngineDevice
from nnasync.errors import BadState, DeviceUnavailable, InvalidArgument
from nnasync.execution import Closing, Net
from nnasync.fences import Fence
from nnasync.hal import BYTE_SIZE_OF_CACHE_TOKEN, ExecutionPreference, Model, Priority
from nnasync.memory import MemoryStatistics
from nnasync.memory import statistics as memory_statistics
from nnasync.model import fingerprint
from nnasync.scheduler import AGEING_NS
from nnasync.timeslice import set_time_slice
from nnasync.tracing import Count, Instrument, Layer, Phase, Tracer, vlog
from nnasync.wakeup import Wakeup
from nnasync.workers import Workers, WorkersStatistics, contained

__all__ = ["Options", "Runtime", "RuntimeStatistics", "open_runtime", "run"]

logger = logging.getLogger(__name__)

T = TypeVar("T")
E = TypeVar("E")

IDLE_PERIOD_S = 5.0
CLOSE_GRACE_S = 2.0
READY_PATIENCE_S = 5.0
"""How long a plan may take to be bound and tried before its network is handed out all the same."""


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a runtime; times in microseconds.

    cores: how many executions run at once. inline_budget_us: an execution that takes at most this
    long may run on the thread of the loop (0: never). stall_budget_us: inline work per turn of the
    loop. queue_limit: executions that may wait. low_os_priority: LOW worker threads get the lowest
    OS priority (it cannot be undone, and may stall the loop beside foreign busy processes).
    switch_interval_us: how often the interpreter lock is offered while the runtime is open.
    time_slice_us: the slice that the loop's thread and the workers of MEDIUM and HIGH ask the
    system for, so that they get a core as soon as they wake (0: the system's own).
    competition_budget_ms: how long devices are measured against each other for a model (0: the
    first that takes it gets it). ageing_ms: an execution that has waited for so long goes before
    those of higher priority, one at a time. state_dir: where measurements are kept, by default
    $NNASYNC_STATE_DIR, else a folder of the user's.
    """

    cores: int = msgspec.field(default_factory=_cores)
    inline_budget_us: float = 500
    stall_budget_us: float = 1000
    queue_limit: int = 1024
    low_os_priority: bool = False
    switch_interval_us: float = 50
    time_slice_us: float = 100
    competition_budget_ms: float = 300
    ageing_ms: float = AGEING_NS / 1e6
    state_dir: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        counts: tuple[object, ...] = (self.cores, self.queue_limit)
        if not all(isinstance(count, int) and count >= 1 for count in counts):
            raise InvalidArgument(f"cores and queue_limit must be 1 or more: {counts}")
        times: tuple[object, ...] = (
            self.inline_budget_us,
            self.stall_budget_us,
            self.switch_interval_us,
            self.time_slice_us,
            self.competition_budget_ms,
            self.ageing_ms,
        )
        if not all(isinstance(time, (int, float)) and 0 <= time < float("inf") for time in times):
            raise InvalidArgument(f"budgets and intervals must be 0 or more: {times}")
        if self.ageing_ms < 1:
            raise InvalidArgument(f"ageing_ms must be 1 or more, got {self.ageing_ms}")
        if not isinstance(self.state_dir, (str, os.PathLike, type(None))):
            raise InvalidArgument(f"state_dir must be a path, got {self.state_dir!r}")


class RuntimeStatistics(msgspec.Struct, frozen=True):
    """State of a runtime now; `wakeups` counts how often threads woke the loop."""

    workers: WorkersStatistics
    memory: MemoryStatistics
    wakeups: Count
    nets: int


def open_runtime(
    *,
    devices: Sequence[str | Engine | Device] | None = None,
    isolate: Sequence[str] = (),
    options: Options | None = None,
    instruments: Sequence[Instrument] = (),
) -> Runtime:
    """A runtime, to be used with `async with`.

    `devices` are names, engines or devices; None means all that are there by default. Raises
    InvalidArgument for an unknown name.
    """
    if isolate:
        raise InvalidArgument(
            f"isolate={list(isolate)}: this version has no driver service; leave it empty"
        )
    return Runtime(devices, options or Options(), instruments)


def run(main: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> T:
    """Run an async function on a new event loop: uvloop where there is one, else asyncio."""
    try:
        import uvloop
    except ImportError:
        return anyio.run(main, *args)
    del uvloop
    return anyio.run(main, *args, backend_options={"use_uvloop": True})


class Runtime:
    """Devices and the workers they share; made by `open_runtime`."""

    def __init__(
        self,
        devices: Sequence[str | Engine | Device] | None,
        options: Options,
        instruments: Sequence[Instrument],
    ) -> None:
        self.options = options
        self.tracer = Tracer(instruments)
        self._wanted = default_devices() if devices is None else devices
        self._devices: tuple[Device, ...] = ()
        self._nets: set[Net] = set()
        self._judge: Device | None = None
        self._folder = Path(options.state_dir).expanduser() if options.state_dir else state_folder()
        self._state = "new"

    async def __aenter__(self) -> Self:
        if self._state != "new":
            raise BadState("a runtime can be opened once; make another with open_runtime()")
        self._wakeup = Wakeup.current()
        self._watchdog = Watchdog()
        options = self.options
        self._workers = Workers(
            cores=options.cores,
            inline_budget_ns=int(options.inline_budget_us * 1000),
            stall_budget_ns=int(options.stall_budget_us * 1000),
            queue_limit=options.queue_limit,
            watchdog=self._watchdog,
            tracer=self.tracer,
            on_start=functools.partial(_settle_in, options),
            ageing_ns=int(options.ageing_ms * 1e6),
        )
        self._figures = await anyio.to_thread.run_sync(read_calibration, self._folder)
        self._devices = tuple(self._device(wanted) for wanted in _checked_list(self._wanted))
        names = [device.name for device in self._devices]
        if len(set(names)) != len(names):
            raise InvalidArgument(f"two devices have the same name: {names}")
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        _settings.enter(options.switch_interval_us * 1e-6)
        self._old_slice_ns = set_time_slice(_slice_ns(options))
        self._wakeup.tracer = self.tracer
        self._state = "open"
        self._trim_later()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._state = "closed"
        try:
            with anyio.CancelScope(shield=True):
                await self._close()
        finally:
            _settings.leave()
            if self._wakeup.tracer is self.tracer:
                self._wakeup.tracer = None
            if self._old_slice_ns is not None:
                set_time_slice(self._old_slice_ns)
            self._tasks.cancel_scope.cancel()
            # The error of the body goes on by itself; inside the group it would become an
            # exception group, which no caller of ours expects.
            await self._tasks.__aexit__(None, None, None)

    @property
    def devices(self) -> tuple[Device, ...]:
        """The devices, in the order in which they are tried."""
        return self._devices

    def device(self, name: str) -> Device:
        """The device of that name; raises InvalidArgument and lists the names there are."""
        for device in self._devices:
            if device.name == name:
                return device
        names = ", ".join(device.name for device in self._devices)
        raise InvalidArgument(f"no device {name!r} in this runtime; there are: {names}")

    async def compile(
        self,
        model: Model,
        *,
        devices: Sequence[str | Device] | None = None,
        preference: ExecutionPreference = ExecutionPreference.FAST_SINGLE_ANSWER,
        priority: Priority = Priority.MEDIUM,
        deadline: Deadline | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        token: bytes | None = None,
        precision: str | None = None,
        preemption_quantum_ms: float | None = None,
        pin: str | None = None,
    ) -> Net:
        """Prepare a model for execution.

        `devices` limits the choice and its order breaks ties; among several, and several ways of
        one, the fastest that agrees with the reference is kept. `precision` "exact" allows only
        what is bit-stable, "bf16" also what computes floats with less than float32. `pin`, from
        `report().pin`, reproduces an earlier choice. `token` (32 bytes) names the compilation, by
        default the SHA-256 of the model. `cache_dir` and `token` serve devices with cache files;
        none here has any, as the report says. Raises InvalidArgument for a model that is not legal
        and for a pin of another model or version, MissedDeadline, ResourceExhausted, DeviceError.
        """
        self._check_open()
        if not isinstance(model, Model):
            raise InvalidArgument(f"compile takes a model, such as nn.load(path), got {model!r}")
        _check_compile_options(deadline, token, precision, preemption_quantum_ms)
        if pin is not None and not isinstance(pin, str):
            raise InvalidArgument(f"pin must be a string, as report().pin is one, got {pin!r}")
        if cache_dir is not None and not isinstance(cache_dir, (str, os.PathLike)):
            raise InvalidArgument(f"cache_dir must be a path, got {cache_dir!r}")
        preference, priority = _choice(ExecutionPreference, preference), _choice(Priority, priority)
        candidates = self._candidates(devices)
        digest = await anyio.to_thread.run_sync(fingerprint, model)
        vlog.model("compile %s: %d operations", model.name, len(model.main.operations))
        with self.tracer.mark(Layer.RUNTIME, Phase.COMPILATION, model.name):
            compilation = await compile_model(
                model,
                candidates,
                preference=preference,
                priority=priority,
                deadline=deadline,
                fingerprint=digest,
                precision=precision,
                pin=pin,
                reference=self._reference(),
                verdicts=Verdicts(self._folder / "verdicts"),
                budget_ns=int(self.options.competition_budget_ms * 1e6),
                quantum_ns=_nanoseconds(preemption_quantum_ms),
            )
        for line in compilation.report.candidates:
            vlog.compilation("%s: %s, %s: %s", model.name, line.device, line.lowering, line.verdict)
        return await self._net(compilation, deadline)

    async def _net(self, compilation: Compilation, deadline: Deadline | None) -> Net:
        if self._state != "open":
            raise BadState("the runtime was closed while the model was compiled")
        net = Net(
            compilation,
            self._workers,
            on_close=functools.partial(self._closing, compilation.prepared),
        )
        self._nets.add(net)
        left_s = READY_PATIENCE_S
        if deadline is not None:
            left_s = min(left_s, max(0, deadline.remaining_ns(now_ns())) / 1e9)
        with anyio.move_on_after(left_s):
            await anyio.to_thread.run_sync(net.get_ready, abandon_on_cancel=True)
        return net

    def statistics(self) -> RuntimeStatistics:
        """Counts and states of the workers, the memory and the loop's wake-ups.

        Raises BadState before the runtime is opened.
        """
        if self._state == "new":
            raise BadState("the runtime is not open yet; use it inside `async with`")
        return RuntimeStatistics(
            workers=self._workers.statistics(),
            memory=memory_statistics(),
            wakeups=self._wakeup.statistics().wakeups,
            nets=len(self._nets),
        )

    def _check_open(self) -> None:
        if self._state != "open":
            raise BadState(f"the runtime is not open ({self._state}); use it inside `async with`")
        if Wakeup.current() is not self._wakeup:
            raise BadState("the runtime belongs to another event loop")

    def _device(self, wanted: str | Engine | Device) -> Device:
        if isinstance(wanted, str):
            if wanted not in DRIVERS:
                raise InvalidArgument(f"no driver {wanted!r}; there are: {', '.join(DRIVERS)}")
            check_installed(wanted)
            module, _, name = DRIVERS[wanted].partition(":")
            engine: Engine = getattr(importlib.import_module(module), name)()
            figures = self._figures.get(wanted, {}) if wanted != REFERENCE else {}
            measured = calibrated(engine.capabilities, figures) if figures else None
            return EngineDevice(engine, self._workers, capabilities=measured)
        if isinstance(wanted, Engine):
            return EngineDevice(wanted, self._workers)
        return _checked_device(wanted)

    def _candidates(self, wanted: Sequence[str | Device] | None) -> Sequence[Device]:
        if wanted is None:
            # The reference is the fallback: it comes last where nothing is measured.
            return sorted(self._devices, key=lambda device: device.name == REFERENCE)
        return [
            self.device(item) if isinstance(item, str) else _checked_device(item)
            for item in _checked_list(wanted)
        ]

    def _reference(self) -> Device:
        """The device that says what is right; it runs nothing else if it is not ours to use."""
        for device in self._devices:
            if device.name == REFERENCE:
                return device
        if self._judge is None:
            self._judge = self._device(REFERENCE)
        return self._judge

    def _closing(self, prepared: PreparedModel, net: Net) -> Closing:
        fence = Fence()
        if net in self._nets and self._state == "open":
            self._nets.discard(net)
            self._tasks.start_soon(_close_prepared, prepared, fence)
        else:
            fence.signal()
        return Closing(fence)

    def _trim_later(self) -> None:
        if self._state != "open":
            return
        try:
            self._watchdog.arm(now_ns() + int(IDLE_PERIOD_S * 1e9), self._trim)
        except BadState:
            logger.debug("the runtime closes; nothing is trimmed any more")

    def _trim(self) -> None:
        for net in list(self._nets):
            net.trim()
        for device in self._devices:
            if isinstance(device, EngineDevice):
                try:
                    device.trim()
                except Exception:
                    logger.exception("%s failed to give idle memory back", device.name)
        self._trim_later()

    async def _close(self) -> None:
        for net in list(self._nets):
            net.close()
        self._nets.clear()
        self._workers.close()
        for device in self._devices:
            try:
                await device.close()
            except Exception:
                logger.exception("closing %s failed", device.name)
        running = await anyio.to_thread.run_sync(self._workers.join, CLOSE_GRACE_S)
        await anyio.to_thread.run_sync(self._watchdog.close)
        if running:
            logger.warning("%d executions still run on a device that does not stop", running)


async def _close_prepared(prepared: PreparedModel, fence: Fence) -> None:
    try:
        await prepared.close()
        fence.signal()
    except Exception as error:
        fence.fail(contained(error, "closing a prepared model"))
    finally:
        # Final already, unless the runtime was closed first.
        fence.fail(DeviceUnavailable("the runtime was closed before the network was"))


def _check_compile_options(
    deadline: Deadline | None,
    token: bytes | None,
    precision: str | None,
    preemption_quantum_ms: float | None,
) -> None:
    if deadline is not None and not isinstance(deadline, Deadline):
        raise InvalidArgument(f"deadline must be a Deadline such as nn.within(s=5): {deadline!r}")
    wanted: object = token
    if token is not None and not (
        isinstance(wanted, bytes) and len(token) == BYTE_SIZE_OF_CACHE_TOKEN
    ):
        raise InvalidArgument(f"token must be {BYTE_SIZE_OF_CACHE_TOKEN} bytes, got {token!r}")
    if precision not in (None, "exact", "bf16"):
        raise InvalidArgument(f"precision must be None, 'exact' or 'bf16', got {precision!r}")
    quantum: object = preemption_quantum_ms
    if quantum is not None and not (
        isinstance(quantum, (int, float)) and 0 < quantum < float("inf")
    ):
        raise InvalidArgument(f"preemption_quantum_ms must be above 0: {quantum!r}")


def _choice(kind: Callable[[E], E], value: E) -> E:
    try:
        return kind(value)
    except ValueError as error:
        raise InvalidArgument(str(error)) from error


def _checked_list(wanted: Any) -> Sequence[Any]:
    if isinstance(wanted, str) or not isinstance(wanted, Sequence):
        raise InvalidArgument(f"devices= takes a list, such as [{REFERENCE!r}], got {wanted!r}")
    return wanted


def _nanoseconds(milliseconds: float | None) -> int | None:
    return None if milliseconds is None else int(milliseconds * 1e6)


def _checked_device(wanted: Any) -> Device:
    if not isinstance(getattr(wanted, "name", None), str) or not hasattr(wanted, "prepare_model"):
        raise InvalidArgument(f"devices= takes names and devices of a runtime, got {wanted!r}")
    device: Device = wanted
    return device


def _slice_ns(options: Options) -> int:
    return int(options.time_slice_us * 1000)


def _settle_in(options: Options, priorities: tuple[Priority, ...]) -> None:
    """What a new worker thread does first; it inherited the time slice of whoever started it."""
    if Priority.LOW not in priorities:
        set_time_slice(_slice_ns(options))
        return
    set_time_slice(0)
    if options.low_os_priority and hasattr(os, "setpriority"):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)


class _ProcessSettings:
    """What open runtimes need of the process: one BLAS thread a call, a short switch interval."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open = 0
        self._interval_s = 0.0
        self._blas: Any = None

    def enter(self, switch_interval_s: float) -> None:
        import threadpoolctl

        with self._lock:
            self._open += 1
            if self._open > 1:
                return
            self._interval_s = sys.getswitchinterval()
            self._blas = threadpoolctl.threadpool_limits(1, user_api="blas")
            if switch_interval_s > 0:
                sys.setswitchinterval(switch_interval_s)

    def leave(self) -> None:
        with self._lock:
            self._open -= 1
            if self._open == 0:
                sys.setswitchinterval(self._interval_s)
                self._blas.restore_original_limits()


_settings = _ProcessSettings()
