"""A plan of an engine as a PreparedModel: every path of execution."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence

from nnasync.burst import BurstCallback, BurstContext, BurstServer, Channel, Outcome
from nnasync.clock import Deadline, now_ns
from nnasync.engine.binding import Binding, array_of
from nnasync.engine.contract import Plan
from nnasync.engine.launched import Launched, timing_of
from nnasync.engine.ordering import Dependencies, Gate
from nnasync.errors import (
    DeviceUnavailable,
    InvalidArgument,
    NNError,
    OutputInsufficientSize,
)
from nnasync.fences import Fence
from nnasync.hal import (
    DEFAULT_LOOP_TIMEOUT_NS,
    ExecutionResult,
    Model,
    Operand,
    OutputShape,
    Priority,
    Request,
    Timing,
    byte_size,
    is_fully_specified,
)
from nnasync.scheduler import NEVER_NS, Estimate
from nnasync.validation import validate_request
from nnasync.wakeup import yield_now
from nnasync.workers import Task, Workers, contained

__all__ = ["LAUNCH_INLINE_NS", "EnginePreparedModel"]

LAUNCH_INLINE_NS = 50_000
"""A launch runs on the caller's thread only what is cheaper than waking another thread."""


class EnginePreparedModel:
    """A plan of an engine as a PreparedModel."""

    def __init__(
        self,
        model: Model,
        plan: Plan,
        workers: Workers,
        *,
        priority: Priority,
        concurrency: int,
        name: str,
    ) -> None:
        self._workers = workers
        self._model = model
        self._plan = plan
        self._priority = priority
        self._estimate = Estimate()
        self._gate = Gate(workers, concurrency)
        self._name = name
        self._bindings: dict[int, Binding] = {}
        self._shapes = self._static_shapes()
        self._result = ExecutionResult(self._shapes)
        self._samples_at_trim = 0
        self._bursts = 0
        self._closed = False

    @property
    def estimate(self) -> Estimate:
        """What one execution is expected to take."""
        return self._estimate

    async def execute(
        self,
        request: Request,
        *,
        measure: bool = False,
        deadline: Deadline | None = None,
        loop_timeout_ns: int = DEFAULT_LOOP_TIMEOUT_NS,
    ) -> ExecutionResult:
        """Run on a worker."""
        binding = self._binding(request)
        task = self._task(binding, _at_ns(deadline))
        self._gate.submit(task, held=False)
        try:
            await task.fence
        finally:
            if not task.fence.done:
                self._workers.abandon(task)
        return self._outcome(task, measure=measure)

    async def execute_synchronously(
        self,
        request: Request,
        *,
        measure: bool = False,
        deadline: Deadline | None = None,
        loop_timeout_ns: int = DEFAULT_LOOP_TIMEOUT_NS,
    ) -> ExecutionResult:
        """Run on the calling thread if that is cheaper than a worker, else on a worker."""
        workers, estimate = self._workers, self._estimate
        if self._inlines(estimate.ns):
            while workers.turn_is_spent(estimate):
                turn = workers.turn
                await yield_now()
                workers.turned(turn)
            if self._inlines(estimate.ns):
                return self._run_inline(request, measure=measure, deadline_ns=_at_ns(deadline))
        return await self.execute(request, measure=measure, deadline=deadline)

    async def execute_fenced(
        self,
        request: Request,
        wait_for: Sequence[Fence] = (),
        *,
        measure: bool = False,
        deadline: Deadline | None = None,
        loop_timeout_ns: int = DEFAULT_LOOP_TIMEOUT_NS,
        duration_ns: int | None = None,
    ) -> Launched:
        """Launch behind fences; what is ready and cheaper than a hop has run on return."""
        if not all(is_fully_specified(o.type, o.dimensions) for o in self._outputs(request)):
            raise InvalidArgument(f"{self._name}: a fenced execution needs fully specified outputs")
        task = self._task(self._binding(request), _at_ns(deadline))
        launched = Launched(task, self._workers, measure=measure)
        pending = [fence for fence in wait_for if not fence.done or fence.error is not None]
        if pending:
            self._workers.hold(task)
            waits = Dependencies(task, len(pending), self._gate, self._workers, duration_ns)
            for fence in pending:
                fence.add_callback(waits.met)
            return launched
        if duration_ns is not None:
            task.deadline_ns = min(task.deadline_ns, now_ns() + duration_ns)
        if self._inlines_now(LAUNCH_INLINE_NS):
            self._run_task_inline(task)
        else:
            self._gate.submit(task, held=False)
        return launched

    async def configure_execution_burst(
        self, callback: BurstCallback, request_channel: Channel, result_channel: Channel
    ) -> BurstContext:
        """Serve a burst; the device is in its fast state until it is closed."""
        self._check_open()
        server = BurstServer(self._begin, callback, result_channel)
        request_channel.listen(server.receive)
        self._bursts += 1
        self._workers.heat()
        return _BurstContext(server, self._burst_closed)

    def _burst_closed(self) -> None:
        self._bursts -= 1
        self._workers.cool()

    async def close(self) -> None:
        """Give the bindings and the plan's scratch back."""
        self._closed = True
        self._bindings.clear()
        self._plan.trim()

    def trim(self) -> None:
        """Give scratch back that was not used since the last call; an open burst keeps it."""
        samples = self._estimate.samples
        if samples == self._samples_at_trim and not self._bursts:
            self._plan.trim()
        self._samples_at_trim = samples

    # -- binding requests

    def _binding(self, request: Request) -> Binding:
        binding = self._bindings.get(id(request))
        return self._bind(request) if binding is None else binding

    def _bind(self, request: Request) -> Binding:
        self._check_open()
        validate_request(self._model, request, unspecified_outputs=True)
        main = self._model.main
        inputs = [
            None if argument.has_no_value else array_of(request, argument, main.operands[index])
            for argument, index in zip(request.inputs, main.input_indexes, strict=True)
        ]
        self._check_sizes(request)
        outputs = [
            array_of(request, argument, main.operands[index])
            for argument, index in zip(request.outputs, main.output_indexes, strict=True)
        ]
        try:
            binding = Binding(self._plan, inputs, outputs)
        except Exception as error:
            failure = contained(error, self._name)
            raise failure from failure.__cause__
        key, bindings = id(request), self._bindings
        binding.reference = weakref.ref(request, lambda _: bindings.pop(key, None))
        bindings[key] = binding
        return binding

    def _check_sizes(self, request: Request) -> None:
        sufficient = [
            argument.location.length >= byte_size(operand.type, operand.dimensions)
            for argument, operand in zip(request.outputs, self._outputs(request), strict=True)
        ]
        if not all(sufficient):
            shapes = tuple(
                OutputShape(shape.dimensions, fits)
                for shape, fits in zip(self._shapes, sufficient, strict=True)
            )
            raise OutputInsufficientSize(
                f"{self._name}: the buffer of output {sufficient.index(False)} is too small", shapes
            )

    def _outputs(self, request: Request) -> list[Operand]:
        main = self._model.main
        return [main.operands[index] for index in main.output_indexes]

    def _static_shapes(self) -> tuple[OutputShape, ...]:
        main = self._model.main
        return tuple(OutputShape(main.operands[i].dimensions) for i in main.output_indexes)

    # -- running

    def _check_open(self) -> None:
        if self._closed:
            raise DeviceUnavailable(f"{self._name} is closed")

    def _inlines(self, budget_ns: float) -> bool:
        return (
            not self._closed
            and self._gate.is_free
            and self._workers.may_inline(self._priority, self._estimate, budget_ns)
        )

    def _inlines_now(self, budget_ns: float) -> bool:
        return self._inlines(budget_ns) and not self._workers.turn_is_spent(self._estimate)

    def _run_inline(self, request: Request, *, measure: bool, deadline_ns: int) -> ExecutionResult:
        entered_ns = now_ns() if measure else 0
        binding = self._bindings.get(id(request)) or self._bind(request)
        call = binding.take()
        try:
            device_ns = self._workers.run_inline(call, self._estimate, deadline_ns, self._name)
        finally:
            binding.give_back(call)
        if not measure:
            return self._result
        return ExecutionResult(self._shapes, Timing(device_ns, now_ns() - entered_ns))

    def _run_task_inline(self, task: Task) -> None:
        task.ready_ns = task.started_ns = now_ns()
        error: NNError | None = None
        try:
            self._workers.run_inline(task.call, self._estimate, task.deadline_ns, self._name)
        except NNError as failure:
            error = failure
        task.finished_ns = now_ns()
        task.finished = True
        if error is None:
            task.fence.signal()
        else:
            task.fence.fail(error)
        task.release()

    def _task(self, binding: Binding, deadline_ns: int) -> Task:
        self._check_open()
        call = binding.take()
        task = Task(call, self._priority, self._estimate, deadline_ns, self._name)
        task.when_released(lambda: binding.give_back(call))
        return task

    def _outcome(self, task: Task, *, measure: bool) -> ExecutionResult:
        if not measure:
            return self._result
        return ExecutionResult(self._shapes, timing_of(task, task.launched_ns))

    def _begin(
        self,
        request: Request,
        *,
        measure: bool,
        deadline_ns: int,
        behind: Fence | None,
        reply: Callable[[Outcome], None],
        release: Callable[[], None],
    ) -> Callable[[], None] | None:
        """Begin one execution of a burst."""
        is_next = behind is None or behind.done
        if is_next and self._inlines_now(self._estimate.ns):
            reply(self._run_inline(request, measure=measure, deadline_ns=deadline_ns))
            release()
            return None
        task = self._task(self._binding(request), deadline_ns)

        def answer(fence: Fence) -> None:
            error = fence.error
            reply(
                contained(error, self._name)
                if error is not None
                else self._outcome(task, measure=measure)
            )

        task.fence.add_callback(answer)
        task.when_released(release)
        if behind is None or is_next:
            try:
                self._gate.submit(task, held=False)
            except NNError as error:
                task.fence.fail(error)
                task.release()
        else:
            self._workers.hold(task)
            behind.add_callback(Dependencies(task, 1, self._gate, self._workers, None).met)
        return lambda: self._workers.abandon(task)


class _BurstContext:
    """A served burst (IBurstContext)."""

    def __init__(self, server: BurstServer, closed: Callable[[], None]) -> None:
        self._server = server
        self._closed: Callable[[], None] | None = closed

    def free_memory(self, slot: int) -> None:
        self._server.free_memory(slot)

    def close(self) -> None:
        closed, self._closed = self._closed, None
        if closed is not None:
            self._server.close()
            closed()


def _at_ns(deadline: Deadline | None) -> int:
    return NEVER_NS if deadline is None else deadline.at_ns
