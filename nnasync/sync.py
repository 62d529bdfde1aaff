"""Networks for programs without an event loop: the same calls, which block.

    with nn.sync.open_runtime() as rt, rt.compile("model.tflite") as net:
        scores = net(picture)

The runtime lives on an event loop in a thread of its own, so a call costs two switches of threads
more than `await net(x)`, some tens of microseconds. Every method may be called from any thread, and
several at once: their calls run as those of several tasks do. Who has an event loop, or wants one
call to wait for another without a thread, is better served by `nnasync` itself.
"""

from __future__ import annotations

import functools
import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import ExitStack, contextmanager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self

from anyio.from_thread import BlockingPortal, start_blocking_portal

from nnasync._core.execution.ports import Port, R
from nnasync._core.pickling import stays_here
from nnasync._core.runtime import CompileOptions, Options, RuntimeStatistics
from nnasync._core.runtime import open_runtime as open_async_runtime
from nnasync._core.runtime.event_loop import loop_factory
from nnasync._core.wakeup import INHERITED
from nnasync.errors import BadState, Cancelled
from nnasync.hal import Array, Priority

if TYPE_CHECKING:
    from nnasync._core.clock import Deadline
    from nnasync._core.compilation import Report
    from nnasync._core.execution import Burst, Net
    from nnasync._core.runtime import Runtime
    from nnasync.device import Device
    from nnasync.engine import Engine
    from nnasync.hal import Model
    from nnasync.scheduler import Policy
    from nnasync.tracing import Instrument

__all__ = ["BlockingBurst", "BlockingNet", "BlockingRuntime", "open_runtime"]


def open_runtime(
    *,
    devices: Sequence[str | Engine | Device] | None = None,
    isolate: Sequence[str] = (),
    options: Options | None = None,
    instruments: Sequence[Instrument] = (),
    policy: str | Policy | None = None,
) -> BlockingRuntime:
    """Returns a runtime, to be used with `with`; parameters as `nnasync.open_runtime` has them."""
    return BlockingRuntime(
        functools.partial(
            open_async_runtime,
            devices=devices,
            isolate=isolate,
            options=options,
            instruments=instruments,
            policy=policy,
        )
    )


class _Loop:
    """The event loop of a runtime, which runs in a thread of its own."""

    def __init__(self, portal: BlockingPortal) -> None:
        self.portal = portal
        self.is_inherited = False
        _loops.add(self)

    def leave_to_parent(self) -> None:
        """Have nothing wait for it: this is a child of its process, without its thread."""
        self.is_inherited = True
        # So a portal knows that its loop has ended; else its end would wait for the thread.
        self.portal._event_loop_thread_id = None

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Returns what a function, or what it gives to await, returns there.

        Ctrl-C ends the wait and cancels it. Raises BadState where the loop is at its end, in its
        own thread, and in a process that was forked from its own; and Cancelled where its end comes
        while it is waited for.
        """
        if self.is_inherited:
            raise BadState(INHERITED)
        try:
            future = self.portal.start_task_soon(function, *args)
        except RuntimeError as error:
            is_closed = self.portal._event_loop_thread_id is None
            raise BadState(
                "the runtime is closed"
                if is_closed
                else "this is the thread of the runtime's loop, which must not wait"
            ) from error
        try:
            return future.result()
        except CancelledError as error:
            raise Cancelled("the runtime was closed meanwhile") from error
        except BaseException:
            future.cancel()
            raise

    def end(self) -> None:
        """Cancel what is still open, such as bursts, and stop."""
        self.call(self.portal.stop, True)


_loops: weakref.WeakSet[_Loop] = weakref.WeakSet()


def _leave_all_to_parent() -> None:
    for loop in list(_loops):
        loop.leave_to_parent()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_all_to_parent)


class BlockingRuntime:
    """A runtime whose methods block; made by `open_runtime`, to be used with `with`."""

    def __init__(self, make: Callable[[], Runtime]) -> None:
        self._make = make
        self._open: tuple[_Loop, Runtime] | None = None

    __reduce__ = stays_here

    def __enter__(self) -> Self:
        if self._open is not None:
            raise BadState("the runtime is open already; make another with open_runtime()")
        with ExitStack() as stack:
            portal = stack.enter_context(
                start_blocking_portal(backend_options={"loop_factory": loop_factory()})
            )
            loop = _Loop(portal)
            stack.callback(loop.end)
            runtime = stack.enter_context(portal.wrap_async_context_manager(self._make()))
            self._open = loop, runtime
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        open_here, self._open = self._open, None
        if open_here is not None and not open_here[0].is_inherited:
            self._stack.__exit__(kind, error, traceback)

    def __repr__(self) -> str:
        """Say what the runtime says of itself, or that it is not open."""
        return "<BlockingRuntime: not open>" if self._open is None else repr(self._open[1])

    def _repr_html_(self) -> str | None:
        """Return what the runtime says of itself, for notebooks; None where it is not open."""
        return None if self._open is None else self._open[1]._repr_html_()

    def compile(
        self,
        model: Model | str | os.PathLike[str],
        *,
        devices: Sequence[str | Device] | None = None,
        priority: Priority = Priority.MEDIUM,
        deadline: Deadline | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        precision: str | None = None,
        name: str | None = None,
        io: str | None = None,
        options: CompileOptions | None = None,
    ) -> BlockingNet[R]:
        """Prepare a model, or the model in a file, for execution; see `Runtime.compile`.

        Raises BadState where the runtime is not open, and what the other one raises.
        """
        loop, runtime = self._here()

        async def work() -> Net[R]:
            return await runtime.compile(
                model,
                devices=devices,
                priority=priority,
                deadline=deadline,
                cache_dir=cache_dir,
                precision=precision,
                name=name,
                io=io,
                options=options,
            )

        return BlockingNet(loop, loop.call(work))

    def statistics(self) -> RuntimeStatistics:
        """Counts and states of the workers, the memory and the loop's wake-ups."""
        loop, runtime = self._here()
        statistics: RuntimeStatistics = loop.call(runtime.statistics)
        return statistics

    @property
    def devices(self) -> tuple[str, ...]:
        """Names of the devices, in the order in which they are tried."""
        return tuple(device.name for device in self._here()[1].devices)

    def _here(self) -> tuple[_Loop, Runtime]:
        if self._open is None:
            raise BadState("the runtime is not open; use it inside `with`")
        return self._open


