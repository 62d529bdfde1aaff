"""`dense-cpu`, a device for float32 networks of dense layers: the code of "Write a driver"."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Literal

import msgspec
import numpy as np

from nnasync import hal
from nnasync.engine import (
    BoundCall,
    CacheFiles,
    EngineBase,
    Given,
    Lowering,
    Plan,
    StopFlag,
    Target,
    arguments,
    fit,
    resolved,
)
from nnasync.errors import BadState, GeneralFailure, InvalidArgument
from nnasync.hal import FusedActivationFunc, OperationType
from nnasync.kernels import Tensor

ELEMENTWISE: dict[int, np.ufunc] = {
    OperationType.ADD: np.add,
    OperationType.SUB: np.subtract,
    OperationType.MUL: np.multiply,
    OperationType.RELU: np.positive,
    OperationType.RELU1: np.positive,
    OperationType.RELU6: np.positive,
}
RANGES: dict[int, tuple[float, float]] = {
    FusedActivationFunc.NONE: (-math.inf, math.inf),
    FusedActivationFunc.RELU: (0, math.inf),
    FusedActivationFunc.RELU1: (-1, 1),
    FusedActivationFunc.RELU6: (0, 6),
}
ACTIVATIONS: dict[int, FusedActivationFunc] = {
    OperationType.RELU: FusedActivationFunc.RELU,
    OperationType.RELU1: FusedActivationFunc.RELU1,
    OperationType.RELU6: FusedActivationFunc.RELU6,
}


class Step(msgspec.Struct, frozen=True):
    """One operation: its tensors by their numbers, and the range of its activation."""

    type: int
    inputs: tuple[int, ...]
    output: int
    range: tuple[float, float]


def steps_of(model: hal.Model, tensors: Sequence[Tensor | None]) -> list[Step | str]:
    """For each operation its step, or why it is not for this engine."""
    return [step_of(model, operation, tensors) for operation in model.main.operations]


def step_of(
    model: hal.Model, operation: hal.Operation, tensors: Sequence[Tensor | None]
) -> Step | str:
    """The step of an operation, or why it is not for this engine."""
    is_dense = operation.type == OperationType.FULLY_CONNECTED
    if not is_dense and operation.type not in ELEMENTWISE:
        return "not among the operations of this engine"
    given = arguments(model, operation, tensors)
    numbers = [each.number for name, each in given.items() if name != "activation"]
    shapes = []
    for number in (*numbers, *operation.outputs):
        tensor = tensors[number]
        if tensor is None or tensor.type != hal.OperandType.TENSOR_FLOAT32:
            return "only tensors of float32 are taken"
        if not tensor.is_known:
            return "a shape is only known when the network runs"
        shapes.append(tensor.shape)
    *shapes, output = shapes
    if output != (dense_shape(*shapes) if is_dense else broadcast_shape(shapes)):
        return f"shapes {shapes} do not give {output}"
    activation: int | None = ACTIVATIONS.get(operation.type)
    if activation is None:
        value = given["activation"].value
        activation = None if value is None else int(value)
    if activation not in RANGES:
        return "the activation must be a constant"
    return Step(operation.type, tuple(numbers), operation.outputs[0], RANGES[activation])


def dense_shape(x: hal.Shape, weights: hal.Shape, bias: hal.Shape) -> hal.Shape | None:
    """The shape of a dense layer's result; None if its tensors do not fit together."""
    if len(weights) != 2 or math.prod(x) % weights[1] or bias != weights[:1]:
        return None
    return math.prod(x) // weights[1], weights[0]


def broadcast_shape(shapes: Sequence[hal.Shape]) -> hal.Shape | None:
    """The shape of an elementwise result; None if its tensors do not fit together."""
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        return None


class DenseEngine(EngineBase):
    """Sums, products and dense layers with their activations."""

    name = "dense-cpu"
    version = "1.0"
    type = hal.DeviceType.CPU
    capabilities = hal.Capabilities(
        relaxed_float32_to_float16_performance_tensor=hal.PerformanceInfo(0.7, 0.7),
        operand_performance=hal.uniform_performance(
            hal.PerformanceInfo(0.7, 0.7), [hal.OperandType.TENSOR_FLOAT32]
        ),
    )

    def supported_operations(self, model: hal.Model) -> list[bool]:
        """Whether each operation of the main subgraph has a step."""
        return [isinstance(step, Step) for step in steps_of(model, resolved(model))]

    def why_not(self, model: hal.Model) -> list[str | None]:
        """For each operation of the main subgraph why it has no step; None if it has one."""
        return [
            step if isinstance(step, str) else None for step in steps_of(model, resolved(model))
        ]

    def compile(self, model: hal.Model, preference: hal.ExecutionPreference) -> DensePlan:
        """A plan whose constants stay where the model has them."""
        graph, tensors = model.main, resolved(model)
        steps = []
        for index, step in enumerate(steps_of(model, tensors)):
            if isinstance(step, str):
                raise InvalidArgument(f"{self.name} does not support operation {index}: {step}")
            steps.append(step)
        values = {
            number: tensor.value
            for step in steps
            for number in step.inputs
            if (tensor := tensors[number]) is not None
        }
        constants = {number: value for number, value in values.items() if value is not None}
        program = Program(
            shapes=tuple(() if tensor is None else tensor.shape for tensor in tensors),
            inputs=graph.input_indexes,
            outputs=graph.output_indexes,
            steps=tuple(steps),
            constants=tuple(constants),
        )
        return DensePlan(program, constants)


