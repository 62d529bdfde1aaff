"""A plan of an engine as a PreparedModel: every path of execution."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from nnasync._core.clock import Deadline, now_ns
from nnasync._core.deferred import deferred
from nnasync._core.device_helpers import begun_at
from nnasync._core.engine_device.binding import Binding, SizedCall
from nnasync._core.engine_device.bindings import Bindings
from nnasync._core.engine_device.engine_burst import EngineBurst, EngineBurstContext
from nnasync._core.engine_device.fast_state import FastState
from nnasync._core.engine_device.gates import ConcurrencyGate, Dependencies
from nnasync._core.engine_device.launched import Done, Launched, timing_of
from nnasync._core.engine_device.plan_users import Level, PlanTerms, PlanUsers, has_loops
from nnasync._core.engine_device.quick_run import QuickRun
from nnasync._core.plans.guarded import Health
from nnasync._core.plans.staged import StagedPlan, bare
from nnasync._core.workers import Call, Task, Workers, contained
from nnasync._core.workers.admission import NEXT_TURN, RUN, SPREAD, WORKER, Admission
from nnasync.engine.contract import Plan
from nnasync.errors import (
    DeviceError,
    DeviceUnavailable,
    InvalidArgument,
    MissedDeadlineTransient,
    NNError,
    because,
)
from nnasync.fences import Fence, signaled
from nnasync.hal import (
    DEFAULT_CONFIG,
    Array,
    ExecutionConfig,
    ExecutionResult,
    Model,
    Operand,
    OutputShape,
    Priority,
    Request,
    Timing,
    is_fully_specified,
)
from nnasync.scheduler import NEVER_NS, Estimate, Job
from nnasync.tracing import vlog

if TYPE_CHECKING:
    from nnasync import burst as bursts
    from nnasync._core.engine_device import tokens, warmup
    from nnasync._core.engine_device.buffers import Buffers
    from nnasync.burst import BurstCallback, BurstContext, Channel, Outcome
else:
    bursts = deferred("nnasync.burst")
    warmup = deferred("nnasync._core.engine_device.warmup")
    tokens = deferred("nnasync._core.engine_device.tokens")


class EnginePreparedModel:
    """A plan of an engine as a PreparedModel.

    Executions take one of three ways: on the thread of the caller (`run_now`, and `quick_run` with
    less around it), on a worker (`execute`), or on whichever of both is free first, beside others
    that are under way (`execute_beside`). `execute_synchronously` chooses among them.
    """

    def __init__(
        self,
        model: Model,
        plan: Plan,
        workers: Workers,
        *,
        priority: Priority,
        terms: PlanTerms,
        health: Health | None = None,
        tries_ahead: bool = False,
        buffers: Callable[[], Buffers | None] = lambda: None,
    ) -> None:
        """`health` is that of a plan that falls back: while it is bad nothing runs inline.

        With `tries_ahead` it may run before its first execution though nobody has measured it.
        `buffers` gives those of its device, if it has allocated any.
        """
        self._workers = workers
        self._health = health
        self._model = model
        self._tries_ahead = tries_ahead
        self._gate = ConcurrencyGate(workers, terms.concurrency)
        self._buffers = buffers
        self.shapes = tuple(OutputShape(operand.dimensions) for operand in self._outputs())
        self._result = ExecutionResult(self.shapes)
        # How long a loop takes depends on its data: it never holds the thread of a caller.
        self.runs_here = terms.runs_inline and not has_loops(model)
        self._inline = workers.inline
        self._settled = all(
            is_fully_specified(operand.type, operand.dimensions) for operand in self._outputs()
        )
        self._users = PlanUsers(model.name, terms)
        self._begin_anew(plan, priority, Estimate())

    def _begin_anew(self, plan: Plan, priority: Priority, estimate: Estimate) -> None:
        """Initializes the parts that prepared models of one plan do not share."""
        self.usual = Level(priority, estimate)
        self.by_priority = {priority: self.usual}
        """What is known of executions of each priority; their tasks are known by this owner."""
        self._most_urgent = Priority.HIGH
        self._bindings = Bindings(
            self, self._model, plan, users=self._users, shapes=self.shapes, buffers=self._buffers
        )
        self._runs_at_trim = 0
        self._fast_states: list[FastState] = []
        self.is_counted = True
        """Whether executions are the application's, which statistics count."""
        self.client = 0
        """The client that owns these executions, by its number; set before the first execution."""
        self._users.join(self)
        self._workers.expect(priority, self)

    def twin(self, priority: Priority) -> EnginePreparedModel:
        """Returns another prepared model of the same plan, of another priority; closed on its own.

        It begins with what this one has learnt of the runs. Raises DeviceUnavailable when closed.
        """
        plan = self._bindings.open_plan()
        twin = copy.copy(self)
        twin._begin_anew(plan, priority, self.estimate.copy())
        return twin

    def change_terms(self, terms: PlanTerms) -> None:
        """Has executions keep to the terms of a plan, before it takes over; from any thread.

        Those that are under way do not count for its limit (see `plans.limited`).
        """
        self._users.change_terms(terms)
        self._gate.limit_to(terms.concurrency)

    @property
    def model(self) -> Model:
        """Returns the model that was prepared."""
        return self._model

    @property
    def estimate(self) -> Estimate:
        """Returns the estimate for executions of its own priority."""
        return self.usual.estimate

    @property
    def levels(self) -> list[Level]:
        """Returns the estimates of all priorities that were used, most urgent first."""
        return sorted(self.by_priority.values(), key=lambda level: -level.priority)

    @property
    def priority(self) -> Priority:
        """Returns the priority of executions that do not state another one."""
        return self.usual.priority

    def limit(self, most_urgent: Priority) -> None:
        """Limits the priority of executions to this one, whatever is asked for."""
        self._most_urgent = most_urgent
        self.usual = self._level(min(self.usual.priority, most_urgent))

    async def execute(
        self, request: Request, config: ExecutionConfig = DEFAULT_CONFIG
    ) -> ExecutionResult:
        """Runs on a worker."""
        return await self._on_worker(request, config)

    async def _on_worker(
        self, request: Request, config: ExecutionConfig, *, is_spread: bool = False
    ) -> ExecutionResult:
        """Runs on a worker, or where it `is_spread` perhaps on the thread of a loop."""
        binding = self._bindings.get(id(request)) or self._bindings.bind(request)
        task = self._task(binding, config)
        task.is_spread = is_spread and self._workers.loop_share.arm()
        self._gate.submit_for_loop(task)
        self._inline.beside += is_spread
        try:
            await task.fence
        except DeviceError:
            # On the thread of a loop nothing falls back on what stands by: a worker repeats it.
            if not task.is_spread or self._health is None or not self._health.suspects:
                raise
            return await self._on_worker(request, config)
        finally:
            self._inline.beside -= is_spread
            if not task.fence.done:
                self._workers.abandon(task)
        return self._outcome(task, measure=config.measure)

    def execute_beside(
        self, request: Request, config: ExecutionConfig = DEFAULT_CONFIG
    ) -> Awaitable[ExecutionResult]:
        """Runs beside others, on whichever thread is free first: a worker, or this one."""
        return self._on_worker(request, config, is_spread=True)

    async def execute_synchronously(
        self, request: Request, config: ExecutionConfig = DEFAULT_CONFIG
    ) -> ExecutionResult:
        """Runs on the calling thread if that is cheaper than a worker, else on a worker."""
        level = self.usual if config.priority is None else self._level(config.priority)
        admission = self._admission(level, deadline_ns=config.deadline_ns)
        if admission is NEXT_TURN:
            needed_ns = level.estimate.best_ns
            await self._workers.turns.wait(level.priority, needed_ns, config.deadline_ns)
            admission = self._admission(level, deadline_ns=config.deadline_ns, arrives=False)
        inline = admission in (RUN, NEXT_TURN) and self._gate.try_enter()
        if inline and (result := self._run_inline(request, config, level)) is not None:
            return result
        run = self.execute_beside if admission is SPREAD else self._on_worker
        return await run(request, config)

    def check_room(self, priority: Priority | None = None, deadline_ns: int = NEVER_NS) -> None:
        """Raises Refused if an execution would find the queue full, or could not end in time.

        Nothing is said where executions are so short that they do not go there.
        """
        level = self.usual if priority is None else self._level(priority)
        if self._admission(level, arrives=False) not in (RUN, NEXT_TURN):
            self._workers.check_room(Job(level.priority, level.estimate, deadline_ns, self.client))

    def has_let_go(self, request: Request) -> bool:
        """Returns whether no execution of this request is under way; for executed requests."""
        binding = self._bindings.get(id(request))
        return binding is None or binding.is_free

    def bind(self, request: Request, *, tries: bool = True) -> None:
        """Binds a request before its first execution, and runs it once as a trial.

        The trial reads arbitrary data from its memory, so its failure means nothing. A plan that
        nobody has measured is tried, and measured, where its engine `tries_ahead`.
        """
        binding = self._bindings.of(request)
        is_known = self.estimate.samples > 0
        may_run = self.runs_here and tries and (is_known or self._tries_ahead)
        if binding.is_managed or not may_run or not self._gate.try_enter():
            return
        try:
            call = binding.take()
            try:
                if is_known:
                    warmup.tried(call)
                else:
                    warmup.measure(call, self._workers, self.estimate)
                binding.give_back(call)
            except Exception as error:
                binding.drop()
                # Its inputs were no inputs; a run that matters tells its own failure.
                vlog.driver("%s: a trial run failed: %s", self._users.name, error)
        finally:
            self._gate.leave()

    async def warm_up_calls(
        self,
        calls: Callable[[int, Deadline | None], Awaitable[object]],
        deadline: Deadline | None = None,
    ) -> int:
        """Makes this many calls of the network, so that the application's first call is fast.

        Returns how many more such calls this thread must make at once.
        """
        if not self.runs_here:
            return 0
        self.is_counted = False
        warmed_up = warmup.warm_up_calls(
            self._workers, self.estimate, calls, self.runs_here_now, deadline
        )
        try:
            with contextlib.suppress(NNError):
                return await warmed_up
            return 0
        finally:
            self.is_counted = True

    def runs_here_now(self) -> bool:
        """Returns whether an execution that began now would run on this thread."""
        enters = self._admission(self.usual, arrives=False) is RUN and self._gate.try_enter()
        if enters:
            self._gate.leave()
        return enters

    def run_now(
        self,
        request: Request,
        config: ExecutionConfig,
        given: Sequence[Array] | None = None,
    ) -> ExecutionResult | None:
        """Runs on this thread and returns the result if that is cheaper than a hop, else None."""
        gate = self._gate
        level = self.usual if config.priority is None else self._level(config.priority)
        admission = self._admission(level, deadline_ns=config.deadline_ns)
        if admission is not RUN or not (gate.is_open or gate.try_enter()):
            return None
        return self._run_inline(request, config, level, given)

    def quick_run(self, request: Request) -> QuickRun | None:
        """Returns what runs a request on this thread at the least cost, or None."""
        if self.client or not self._gate.is_open or not self.runs_here:
            return None
        binding = self._bindings.of(request)
        if binding.is_managed:
            return None
        shared = self._bindings, self._gate, self._workers
        return QuickRun(self, request, binding, *shared, self._health, self._users)

    def launch_now(self, request: Request, config: ExecutionConfig) -> Launched | None:
        """Launches and runs on this thread if that is cheaper than waking another.

        Else returns None.
        """
        level = self.usual if config.priority is None else self._level(config.priority)
        settled = self._settled or self._is_settled(request)
        budget_ns = self._inline.launch_budget_ns
        if not settled or self._admission(level, budget_ns, config.deadline_ns) is not RUN:
            return None
        if not self._gate.try_enter():
            return None
        launched_ns = now_ns() if config.measure else 0
        try:
            if self._run_inline(request, config, level) is None:
                return None
        except (MissedDeadlineTransient, DeviceError) as error:
            fence = Fence()
            fence.fail(error.with_traceback(None))
        else:
            fence = signaled()
        return Launched(Done(launched_ns, fence), self._workers, measure=config.measure)

    async def execute_fenced(
        self,
        request: Request,
        wait_for: Sequence[Fence] = (),
        config: ExecutionConfig = DEFAULT_CONFIG,
    ) -> Launched:
        """Launches behind fences; an execution that is ready and cheap has run on return."""
        if not self._is_settled(request):
            raise InvalidArgument(
                f"{self._users.name}: a fenced execution needs fully specified outputs"
            )
        pending = [fence for fence in wait_for if not fence.done or fence.error is not None]
        if not pending:
            config = begun_at(config, now_ns())
            launched = self.launch_now(request, config)
            if launched is not None:
                return launched
        return self.launch_on_worker(request, pending, config)

    def launch_on_worker(
        self,
        request: Request,
        wait_for: Sequence[Fence] = (),
        config: ExecutionConfig = DEFAULT_CONFIG,
    ) -> Launched:
        """Launches behind fences, from any thread; nothing runs on that thread."""
        task = self._task(self._bindings.of(request), config)
        if not wait_for:
            self._gate.submit(task, held=False)
            return Launched(task, self._workers, measure=config.measure)
        try:
            self._workers.hold(task, wait_for)
        except NNError:
            task.release()
            raise
        waits = Dependencies(task, len(wait_for), self._gate, self._workers, config.duration_ns)
        task.when_released(waits.forget)
        for fence in wait_for:
            fence.add_callback(waits.met)
        return Launched(task, self._workers, measure=config.measure)

    async def configure_execution_burst(
        self, callback: BurstCallback, request_channel: Channel, result_channel: Channel
    ) -> BurstContext:
        """Serves a burst; the device is in its fast state until it is closed, or idle for long."""
        return self.serve_burst(callback, request_channel, result_channel)

    def serve_burst(
        self,
        callback: BurstCallback,
        request_channel: Channel,
        result_channel: Channel,
        *,
        ordered: bool = True,
    ) -> EngineBurstContext:
        """Serves a burst at once, from any thread; unless `ordered`, requests run side by side."""
        self._bindings.open_plan()
        fast_state = FastState(self._workers)
        server = bursts.BurstServer(
            self.begin,
            callback,
            result_channel,
            run_now=self.run_now,
            used=fast_state.touch,
            ordered=ordered,
        )
        request_channel.listen(server.receive)
        context = EngineBurstContext(server, fast_state)
        self._fast_states.append(fast_state)
        return context

    def open_burst(self) -> EngineBurst:
        """Opens a burst for a client in this process, whose requests need no messages."""
        self._bindings.open_plan()
        fast_state = FastState(self._workers)
        burst = EngineBurst(self.run_now, self.begin, fast_state)
        self._fast_states.append(fast_state)
        return burst

    @property
    def fast_states(self) -> list[FastState]:
        """Returns the fast states of its bursts, in a list that outlives the prepared model."""
        return self._fast_states

    async def close(self) -> None:
        """Releases the bindings and the plan's scratch memory.

        Executions in flight are answered.
        """
        plan = self._bindings.close()
        self.runs_here = False
        text = f"{self._users.name} was closed while this was in flight"
        closed = because("closing", DeviceUnavailable(text))
        self._workers.dismiss(self.by_priority, closed)
        self._workers.expect_no_more(self)
        for fast_state in self._fast_states:
            fast_state.leave()
        if self._users.leave(self) and plan is not None:
            plan.trim()

    def trim(self) -> None:
        """Frees scratch that was not used since the last call; a hot burst keeps it."""
        plan = self._bindings.plan
        over = [fast_state for fast_state in tuple(self._fast_states) if not fast_state.look()]
        for fast_state in over:
            self._fast_states.remove(fast_state)
        runs = self._users.runs
        if plan is not None and runs == self._runs_at_trim and not self._users.is_hot:
            plan.trim()
        self._runs_at_trim = runs
        if isinstance(plan, StagedPlan):
            self.leave_stages()

    def leave_stages(self) -> None:
        """Lets idle calls go straight to the last plan, where that has taken over."""
        for binding in tuple(self._bindings.values()):
            binding.exchange(bare)

    def _is_settled(self, request: Request) -> bool:
        """Returns whether model and request together state the shapes of all outputs."""
        if self._settled:
            return True
        return len(request.outputs) != len(self.shapes) or all(
            is_fully_specified(operand.type, argument.dimensions or operand.dimensions)
            for argument, operand in zip(request.outputs, self._outputs(), strict=True)
        )

    def _outputs(self) -> list[Operand]:
        main = self._model.main
        return [main.operands[index] for index in main.output_indexes]

    # -- running

    def _admission(
        self,
        level: Level,
        budget_ns: float = NEVER_NS,
        deadline_ns: int = NEVER_NS,
        *,
        arrives: bool = True,
    ) -> Admission:
        if not self.runs_here or (self._health and self._health.suspects):
            return WORKER
        return self._inline.admission(
            level.priority, level.estimate, budget_ns, self.client, deadline_ns, arrives=arrives
        )

    def _level(self, priority: Priority) -> Level:
        """Returns the level of this priority; `usual` is that of its own priority."""
        priority = min(priority, self._most_urgent)
        level = self.by_priority.get(priority)
        if level is None:
            self._workers.expect(priority, self)
            level = Level(priority, self.usual.estimate.copy())
            level = self.by_priority.setdefault(priority, level)
        return level

    def _run_inline(
        self,
        request: Request,
        config: ExecutionConfig,
        level: Level,
        given: Sequence[Array] | None = None,
    ) -> ExecutionResult | None:
        """Runs on this thread inside the gate; returns None if a worker must run the fallback."""
        measure = config.measure
        entered_ns = now_ns() if measure else 0
        try:
            binding = self._bindings.get(id(request)) or self._bindings.bind(request)
            call = binding.take()
            try:
                if given is not None and not call.reads_given:
                    binding.write(given)
                    given = None
                device_ns = self._inline.run_for(
                    self.client, call, level.estimate, config.deadline_ns, self._users.name, given
                )
            except BaseException:
                binding.fail(call)
                raise
            finally:
                binding.give_back(call)
        except DeviceError:
            if self._health is None or not self._health.suspects:
                raise
            return None
        finally:
            if not self._gate.is_open:
                self._gate.leave()
        if not measure and not isinstance(call, SizedCall):
            return self._result
        return self._result_of(call, Timing(device_ns, now_ns() - entered_ns) if measure else None)

    def _task(self, binding: Binding, config: ExecutionConfig) -> Task:
        call = binding.take()
        self._workers.turns.here.leave()
        level = self.usual if config.priority is None else self._level(config.priority)
        task = Task(call, level.priority, level.estimate, config.deadline_ns, self._users.name)
        task.client, task.is_counted, task.owner = self.client, self.is_counted, self.by_priority
        task.stop.loop_timeout_ns, task.stop.priority = config.loop_timeout_ns, level.priority
        task.returns = binding.taker(task.fence) if binding.is_managed else binding.give_back
        return task

    def _outcome(self, task: Task, *, measure: bool) -> ExecutionResult:
        if not measure and not isinstance(task.call, SizedCall):
            return self._result
        return self._result_of(task.call, timing_of(task, task.launched_ns) if measure else None)

    def _result_of(self, call: Call, timing: Timing | None) -> ExecutionResult:
        if isinstance(call, SizedCall):
            return ExecutionResult(call.shapes, timing or Timing())
        return self._result if timing is None else ExecutionResult(self.shapes, timing)

    def begin(
        self,
        request: Request,
        config: ExecutionConfig,
        *,
        behind: Fence | None,
        reply: Callable[[Outcome], None],
        release: Callable[[], None],
    ) -> Callable[[], None] | None:
        """Begins one execution of a burst, from any thread (`burst.Begin`)."""
        task = self._task(self._bindings.of(request), config)

        def answer(fence: Fence) -> None:
            error = fence.error
            reply(
                contained(error, self._users.name)
                if error is not None
                else self._outcome(task, measure=config.measure)
            )

        task.fence.add_callback(answer)
        task.when_released(release)
        try:
            if behind is None or behind.done:
                self._gate.submit(task, held=False)
            else:
                self._workers.hold(task, (behind,))
                behind.add_callback(Dependencies(task, 1, self._gate, self._workers, None).met)
        except NNError as error:
            task.fence.fail(error.with_traceback(None))
            task.release()
        return lambda: self._workers.abandon(task)
