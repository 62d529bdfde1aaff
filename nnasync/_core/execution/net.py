"""A compiled network: call it, launch it, or open a burst on it."""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, Self

import msgspec
import numpy as np

from nnasync._core.clock import Deadline
from nnasync._core.compilation import Compilation, Fallback, Report, devices_of
from nnasync._core.deferred import deferred
from nnasync._core.execution.depth_limit import OnFull
from nnasync._core.execution.launch import Execution, fenced
from nnasync._core.execution.launch_arguments import (
    all_met,
    config_of,
    fences_of,
    launch_config,
    spread,
)
from nnasync._core.execution.measured import MeasuredCalls
from nnasync._core.execution.older_names import by_old_names, older_name
from nnasync._core.execution.placing import carried, place, placed
from nnasync._core.execution.ports import (
    Port,
    R,
    as_given,
    check_out,
    chosen,
    in_order,
    out_in_order,
    ports_of,
    quantized_values,
    real_values,
)
from nnasync._core.execution.prepared_kinds import is_inline
from nnasync._core.execution.quick_calls import quick_calls_of
from nnasync._core.execution.slots import (
    Holding,
    Lease,
    Slots,
    own_memory,
    private_memory,
)
from nnasync._core.pickling import stays_here
from nnasync._core.wakeup import Wakeup, cancellation_pending, checkpoint_if_cancelled
from nnasync._core.workers import Workers
from nnasync.device import FencedExecution, PreparedModel
from nnasync.errors import BadState, InvalidArgument, NNError
from nnasync.fences import Fence
from nnasync.hal import DEFAULT_CONFIG, Array, ExecutionConfig, Model, Priority
from nnasync.tracing.tally import Tally

if TYPE_CHECKING:
    from nnasync._core.execution import buffer, flexible, open_burst, open_launch, warming
    from nnasync._core.execution import burst as bursts
    from nnasync._core.execution.burst import Burst
    from nnasync._core.execution.flexible import FlexibleCalls
    from nnasync._core.execution.open_launch import StartTask
else:
    buffer = deferred("nnasync._core.execution.buffer")
    bursts = deferred("nnasync._core.execution.burst")
    flexible = deferred("nnasync._core.execution.flexible")
    open_burst = deferred("nnasync._core.execution.open_burst")
    open_launch = deferred("nnasync._core.execution.open_launch")
    warming = deferred("nnasync._core.execution.warming")


DEFAULT_DEPTH = 8
"""The default number of executions of a burst in flight."""


