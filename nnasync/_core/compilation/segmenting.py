"""A plan in segments, between which a higher priority can have the device.

Where to cut is first guessed from the work of the operations, then each segment is measured, and
one that is too long is cut again. A single operation cannot be cut.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from nnasync._core.clock import Deadline, now_ns
from nnasync._core.compilation.contenders import EngineContender
from nnasync._core.compilation.report import Partition
from nnasync._core.compilation.samples import sample
from nnasync._core.compilation.spec import can_sample
from nnasync._core.compilation.trials import EngineTrial, Trial
from nnasync._core.partition import PartitionedModel, cut, operation_weights_ns, segments
from nnasync._core.plans.composite import CompositePlan, CompositeStep
from nnasync._core.workers.anyio_threads import in_helper_thread
from nnasync.engine import BoundCall, Given, Plan, StopFlag, Target
from nnasync.hal import Array, Model

_ATTEMPTS = 3
_RUNS_NS = 20_000_000
_TOLERANCE = 1.1


async def cut_to_quantum(
    contender: EngineContender, quantum_ns: int, total_ns: float | None, deadline: Deadline | None
) -> None:
    """Have a prepared contender finish in segments that last about `quantum_ns` at most.

    `total_ns` is what the whole was measured to take, if it was; with less than the quantum, or
    where no cut is possible, nothing changes.
    """
    model = contender.spec.model
    if total_ns is None and can_sample(model):
        total_ns = await _measured(contender.trial(), model)
    if total_ns is not None and total_ns <= quantum_ns:
        return
    cutting = _Cutting(contender, quantum_ns, deadline)
    weights = list(operation_weights_ns(model, total_ns))
    for _ in range(_ATTEMPTS):
        groups = await in_helper_thread(segments, model, weights, quantum_ns)
        if len(groups) < 2:
            return
        partitioned = await in_helper_thread(cut, model, groups)
        plans = await cutting.compiled(partitioned)
        times_ns = await cutting.measured(partitioned, plans)
        if not cutting.reweigh(partitioned, times_ns, weights):
            break
    reason = f"segment of at most {quantum_ns / 1e6:g} ms"
    contender.replace_plan(
        _composite(model, partitioned, plans),
        tuple(
            Partition(contender.name, step.operations, f"{reason}{_time_text(time_ns)}")
            for step, time_ns in zip(partitioned.steps, times_ns, strict=True)
        ),
    )


class _Cutting:
    """Segments of one model on one device; those that stay are compiled once."""

    def __init__(
        self, contender: EngineContender, quantum_ns: int, deadline: Deadline | None
    ) -> None:
        self._contender = contender
        self._quantum_ns = quantum_ns
        self._deadline = deadline
        self._known: dict[tuple[int, ...], Plan] = {}

    async def compiled(self, partitioned: PartitionedModel) -> list[Plan]:
        """Returns a plan of each segment."""
        contender = self._contender
        for step in partitioned.steps:
            if step.operations not in self._known:
                self._known[step.operations] = await contender.engine_device.compile_plan(
                    step.model,
                    contender.spec.preference,
                    self._deadline,
                    contender.engine_lowering,
                )
        return [self._known[step.operations] for step in partitioned.steps]

    async def measured(
        self, partitioned: PartitionedModel, plans: Sequence[Plan]
    ) -> list[float | None]:
        """Returns how long each segment takes; None where made-up inputs cannot tell."""
        model = self._contender.spec.model
        if not can_sample(model):
            return [None] * len(plans)
        timed = [_TimedPlan(plan) for plan in plans]
        await _measured(
            EngineTrial(self._contender.name, model, _composite(model, partitioned, timed)), model
        )
        return [statistics.median(plan.runs_ns) for plan in timed]

    def reweigh(
        self,
        partitioned: PartitionedModel,
        times_ns: Sequence[float | None],
        weights: list[float],
    ) -> bool:
        """Corrects the weights of operations; returns whether another cut can help."""
        helps = False
        for step, time_ns in zip(partitioned.steps, times_ns, strict=True):
            if time_ns is None:
                continue
            expected_ns = sum(weights[index] for index in step.operations)
            for index in step.operations:
                weights[index] *= time_ns / expected_ns
            too_long = time_ns > _TOLERANCE * self._quantum_ns
            helps |= too_long and len(step.operations) > 1
        return helps


class _TimedPlan(Plan):
    """Runs a plan, and notes how long its runs take."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self.runs_ns: list[int] = []

    def bind(self, inputs: Sequence[Array | None], outputs: Sequence[Target]) -> BoundCall:
        return _TimedCall(self._plan.bind(inputs, outputs), self.runs_ns)

    def trim(self) -> None:
        self._plan.trim()


class _TimedCall(BoundCall):
    def __init__(self, call: BoundCall, runs_ns: list[int]) -> None:
        self._call = call
        self._runs_ns = runs_ns

    def run(self, stop: StopFlag, given: Given = None) -> bool:
        began_ns = now_ns()
        finished = self._call.run(stop)
        self._runs_ns.append(now_ns() - began_ns)
        return finished

    def rewind(self) -> None:
        self._call.rewind()


async def _measured(trial: Trial, model: Model) -> float:
    """Returns the median duration of a run on made-up inputs."""
    await trial.answer(sample(model, 0))
    return float(statistics.median((await trial.turn(_RUNS_NS)).runs_ns))


def _composite(model: Model, partitioned: PartitionedModel, plans: Sequence[Plan]) -> CompositePlan:
    return CompositePlan(
        [
            CompositeStep(plan, step.inputs, step.outputs, f"segment {number}")
            for number, (step, plan) in enumerate(zip(partitioned.steps, plans, strict=True))
        ],
        partitioned.boundaries,
        inputs=len(model.main.input_indexes),
        outputs=len(model.main.output_indexes),
    )


def _time_text(time_ns: float | None) -> str:
    return "" if time_ns is None else f": {time_ns / 1e6:.2g} ms"