class Program(msgspec.Struct, frozen=True):
    """A compiled model without the values of its constants."""

    shapes: tuple[hal.Shape, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    steps: tuple[Step, ...]
    constants: tuple[int, ...]


class DensePlan(Plan):
    """What a compilation gives; any number of its calls run at once."""

    def __init__(self, program: Program, constants: Mapping[int, hal.Array]) -> None:
        self.program = program
        self.constants = constants

    def bind(self, inputs: Sequence[hal.Array | None], outputs: Sequence[Target]) -> DenseCall:
        """Tie the program to arrays: everything that can be done ahead of the runs is done here."""
        program = self.program
        arrays = dict(self.constants)
        for number, array in zip(program.inputs, inputs, strict=True):
            if array is None:
                raise InvalidArgument("dense-cpu: no input can be omitted")
            arrays[number] = array
        results = fit(outputs, [program.shapes[number] for number in program.outputs])
        arrays.update(zip(program.outputs, results, strict=True))
        for step in program.steps:
            if step.output not in arrays:
                arrays[step.output] = np.empty(program.shapes[step.output], np.float32)
        return DenseCall([work for step in program.steps for work in work_of(step, arrays)])

    def trim(self) -> None:
        """Nothing is kept between runs but what the calls hold."""


def work_of(step: Step, arrays: Mapping[int, hal.Array]) -> Iterator[Callable[[], object]]:
    """The numpy calls of a step, tied to their arrays."""
    out = arrays[step.output]
    operands = [arrays[number] for number in step.inputs]
    if step.type in ELEMENTWISE:
        yield partial(ELEMENTWISE[step.type], *operands, out=out)
    else:
        x, weights, bias = operands
        yield partial(np.dot, x.reshape(-1, weights.shape[1]), weights.T, out)
        yield partial(np.add, out, bias, out=out)
    low, high = step.range
    if low > -math.inf:
        yield partial(np.maximum, out, np.float32(low), out=out)
    if high < math.inf:
        yield partial(np.minimum, out, np.float32(high), out=out)


class DenseCall(BoundCall):
    """A plan tied to arrays: what to call in order, and how far it is."""

    def __init__(self, work: Sequence[Callable[[], object]]) -> None:
        self._work = work
        self._next = 0

    def run(self, stop: StopFlag, given: Given = None) -> bool:
        """Go on from where it is; False if the flag was raised before the end."""
        with np.errstate(all="ignore"):  # infinities and NaNs are results, not mishaps
            while self._next < len(self._work):
                if stop.raised:
                    return False
                self._work[self._next]()
                self._next += 1
        self._next = 0
        return True

    def rewind(self) -> None:
        """Begin anew with the next run."""
        self._next = 0


class TunedDenseEngine(DenseEngine):
    """Knows two ways: with weights laid out for the product, and with weights left in place."""

    cores = 1

    def lowerings(
        self, model: hal.Model, preference: hal.ExecutionPreference
    ) -> Sequence[Lowering]:
        """Packed weights are read faster, and are a second copy of them."""
        return [Lowering("packed"), Lowering("in place")]

    def compile(
        self,
        model: hal.Model,
        preference: hal.ExecutionPreference,
        lowering: Lowering | None = None,
    ) -> DensePlan:
        """Compile in one of these ways."""
        plan = super().compile(model, preference)
        if lowering is not None and lowering.name == "in place":
            return plan
        constants = {
            number: value.copy(order_of(plan.program, number))
            for number, value in plan.constants.items()
        }
        return DensePlan(plan.program, constants)


def order_of(program: Program, number: int) -> Literal["C", "F"]:
    """How a constant is best laid out: weights by columns, which is how products read them."""
    dense = (step for step in program.steps if step.type == OperationType.FULLY_CONNECTED)
    return "F" if number in {step.inputs[1] for step in dense} else "C"


class CachingDenseEngine(TunedDenseEngine):
    """Keeps programs in a model cache file, and constants, packed, in a data cache file."""

    cache_files = (1, 1)

    def serialize(self, plan: Plan) -> CacheFiles:
        """A plan as bytes."""
        if not isinstance(plan, DensePlan):
            raise BadState(f"{self.name} has no plans of type {type(plan).__name__}")
        program = plan.program
        data = b"".join(
            plan.constants[number].tobytes(order_of(program, number))
            for number in program.constants
        )
        return CacheFiles(model=(msgspec.msgpack.encode(program),), data=(data,))

    def deserialize(self, files: CacheFiles, lowering: Lowering | None) -> DensePlan:
        """The plan again; the constants stay in the memory of the file."""
        program = msgspec.msgpack.decode(files.model[0], type=Program)
        sizes = [math.prod(program.shapes[number]) for number in program.constants]
        data = memoryview(files.data[0])
        if data.nbytes != 4 * sum(sizes):
            raise GeneralFailure(f"{self.name}: the data cache has another length")
        values = np.split(np.frombuffer(data, np.float32), np.cumsum(sizes, dtype=int))
        constants = {
            number: value.reshape(program.shapes[number], order=order_of(program, number))
            for number, value in zip(program.constants, values, strict=False)
        }
        return DensePlan(program, constants)