class Net(MeasuredCalls[R]):
    """A compiled network of a runtime, made by `rt.compile`.

    `await net(x)` answers with fresh arrays, `net.launch(x)` returns at once with a fence,
    `net.burst()` opens a stream. To be used on the event loop of its runtime.
    """

    def __init__(
        self,
        compilation: Compilation,
        workers: Workers,
        *,
        on_close: Callable[[Net[Any]], Fence],
        on_drop: Callable[[PreparedModel], object],
        start: StartTask,
        is_pinned: bool = False,
        priority: Priority = Priority.MEDIUM,
        tally: Callable[[Priority, str], Tally] = lambda priority, device: Tally(),
    ) -> None:
        """`start` starts tasks of the runtime; `is_pinned`: the application named the devices.

        `on_drop` is called on the loop when the network was collected without being closed. Calls
        have `priority` unless they say otherwise; `tally` gives what counts them, by priority and
        names of the devices.
        """
        self._ports = ports = ports_of(compilation.model)
        self._slots = Slots(compilation.model, ports)
        self._omitting: FlexibleCalls | None = None
        self._fell_back: tuple[Fallback, ...] = ()
        self._priority = priority
        self._tally_of = tally
        self._wakeup = Wakeup.current()
        self._use(compilation)
        self._workers = workers
        self._on_close = on_close
        self._start = start
        self._on_drop = on_drop
        self._is_pinned = is_pinned
        self._has_roles = False
        self._is_improved = Fence()
        if compilation.later is None:
            self._is_improved.signal()
        self._closed = False

    def _use(self, compilation: Compilation) -> None:
        prepared = compilation.prepared
        self._compilation = compilation
        self._note_report(compilation.report)
        self._is_urgent_call = compilation.report.cache_hit or compilation.later is not None
        self._prepared: PreparedModel = prepared
        self._inline = inline = prepared if is_inline(prepared) else None
        if inline is None:
            self._slots.serve(compilation.device)
        else:
            self._slots.serve(None, inline.check_room, inline.has_let_go)
        self._omitting = None
        self._flexible = None if self._ports.are_settled else self._flexible_calls()
        self._quick = quick_calls_of(prepared, self._slots, self._flexible, self._wakeup)

    def _flexible_calls(self) -> FlexibleCalls:
        memory = own_memory if self._inline is None else private_memory
        return flexible.FlexibleCalls(self._compilation.model, self._ports, self._prepared, memory)

    def __repr__(self) -> str:
        """Say what it takes and gives, and where it runs."""
        where = "closed" if self._closed else f"on {devices_of(self._report)}"
        return f"<Net {self._compilation.model.name!r} {where}: {self._ports}>"

    __reduce__ = stays_here

    def _repr_html_(self) -> str:
        """Return what it takes and gives and its report, for notebooks."""
        return self._ports.table(repr(self)) + self.report()._repr_html_()

    @property
    def model(self) -> Model:
        """Returns the model that was compiled."""
        return as_given(self._compilation.model)

    @property
    def inputs(self) -> tuple[Port, ...]:
        """Returns names, shapes and dtypes of the inputs; states are not among them."""
        return self._ports.inputs

    @property
    def outputs(self) -> tuple[Port, ...]:
        """Names, shapes and dtypes of the outputs; states are not among them."""
        return self._ports.outputs

    @property
    def states(self) -> tuple[Port, ...]:
        """Names, shapes and dtypes of the states that a burst carries."""
        return self._ports.state_inputs

    @property
    def labels(self) -> tuple[str, ...]:
        """Returns the names of an output's classes, where the model's file has them."""
        return self._compilation.model.labels

    @property
    def priority(self) -> Priority:
        """Returns the priority of calls that do not state another one."""
        return self._priority

    def input_role(self, which: str | int = 0) -> buffer.Role:
        """Returns an input, by name or number, as a role of a buffer that `rt.allocate` makes."""
        return self._role("input", self._ports.inputs, which)

    def output_role(self, which: str | int = 0) -> buffer.Role:
        """Returns an output, by name or number, as a role of a buffer that `rt.allocate` makes."""
        return self._role("output", self._ports.outputs, which)

    input = older_name("input", input_role)
    output = older_name("output", output_role)

    def report(self) -> Report:
        """Returns where the model runs, and why, and what fell back so far."""
        fallbacks = (*self._fell_back, *self._compilation.fallbacks())
        if not fallbacks:
            return self._report
        return msgspec.structs.replace(self._report, fallbacks=fallbacks)

    async def optimized(self) -> Report:
        """Wait until the best plan runs, where it follows the first; the report of what runs.

        Returns as well where the first plan stays since finding a better one failed, or the network
        was closed.
        """
        await self._is_improved
        return self.report()

    def _improved(self, report: Report, model: Model | None = None) -> None:
        """Note that the best plan runs, perhaps of the model in another form, or was not to be."""
        if model is not None:
            self._compilation = msgspec.structs.replace(self._compilation, model=model)
        self._note_report(report)
        self._is_improved.signal()

    def _note_report(self, report: Report) -> None:
        self._report = report
        self._tally = self._tally_of(self._priority, devices_of(report))

    def _tally_at(self, priority: Priority | None) -> Tally:
        """Returns the counts of calls of this priority.

        A call with something else as priority will fail, and is counted with those that give none.
        """
        if priority.__class__ is not Priority:
            return self._tally
        return self._tally_of(priority, devices_of(self._report))

    def _take_over(self, compilation: Compilation) -> bool:
        """Run calls from now on by another compilation of the same model.

        Running calls end on the old one. Returns False if this network is closed.
        """
        if not self._closed:
            self._fell_back = self.report().fallbacks
            self._use(compilation)
        return not self._closed

    async def __call__(
        self,
        *arrays: Any,
        deadline: Deadline | None = None,
        out: Any = None,
        priority: Priority | None = None,
    ) -> R:
        """Run once: an array, or a tuple of arrays if there are several outputs.

        Takes one value per input, or one mapping by name: whatever numpy can read, buffers, and
        images (`memory.Pool.image`), which are read in place. `out`, arrays and buffers, is written
        instead of fresh arrays: one per output, None for a fresh one, or some by name. None omits
        an optional input. Where the model leaves shapes open, the inputs bring theirs along. States
        start from zero. Without `priority` it has that of the network. Raises InvalidArgument,
        BadState, MissedDeadline, ResourceExhausted, DeviceError.
        """
        tally = self._tally if priority is None else self._tally_at(priority)
        tally.calls += 1
        try:
            quick, value = self._quick, None
            if quick is not None and out is priority is None:
                value = quick.call(arrays, deadline)
                if quick.ends_turn and value is not None:
                    await quick.next_turn()
                elif value is None and quick.goes_beside():
                    value = await quick.call_beside(arrays[0])
            if value is None:
                value = await self._call_in_full(arrays, out, deadline, priority)
            tally.completed += 1
            return value  # type: ignore[no-any-return]  # R is the application's word.
        except BaseException as error:
            tally.ended(error, deadline)
            raise

    async def _call_in_full(
        self,
        arrays: Sequence[Any],
        out: Any,
        deadline: Deadline | None,
        priority: Priority | None,
        *,
        measure: bool = False,
    ) -> Any:
        """Makes a call of any form; most are one array that fits and is cheap."""
        self._check(deadline)
        if cancellation_pending():
            await checkpoint_if_cancelled()
        config = DEFAULT_CONFIG
        if measure or deadline is not None or priority is not None:
            config = config_of(deadline, priority, measure=measure)
        slots, inline = self._slots, self._inline
        is_plain = out is None or out.__class__ is np.ndarray
        slot = slots.filled(arrays, priority) if is_plain else None
        if slot is not None:
            outs = None if out is None else check_out(self._ports.outputs, out)
            request = slot.request
            given = arrays if slots.reads_in_place else None
        else:
            given = None
            values, calls = in_order(self._ports.inputs, arrays, "input"), self._flexible
            for value in values:
                if value is None:
                    calls = self._calls_omitting()
            if calls is not None:
                value, result = await calls.call(values, out, config)
                return (value, result.timing) if measure else value
            outs = None if out is None else out_in_order(self._ports.outputs, out)
            slot, pieces = placed(slots, values, outs, self._ports, self._prepared, priority)
            request = slot.request_with(pieces)
        try:
            done = None if inline is None else inline.run_now(request, config, given)
            if done is None:
                if given is not None:
                    slot.inputs[0][...] = given[0]
                done = await self._prepared.execute_synchronously(request, config)
        except BaseException:
            slots.give_up(slot, request)
            raise
        value = slot.read(outs)
        slots.give_back(slot)
        return (value, done.timing) if measure else value

    def as_dict(self, result: R) -> dict[str, Array | Any]:
        """Returns the result of a call by the names of the outputs."""
        values: Any = result if len(self._ports.outputs) > 1 else (result,)
        return {port.name: value for port, value in zip(self.outputs, values, strict=True)}

    def quantize(self, *values: Any) -> Any:
        """Returns real values as the inputs have them: an array, or a tuple for `net(*...)`.

        Takes what a call takes, one value per input or a mapping by name, of any real type. What an
        input of floats gets becomes its type; what an input gets that stands for no real numbers,
        such as indexes, is given back as it is. Raises InvalidArgument as a call does.
        """
        return quantized_values(self._ports.inputs, values)

    def dequantize(self, result: Any) -> Any:
        """Returns the real values, float32, that the result of a call stands for.

        An array, or a tuple where there are several outputs; those that stand for no real numbers
        are given back as they are. Raises InvalidArgument for another number of values.
        """
        return real_values(self._ports.outputs, result)

    async def launch(
        self,
        *arrays: Any,
        out: Any = None,
        wait_for: Sequence[Fence | Execution] = (),
        deadline: Deadline | None = None,
        duration_s: float | None = None,
        loop_timeout_s: float | None = None,
        priority: Priority | None = None,
        measure: bool = False,
        **old: float,
    ) -> Execution:
        """Launch behind fences and return at once; outcome and outputs come through the fence.

        Takes arrays, which are copied, and regions, buffers and images, which are read in place
        when the fences are signaled; `launch(first.outputs, wait_for=[first.fence])` chains. `out`
        names buffers for outputs, as in a call. `duration_s` limits the time after the last fence,
        `loop_timeout_s` each WHILE loop; `priority` is as of a call. Raises CallerError and Refused
        only.
        """
        tally = self._tally if priority is None else self._tally_at(priority)
        tally.calls += 1
        try:
            self._check(deadline)
            if cancellation_pending():
                await checkpoint_if_cancelled()
            fences = () if wait_for == () else fences_of(wait_for)
            execution: Execution | None = None
            if old:
                duration_s, loop_timeout_s = by_old_names(old, duration_s, loop_timeout_s)
            if out is None is duration_s is loop_timeout_s:
                config = config_of(deadline, priority, measure=measure)
                execution = self._launch_now(arrays, fences, config)
            if execution is None:
                config = launch_config(
                    deadline, duration_s, loop_timeout_s, priority, measure=measure
                )
                execution = await self._launch_in_full(arrays, out, fences, config)
        except BaseException as error:
            tally.ended(error, deadline)
            raise
        tally.follow(execution.fence, deadline)
        return execution

    async def _launch_in_full(
        self,
        arrays: Sequence[Any],
        out: Any,
        fences: Sequence[Fence],
        config: ExecutionConfig,
    ) -> Execution:
        """Makes a launch of any form; most are one array that fits and is cheap."""
        values = in_order(self._ports.inputs, spread(arrays), "input")
        if self._flexible is not None:
            execution = open_launch.OpenExecution(self._flexible, values, out, config)
            execution.begin(self._start, fences, self._workers.watchdog)
            return execution
        outs = None if out is None else buffer.buffers_of(self._ports.outputs, out)
        # Both as they are now: another compilation may take over while the loop turns.
        inline, prepared = self._inline, self._prepared
        is_ready = all_met(fences)
        slot = self._slots.take(config.priority) if is_ready else self._slots.take_ahead()
        peer = None if inline is not None else self._compilation.device
        pieces, sources, copies = place(
            slot, values, outs, self._ports, prepared, is_launch=True, peer=peer
        )
        fences = carried(copies, fences) if copies else fences
        if self._workers.turns.here.is_half_spent():
            await self._workers.turns.next()
            is_ready = is_ready or all_met(fences)
        request = slot.request_with(pieces)
        launched: FencedExecution | None = None
        if inline is not None and config.duration_ns is None and is_ready:
            launched = inline.launch_now(request, config)
        if launched is None:
            launched = await fenced(prepared, request, fences, config)
        fence = launched.fence
        if outs is not None:
            fence.add_callback(buffer.BufferWrite(self._ports.outputs, outs))
        self._hold(sources, fence)
        return Execution(launched, Lease(self._slots, slot, fence), self._ports.outputs, outs)

    def _hold(self, sources: Sequence[Any], fence: Fence) -> None:
        """Keep what an execution reads, and this network, until its fence is final."""
        if fence.done:
            return
        for source in sources:
            if isinstance(source, Lease):
                source.read_until(fence)
        fence.add_callback(Holding((self, *sources)))

    def _launch_now(
        self, arrays: Sequence[Any], fences: Sequence[Fence], config: ExecutionConfig
    ) -> Execution | None:
        """Launch what waits for nothing, and is cheap, on one array that fits; else None."""
        if self._inline is None or self._slots.reads_in_place or not all_met(fences):
            return None
        if self._workers.turns.here.is_half_spent():
            return None
        slot = self._slots.filled(arrays, config.priority)
        if slot is None:
            return None
        launched = self._inline.launch_now(slot.request, config)
        if launched is None:
            self._slots.give_back(slot)
            return None
        return Execution(launched, Lease(self._slots, slot, launched.fence), self._ports.outputs)

    def burst(
        self,
        *,
        depth: int = DEFAULT_DEPTH,
        on_full: OnFull = "wait",
        priority: Priority | None = None,
    ) -> Burst[R]:
        """Returns a stream of executions, for `async with`; at most `depth` are in flight.

        A call beyond that waits for its turn; with `on_full="refuse"` it raises
        ResourceExhaustedTransient. Its calls have `priority`, or that of the network, unless they
        say otherwise.
        """
        self._check(None)
        make: Callable[..., Burst[R]] = bursts.Burst
        if self._flexible is not None:
            open_shapes: Callable[..., Burst[R]] = open_burst.FlexibleBurst
            make = functools.partial(open_shapes, self._flexible)
        return make(
            self._compilation.model,
            self._ports,
            self._prepared,
            self._workers,
            depth=depth,
            on_full=on_full,
            owner=self,
            priority=priority,
            tally=self._tally_at,
            device=None if self._inline else self._compilation.device,
            memory=private_memory if self._inline else own_memory,
        )

    def _get_ready(self) -> None:
        """Bind the memory of the first call in advance, so that it is as fast as later calls.

        Called on any thread before the network is used. A failure is raised by the first call.
        """
        if self._inline is None or self._flexible is not None:
            return
        slot = self._slots.take()
        with contextlib.suppress(NNError):
            # There the first answer counts, not how it compares with later ones.
            self._inline.bind(slot.request, tries=not self._is_urgent_call)
        self._slots.give_back(slot)

    async def warm_up(self, *arrays: Any, runs: int = 8, priority: Priority | None = None) -> None:
        """Make `runs` calls ahead, one in each turn of the loop, so that none later is cold.

        With these inputs as of a call; without any, with zeros, which needs known shapes. The
        network's metrics do not count them. Where a better plan may still follow, wait for that
        first: `await net.optimized()`. Raises what a call raises; InvalidArgument for open shapes.
        """
        turn = self._workers.turns.next
        call = functools.partial(self._uncounted, priority)
        await warming.warm_up(call, arrays, self.inputs, runs, turn)

    async def _uncounted(self, priority: Priority | None, *arrays: Any) -> None:
        """Call on the way that the application's calls will take."""
        self._check(None)
        quick = self._quick
        if quick is None or priority is not None or quick.call(arrays, None) is None:
            await self._call_in_full(arrays, None, None, priority)

    async def _warm_up(self, until: Deadline | None = None) -> None:
        """Make a few calls ahead, where that costs little; `compile` does."""
        if self._inline is None or self._flexible is not None or self._is_urgent_call:
            return
        tally_of, self._tally, self._tally_of = self._tally_of, Tally(), lambda *_: Tally()
        inline, lane = self._inline, self._workers.inline
        try:
            await warming.warm_up_when_compiled(self, self.inputs, inline, lane, until)
        except NNError:
            pass
        except BaseException:
            self.close()
            raise
        finally:
            self._tally_of = tally_of
            self._note_report(self._report)

    def close(self) -> Fence:
        """Close the network at once; await it to wait until all calls in flight are answered."""
        self._closed = True
        self._is_improved.signal()
        self._quick = None
        self._slots.close()
        for calls in (self._flexible, self._omitting):
            if calls is not None:
                calls.close()
        return self._on_close(self)

    async def aclose(self) -> None:
        """Close the network, and wait until what was in flight is answered."""
        await self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.aclose()

    def __del__(self) -> None:
        # Not before the end of __init__; and on whatever thread collects, amidst anything.
        if getattr(self, "_closed", True):
            return
        self._closed = True
        try:
            warnings.warn(
                f"network {self.model.name!r} was dropped without being closed: call close(), or "
                "keep it for as long as its runtime is open",
                ResourceWarning,
                stacklevel=2,
                source=self,
            )
        finally:
            # Behind the warning: who sees that the network is closed may look for that.
            self._wakeup.post(functools.partial(self._on_drop, self._prepared))

    def _check(self, deadline: Deadline | None) -> None:
        if self._closed:
            raise BadState("the network is closed")
        if not self._wakeup.is_current():
            raise BadState("the network belongs to the event loop of its runtime, not to this one")
        if deadline is not None and deadline.__class__ is not Deadline:
            raise InvalidArgument(
                f"deadline must be a Deadline such as nn.within(ms=20), got {deadline!r}"
            )

    def _calls_omitting(self) -> FlexibleCalls:
        """Returns what executes calls that omit an input."""
        if self._flexible is not None:
            return self._flexible
        if self._omitting is None:
            self._omitting = self._flexible_calls()
        return self._omitting

    def _role(
        self, kind: Literal["input", "output"], ports: Sequence[Port], which: str | int
    ) -> buffer.Role:
        self._check(None)
        self._has_roles = True
        port, compilation = chosen(ports, which, kind), self._compilation
        return buffer.Role(
            compilation.device,
            compilation.prepared,
            compilation.model,
            kind,
            port,
            self._is_pinned,
        )
