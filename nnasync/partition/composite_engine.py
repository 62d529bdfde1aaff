"""Several engines as one, for one model that is split into steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from nnasync.engine import Engine, Lowering, LoweringEngine, Plan
from nnasync.engine.composite import CompositePlan, CompositeStep
from nnasync.errors import InvalidArgument, NNError
from nnasync.hal import (
    Capabilities,
    DeviceType,
    ExecutionPreference,
    Extension,
    Model,
    OperandPerformance,
    PerformanceInfo,
    lookup,
)
from nnasync.partition.splitting import PartitionedModel, PartitionStep
from nnasync.workers import contained

__all__ = ["CompositeEngine"]


class CompositeEngine:
    """Compiles each step of one partitioned model with the engine of its device.

    `EngineDevice` makes a device of it like of any other engine. Its figures are the worst of its
    engines', since nobody knows which operation will run where.
    """

    def __init__(
        self,
        partitioned: PartitionedModel,
        engines: Sequence[Engine],
        lowerings: Mapping[int, Lowering] | None = None,
    ) -> None:
        """`engines` are by number of device; `lowerings` by number of step, for some or none.

        Raises InvalidArgument where a step's device is no engine, or its engine has no lowerings.
        """
        self._partitioned = partitioned
        self._engines = tuple(engines)
        self._lowerings = dict(lowerings or {})
        self._check()
        used = list(dict.fromkeys(step.device for step in partitioned.steps))
        members = [self._engines[device] for device in used]
        self.name = "+".join(dict.fromkeys(engine.name for engine in members))
        self.version = "+".join(dict.fromkeys(engine.version for engine in members))
        types = {engine.type for engine in members}
        self.type = types.pop() if len(types) == 1 else DeviceType.OTHER
        self.capabilities = _worst([engine.capabilities for engine in members])
        self.extensions: tuple[Extension, ...] = tuple(
            {each.name: each for engine in members for each in engine.extensions}.values()
        )
        limits = [engine.concurrency for engine in members if engine.concurrency]
        self.concurrency = min(limits, default=0)

    @property
    def partitioned(self) -> PartitionedModel:
        """The model and its steps."""
        return self._partitioned

    def supported_operations(self, model: Model) -> list[bool]:
        """For the model that was split what the engines say of their steps; of others nothing."""
        answers = [False] * len(model.main.operations)
        if not self._is_mine(model):
            return answers
        for step in self._partitioned.steps:
            supported = self._engines[step.device].supported_operations(step.model)
            for index, answer in zip(step.operations, supported, strict=True):
                answers[index] = answer
        return answers

    def compile(self, model: Model, preference: ExecutionPreference) -> CompositePlan:
        """Compile the steps; raises the error of the engine that fails, and says which step.

        Raises InvalidArgument for another model than the one that was split.
        """
        if not self._is_mine(model):
            raise InvalidArgument(
                f"{self.name} was made for model {self._partitioned.model.name!r} alone, not for "
                f"{model.name!r}"
            )
        return CompositePlan(
            [
                CompositeStep(
                    self._compiled(number, step, preference),
                    step.inputs,
                    step.outputs,
                    self._described(number, step),
                )
                for number, step in enumerate(self._partitioned.steps)
            ],
            self._partitioned.boundaries,
            inputs=len(model.main.input_indexes),
            outputs=len(model.main.output_indexes),
        )

    def _compiled(self, number: int, step: PartitionStep, preference: ExecutionPreference) -> Plan:
        engine, lowering = self._engines[step.device], self._lowerings.get(number)
        try:
            if lowering is not None and isinstance(engine, LoweringEngine):
                return engine.compile(step.model, preference, lowering)
            return engine.compile(step.model, preference)
        except Exception as error:
            where = self._described(number, step)
            failure = contained(error, where)
            if failure is error:
                failure = _told(failure, where)
            raise failure from (failure.__cause__ or error)

    def _described(self, number: int, step: PartitionStep) -> str:
        first, last = step.operations[0], step.operations[-1]
        return (
            f"step {number} ({len(step.operations)} operations from {first} to {last}) on "
            f"{self._engines[step.device].name}"
        )

    def _is_mine(self, model: Model) -> bool:
        mine = self._partitioned.model
        return model is mine or model == mine

    def _check(self) -> None:
        count = len(self._engines)
        for number, step in enumerate(self._partitioned.steps):
            if not 0 <= step.device < count:
                raise InvalidArgument(f"step {number} is on device {step.device} of {count}")
        for number in self._lowerings:
            if not 0 <= number < len(self._partitioned.steps):
                raise InvalidArgument(f"there is a lowering for step {number}, which is not there")
            engine = self._engines[self._partitioned.steps[number].device]
            if not isinstance(engine, LoweringEngine):
                raise InvalidArgument(f"{engine.name}, which runs step {number}, has no lowerings")


def _told(error: NNError, where: str) -> NNError:
    """The same error, whose message says where."""
    return type(error)(f"{where}: {error}")


def _worst(capabilities: Sequence[Capabilities]) -> Capabilities:
    """For each figure the largest."""

    def largest(figure: Callable[[Capabilities], PerformanceInfo]) -> PerformanceInfo:
        return _largest(map(figure, capabilities))

    types = sorted({each.type for all in capabilities for each in all.operand_performance})
    return Capabilities(
        relaxed_float32_to_float16_performance_scalar=largest(
            lambda each: each.relaxed_float32_to_float16_performance_scalar
        ),
        relaxed_float32_to_float16_performance_tensor=largest(
            lambda each: each.relaxed_float32_to_float16_performance_tensor
        ),
        operand_performance=tuple(
            OperandPerformance(
                type, _largest(lookup(each.operand_performance, type) for each in capabilities)
            )
            for type in types
        ),
        if_performance=largest(lambda each: each.if_performance),
        while_performance=largest(lambda each: each.while_performance),
    )


def _largest(infos: Iterable[PerformanceInfo]) -> PerformanceInfo:
    found = list(infos)
    return PerformanceInfo(
        max(info.exec_time for info in found), max(info.power_usage for info in found)
    )
