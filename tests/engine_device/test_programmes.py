"""Whatever happens to executions, in whatever order: each is answered once and let go once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnasync._core.clock import Deadline, now_ns
from nnasync._core.drivers.null import NullEngine
from nnasync._core.engine_device import EngineDevice, EnginePreparedModel
from nnasync._core.engine_device.launched import Launched
from nnasync._core.workers import Task, Workers
from nnasync.errors import (
    Cancelled,
    DeviceUnavailable,
    GeneralFailure,
    MissedDeadline,
    NNError,
    Refused,
    ResourceExhausted,
)
from nnasync.fences import Fence
from nnasync.hal import ExecutionConfig, ExecutionPreference, Priority
from nnasync.tracing import Tracer
from tests.engine_device.rig import PATIENCE_S, Row, null
from tests.rigs import ManualWatchdog, doubler, set_free
from tests.workers.steering import until

HOUR_NS = 3600 * 10**9


class Machine:
    """A device with two prepared models, what was launched on them, and what became of it."""

    def __init__(self, concurrency: int, cores: int) -> None:
        self.engine: NullEngine = null(gated=True, steps=2, concurrency=concurrency)
        self.watchdog = ManualWatchdog()
        self.workers = Workers(
            cores=cores,
            inline_budget_ns=0,
            stall_budget_ns=0,
            queue_limit=4,
            watchdog=self.watchdog,
            tracer=Tracer(),
        )
        self.device = EngineDevice(self.engine, self.workers)
        self.models = [self._model(priority) for priority in (Priority.LOW, Priority.HIGH)]
        self.tasks: list[Task] = []
        self.answers: list[list[Fence]] = []
        self.releases: list[list[int]] = []
        self.rows: list[Row] = []
        self.gates: list[Fence] = []
        self.cancelled: set[int] = set()

    def _model(self, priority: Priority) -> EnginePreparedModel:
        model = doubler()
        plan = self.engine.compile(model, ExecutionPreference.FAST_SINGLE_ANSWER)
        return self.device.adopt(model, plan, priority)

    # -- what a program consists of

    def launch(self, model: int, behind: int, timed: int) -> None:
        """Launch, perhaps behind an earlier execution or a gate of the test's, with a deadline."""
        row = Row(len(self.tasks))
        fences = [task.fence for task in self.tasks] + self.gates
        wait_for = [fences[behind % len(fences)]] if fences and behind % 3 else []
        wait_for = [fence for fence in wait_for if not fence.done or fence.error is not None]
        deadline_ns = now_ns() + HOUR_NS + len(self.tasks) if timed else 2**63 - 1
        try:
            launched = self.models[model % 2].launch_on_worker(
                row.request, wait_for, ExecutionConfig(deadline_ns=deadline_ns)
            )
        except (Refused, DeviceUnavailable):
            return
        self._note(launched, row)

    def _note(self, launched: Launched, row: Row) -> None:
        task = launched._task
        assert isinstance(task, Task)
        answers: list[Fence] = []
        releases: list[int] = []
        self.tasks.append(task)
        self.rows.append(row)
        self.answers.append(answers)
        self.releases.append(releases)
        task.fence.add_callback(answers.append)
        task.when_released(lambda: releases.append(1))

    def gate(self, number: int, fails: int) -> None:
        """A new fence to wait for, or the end of one there is."""
        if number % 2 or not self.gates:
            self.gates.append(Fence())
        elif fails % 3:
            self.gates[number % len(self.gates)].signal()
        else:
            self.gates[number % len(self.gates)].fail(GeneralFailure("broken"))

    def cancel(self, number: int, _: int) -> None:
        """Cancel, from a thread of its own."""
        if self.tasks:
            number %= len(self.tasks)
            self.cancelled.add(number)
            thread = threading.Thread(target=self.workers.abandon, args=(self.tasks[number],))
            thread.start()
            thread.join(PATIENCE_S)

    def ring(self, number: int, _: int) -> None:
        """Let an alarm go off: a deadline, or the patience with a device that hangs."""
        alarms = [alarm for alarm in self.watchdog.alarms if alarm._callback is not None]
        if alarms:
            self.watchdog.ring(Deadline(alarms[number % len(alarms)].at_ns))

    def steps(self, number: int, _: int) -> None:
        """Let executions come on."""
        assert self.engine.gate is not None
        self.engine.gate.open(number % 4)

    def fault(self, number: int, kind: int) -> None:
        """Have an execution that comes fail, or hang, in one of its steps."""
        at = self.engine.counters.run + number % 3
        if kind % 2:
            self.engine.fail("run", GeneralFailure("broken"), at=at, step=number % 2)
        else:
            self.engine.hang(at=at, step=number % 2)

    def release(self, _: int, __: int) -> None:
        """End the hangs."""
        self.engine.release()

    def close_model(self, number: int, rarely: int) -> None:
        """Close a prepared model."""
        if rarely % 4 == 0:
            anyio.run(self.models[number % 2].close)

    # -- what holds at the end

    def end(self) -> None:
        """Close everything, and have the device let go of everything."""
        self.workers.close()
        for gate in self.gates:
            gate.signal()
        set_free(self.engine)
        until(lambda: self._is_let_go())
        assert self.workers.join(PATIENCE_S) == 0
        self.watchdog.close()

    def _is_let_go(self) -> bool:
        self.engine.release()
        return all(self.releases)

    def check(self) -> None:
        """Each execution was answered once, with a reason that there was, and let go once."""
        for number, (task, row) in enumerate(zip(self.tasks, self.rows, strict=True)):
            assert len(self.answers[number]) == len(self.releases[number]) == 1
            error = task.fence.error
            if error is None:
                assert row.is_right
            else:
                assert isinstance(error, NNError)
                assert not isinstance(error, Cancelled) or number in self.cancelled
                assert not isinstance(error, MissedDeadline) or task.deadline_ns < 2**62
                assert not isinstance(error, ResourceExhausted) or not task.started_ns
        statistics = self.workers.statistics()
        assert (statistics.live, statistics.running, statistics.quarantined) == (0, 0, 0)
        assert statistics.scheduler.queued == (0, 0, 0)
        for model in self.models:
            assert model._gate._inside == 0
            assert not model._gate._waiting


ACTIONS: dict[str, Callable[[Machine, int, int, int], Any]] = {
    "launch": Machine.launch,
    "gate": lambda machine, a, b, _: machine.gate(a, b),
    "cancel": lambda machine, a, b, _: machine.cancel(a, b),
    "ring": lambda machine, a, b, _: machine.ring(a, b),
    "steps": lambda machine, a, b, _: machine.steps(a, b),
    "fault": lambda machine, a, b, _: machine.fault(a, b),
    "release": lambda machine, a, b, _: machine.release(a, b),
    "close": lambda machine, a, b, _: machine.close_model(a, b),
}
small = st.integers(0, 11)
often = st.sampled_from([*ACTIONS, "launch", "launch", "steps", "ring"])
programmes = st.lists(st.tuples(often, small, small, small), min_size=4, max_size=40)


pytestmark = pytest.mark.usefixtures("no_leaks")


@given(programmes, st.integers(0, 2), st.integers(1, 2))
def test_each_execution_is_answered_once(
    program: list[tuple[str, int, int, int]], concurrency: int, cores: int
) -> None:
    machine = Machine(concurrency, cores)
    try:
        for action, *numbers in program:
            ACTIONS[action](machine, *numbers)
    finally:
        machine.end()
    machine.check()
