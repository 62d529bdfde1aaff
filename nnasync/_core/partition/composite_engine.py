"""Several engines as one, for one model that is split into steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from nnasync._core.partition.control_flow import INTERPRETER
from nnasync._core.partition.splitting import PartitionedModel, PartitionStep, all_steps
from nnasync._core.plans.branching import IfPlan, Source, WhilePlan
from nnasync._core.plans.composite import CompositePlan, CompositeStep
from nnasync._core.validation import operand_value
from nnasync._core.words import counted
from nnasync._core.workers import contained
from nnasync.engine import Engine, EngineBase, Lowering, LoweringEngine, Plan
from nnasync.errors import InvalidArgument, NNError
from nnasync.hal import (
    Capabilities,
    DeviceType,
    ExecutionPreference,
    Extension,
    Model,
    OperandPerformance,
    OperationType,
    PerformanceInfo,
    lookup,
    operation_name,
)

Guard = Callable[[PartitionStep, Plan], Plan]
"""Makes of the plan of a step one that falls back."""


class CompositeEngine(EngineBase):
    """Compiles each step of one partitioned model with the engine of its device.

    `EngineDevice` makes a device of it like of any other engine. Its figures are the worst of its
    engines', since nobody knows which operation will run where.
    """

    def __init__(
        self,
        partitioned: PartitionedModel,
        engines: Sequence[Engine],
        lowerings: Mapping[int, Lowering] | None = None,
        guard: Guard | None = None,
        ready: Mapping[int, Plan] | None = None,
    ) -> None:
        """`engines` are by number of device; `lowerings` by number of step, for some or none.

        `ready` are plans of steps that need not be compiled. Steps within bodies have the numbers
        that `all_steps` gives them. Raises InvalidArgument where a step's device is no engine, or
        its engine has no lowerings.
        """
        self.plans: dict[int, Plan] = dict(ready or {})
        """Those of steps, by number, as their engines made them."""
        self.partitioned = partitioned
        """The model and its steps."""
        self._engines = tuple(engines)
        self._lowerings = dict(lowerings or {})
        self._guard = guard
        self._steps = all_steps(partitioned)
        self._numbers = {id(step): number for number, step in enumerate(self._steps)}
        self._check()
        used = dict.fromkeys(step.device for step in self._steps if not step.bodies)
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

    def supported_operations(self, model: Model) -> list[bool]:
        """Returns what the engines say of their steps of the model that was split; else False."""
        answers = [False] * len(model.main.operations)
        if not self._is_mine(model):
            return answers
        for step in self.partitioned.steps:
            for index, answer in zip(step.operations, self._supported(step), strict=True):
                answers[index] = answer
        return answers

    def _supported(self, step: PartitionStep) -> list[bool]:
        """Returns the answers for a step.

        Of an interpreted operation all parts must be supported.
        """
        if not step.bodies:
            return self._engines[step.device].supported_operations(step.model)
        inner = [each for body in step.bodies for each in body.steps]
        return [all(all(self._supported(each)) for each in inner)]

    def compile(self, model: Model, preference: ExecutionPreference) -> CompositePlan:
        """Compiles the steps; raises the error of the engine that fails, and says which step.

        Raises InvalidArgument for another model than the one that was split.
        """
        if not self._is_mine(model):
            raise InvalidArgument(
                f"{self.name} was made for model {self.partitioned.model.name!r} alone, not for "
                f"{model.name!r}"
            )
        return self._composed(self.partitioned, preference, {})

    def _composed(
        self,
        partitioned: PartitionedModel,
        preference: ExecutionPreference,
        bodies: dict[int, Plan],
    ) -> CompositePlan:
        """Returns the plan of a model in steps; `bodies` are the known plans, by subgraph."""
        main = partitioned.model.main
        return CompositePlan(
            [
                CompositeStep(
                    self._interpreted(step, preference, bodies)
                    if step.bodies
                    else self._compiled(self._numbers[id(step)], step, preference),
                    step.inputs,
                    step.outputs,
                    self._described(self._numbers[id(step)], step),
                )
                for step in partitioned.steps
            ],
            partitioned.boundaries,
            inputs=len(main.input_indexes),
            outputs=len(main.output_indexes),
        )

    def _interpreted(
        self, step: PartitionStep, preference: ExecutionPreference, bodies: dict[int, Plan]
    ) -> Plan:
        """Returns the plan of an IF or a WHILE whose subgraphs are in steps."""
        for body in step.bodies:
            if body.subgraph not in bodies:
                bodies[body.subgraph] = self._body(body, preference, bodies)
        first, second = (bodies[body.subgraph] for body in step.bodies)
        operation = step.model.main.operations[0]
        sources = [_source(step.model, index) for index in operation.inputs]
        if operation.type == OperationType.IF:
            return IfPlan(sources[0], first, second, sources[3:])
        carried = len(step.bodies[1].model.main.output_indexes)
        name = f"operation {step.operations[0]} (WHILE)"
        return WhilePlan(first, second, sources[2:], carried=carried, name=name)

    def _body(
        self, body: PartitionedModel, preference: ExecutionPreference, bodies: dict[int, Plan]
    ) -> Plan:
        """Returns the plan of a subgraph; that of its engine where one engine runs all of it."""
        (step, *more) = body.steps
        if more or step.bodies:
            return self._composed(body, preference, bodies)
        return self._compiled(self._numbers[id(step)], step, preference)

    def _compiled(self, number: int, step: PartitionStep, preference: ExecutionPreference) -> Plan:
        if number not in self.plans:
            self.plans[number] = self._made(number, step, preference)
        plan = self.plans[number]
        return plan if self._guard is None else self._guard(step, plan)

    def _made(self, number: int, step: PartitionStep, preference: ExecutionPreference) -> Plan:
        engine, lowering = self._engines[step.device], self._lowerings.get(number)
        try:
            if lowering is not None and isinstance(engine, LoweringEngine):
                return engine.compile(step.model, preference, lowering)
            return engine.compile(step.model, preference)
        except Exception as error:
            where = self._described(number, step)
            failure = contained(error, where)
            if failure is error:
                failure = _error_at(failure, where)
            raise failure from (failure.__cause__ or error)

    def _described(self, number: int, step: PartitionStep) -> str:
        if step.bodies:
            return f"step {number} ({operation_name(step.model.main.operations[0].type)})"
        first, last = step.operations[0], step.operations[-1]
        operations = counted(len(step.operations), "operation")
        device = self._engines[step.device].name
        return f"step {number} ({operations} from {first} to {last}) on {device}"

    def _is_mine(self, model: Model) -> bool:
        mine = self.partitioned.model
        return model is mine or model == mine

    def _check(self) -> None:
        count = len(self._engines)
        for number, step in enumerate(self._steps):
            if not 0 <= step.device < count and not (step.device == INTERPRETER and step.bodies):
                raise InvalidArgument(f"step {number} is on device {step.device} of {count}")
        for number in self._lowerings:
            if not 0 <= number < len(self._steps) or self._steps[number].bodies:
                raise InvalidArgument(f"there is a lowering for step {number}, which is not there")
            engine = self._engines[self._steps[number].device]
            if not isinstance(engine, LoweringEngine):
                raise InvalidArgument(f"{engine.name}, which runs step {number}, has no lowerings")


def _source(model: Model, index: int) -> Source:
    """Returns where an operation of a main subgraph finds a value."""
    if index in model.main.input_indexes:
        return model.main.input_indexes.index(index)
    return operand_value(model, model.main.operands[index])


def _error_at(error: NNError, where: str) -> NNError:
    """Returns the same error with a message that says where."""
    return type(error)(f"{where}: {error}")


def _worst(capabilities: Sequence[Capabilities]) -> Capabilities:
    """Returns the largest figure of each kind."""

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