class _Blocking(Generic[R]):
    """Calls of something asynchronous, made on the loop of its runtime."""

    def __init__(self, loop: _Loop, inner: Net[R] | Burst[R]) -> None:
        self._loop = loop
        self._inner: Any = inner

    def __call__(
        self,
        *arrays: Any,
        deadline: Deadline | None = None,
        out: Any = None,
        priority: Priority | None = None,
    ) -> R:
        """Run once, and wait for the result; see `Net.__call__`.

        Ctrl-C ends the wait and cancels the call. Raises BadState where the runtime is closed.
        """
        call = functools.partial(
            self._inner, *arrays, deadline=deadline, out=out, priority=priority
        )
        result: R = self._loop.call(call)
        return result

    __reduce__ = stays_here

    def __repr__(self) -> str:
        """Say what it says of itself."""
        return repr(self._inner)

    def _repr_html_(self) -> str:
        """Return what it says of itself, for notebooks."""
        told: str = self._inner._repr_html_()
        return told


class BlockingBurst(_Blocking[R]):
    """A burst whose calls block; made by `BlockingNet.burst`, in a `with` block."""

    def state(self) -> dict[str, Array]:
        """Copies of the stream's state, by the names of its state inputs; {} without any."""
        found: dict[str, Array] = self._loop.call(self._inner.state)
        return found

    def load_state(self, values: Mapping[str, Any]) -> None:
        """Set the stream's state; every state must be given. Raises InvalidArgument, BadState."""
        self._loop.call(self._inner.load_state, values)

    def reset(self) -> None:
        """Set the state to zeroes, as at the beginning of the stream."""
        self._loop.call(self._inner.reset)


class BlockingNet(_Blocking[R]):
    """A compiled network whose calls block; made by `BlockingRuntime.compile`.

    A `with` block closes it at its end; otherwise the end of the runtime does.
    """

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of what it holds, and wait for the end of calls that run."""
        if not self._loop.is_inherited:
            self._loop.call(self._inner.aclose)

    @contextmanager
    def burst(
        self, *, depth: int = 8, priority: Priority | None = None
    ) -> Iterator[BlockingBurst[R]]:
        """A burst, to be used with `with`: a stream of calls, with the model's states."""
        loop = self._loop
        inner = loop.call(functools.partial(self._inner.burst, depth=depth, priority=priority))
        context = loop.portal.wrap_async_context_manager(inner)
        context.__enter__()
        try:
            yield BlockingBurst(loop, inner)
        finally:
            # Where the runtime is closed already, its end has closed the burst.
            with suppress(RuntimeError, CancelledError):
                if not loop.is_inherited:
                    context.__exit__(None, None, None)

    def optimized(self) -> Report:
        """Wait until the best plan runs; the report of what runs."""
        report: Report = self._loop.call(self._inner.optimized)
        return report

    def warm_up(self, *arrays: Any, runs: int = 8) -> None:
        """Make `runs` calls ahead, so that no later one finds it cold; see `Net.warm_up`."""
        self._loop.call(functools.partial(self._inner.warm_up, *arrays, runs=runs))

    def report(self) -> Report:
        """Returns where the model runs, and why, and what fell back so far."""
        report: Report = self._loop.call(self._inner.report)
        return report

    @property
    def inputs(self) -> tuple[Port, ...]:
        """Names, shapes and dtypes of the inputs."""
        ports: tuple[Port, ...] = self._inner.inputs
        return ports

    @property
    def outputs(self) -> tuple[Port, ...]:
        """Names, shapes and dtypes of the outputs."""
        ports: tuple[Port, ...] = self._inner.outputs
        return ports

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the classes that an output stands for, where the model's file has them."""
        labels: tuple[str, ...] = self._inner.labels
        return labels

    def as_dict(self, result: R) -> Mapping[str, Any]:
        """The result of a call by the names of the outputs."""
        named: Mapping[str, Any] = self._inner.as_dict(result)
        return named

    def quantize(self, *values: Any) -> Any:
        """Real values as the inputs have them; see `Net.quantize`."""
        return self._inner.quantize(*values)

    def dequantize(self, result: Any) -> Any:
        """The result of a call as the real values that it stands for; see `Net.dequantize`."""
        return self._inner.dequantize(result)
