"""The form every operation takes: signatures as data, a shape rule, kernels bound to memory.

An `Operation` answers three questions. *Is it legal?* Its `signatures` list every combination of
operand types with the HAL version that introduced it. *What comes out?* `infer` gives type, shape
and, where the rule fixes or inherits it, quantisation of the outputs. *How is it computed?*
`prepare` packs constants into a `Kernel`, and `Kernel.bind` ties that to arrays and scratch memory
and returns a `Step`, a function without arguments that allocates nothing.

What a family file writes is a rule and a compute function over `Arguments`. This file adds what all
share: an operand whose value is needed but only known when the network runs makes `infer` answer
"unknown" and `prepare` fall back to preparing at each run; float16 is computed in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np

from nnasync import hal
from nnasync.errors import ModelError
from nnasync.hal import Array, HalVersion, OperandType, OperationType, Shape, Struct

__all__ = [
    "ArraySpec",
    "Arguments",
    "Kernel",
    "Operation",
    "Parameter",
    "Signature",
    "Step",
    "Tensor",
    "is_quantized",
    "quantized_range",
]

Step = Callable[[], None]

_HALVES: dict[int, OperandType] = {
    OperandType.TENSOR_FLOAT16: OperandType.TENSOR_FLOAT32,
    OperandType.FLOAT16: OperandType.FLOAT32,
}
_RANGES: dict[int, tuple[int, int]] = {
    OperandType.TENSOR_QUANT8_ASYMM: (0, 255),
    OperandType.TENSOR_QUANT8_ASYMM_SIGNED: (-128, 127),
}


class Tensor(Struct, frozen=True, eq=False):
    """What is known of one operand before running; scalars and unknown ranks have shape ().

    `value` is set for constants and scalars: an array of the operand's dtype and shape.
    """

    type: int
    shape: Shape = ()
    scale: float = 0.0
    zero_point: int = 0
    channel_quant: hal.ChannelQuant | None = None
    value: Array | None = None

    @property
    def dtype(self) -> np.dtype[Any]:
        """Numpy type of one element."""
        return hal.dtype_of(self.type)

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def is_known(self) -> bool:
        """Whether rank and all dimensions are known."""
        return hal.is_fully_specified(self.type, self.shape)


class Parameter(Struct, frozen=True):
    """One argument position of a signature; an optional one may be an operand without value."""

    name: str
    type: int
    optional: bool = False


class Signature(Struct, frozen=True):
    """One legal combination of operand types.

    With `variadic`, the first input stands for one or more inputs of the same type.
    """

    since: HalVersion
    inputs: tuple[Parameter, ...]
    outputs: tuple[Parameter, ...]
    variadic: bool = False

    def parameters(self, count: int) -> tuple[Parameter, ...] | None:
        """The parameter of each of `count` inputs, or None when the count is not legal."""
        extra = count - len(self.inputs)
        if extra == 0:
            return self.inputs
        if self.variadic and extra > 0:
            return (self.inputs[0],) * extra + self.inputs
        return None

    def accepts(self, inputs: Sequence[int | None], outputs: Sequence[int] = ()) -> bool:
        """Whether operand types fit; None is an omitted operand, no outputs means "any"."""
        parameters = self.parameters(len(inputs))
        if parameters is None:
            return False
        for parameter, type in zip(parameters, inputs, strict=True):
            if not (parameter.optional if type is None else parameter.type == type):
                return False
        return not outputs or [p.type for p in self.outputs] == list(outputs)


class ArraySpec(Struct, frozen=True):
    """Shape and dtype of an array that somebody else allocates."""

    shape: Shape
    dtype: Any = np.float32

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return math.prod(self.shape) * int(np.dtype(self.dtype).itemsize)


Bind = Callable[[Sequence[Any], Sequence[Array], Sequence[Array]], Step]


class Kernel:
    """A prepared operation: constants packed, ready to be bound to any number of memories.

    `bind(inputs, outputs, scratch)` takes C-contiguous arrays, None for an omitted input. Scratch
    arrays have the shapes that `scratch` states and arbitrary content, and belong to the step only
    while it runs. Constants come to `bind` too, as the arrays of their values. `view_of` names an
    input whose bytes are the output's, so that both may share memory and no step is needed.
    """

    __slots__ = ("bind", "scratch", "view_of")

    def __init__(
        self, bind: Bind, scratch: Sequence[ArraySpec] = (), *, view_of: int | None = None
    ) -> None:
        self.bind = bind
        self.scratch = tuple(scratch)
        self.view_of = view_of


class NotConstant(Exception):
    """An operand's value is needed but not known before the network runs."""


class Arguments:
    """The inputs of one operation, read with errors that say which argument is wrong."""

    __slots__ = ("inputs", "operation", "signature")

    def __init__(
        self, operation: OperationType, inputs: Sequence[Tensor | None], signature: Signature
    ) -> None:
        self.operation = operation
        self.inputs = tuple(inputs)
        self.signature = signature

    def __len__(self) -> int:
        return len(self.inputs)

    def error(self, index: int, message: str) -> ModelError:
        """The error for argument `index`; the caller adds where the operation is."""
        parameters = self.signature.parameters(len(self.inputs)) or ()
        name = f" ({parameters[index].name})" if index < len(parameters) else ""
        return ModelError(f"{self.operation.name}: input {index}{name}: {message}")

    def fail(self, message: str) -> ModelError:
        """The error for the operation as a whole."""
        return ModelError(f"{self.operation.name}: {message}")

    def has(self, index: int) -> bool:
        """Whether the argument is there and not omitted."""
        return index < len(self.inputs) and self.inputs[index] is not None

    def optional(self, index: int) -> Tensor | None:
        """The argument, or None where it is omitted."""
        return self.inputs[index] if index < len(self.inputs) else None

    def tensor(self, index: int, *ranks: int) -> Tensor:
        """The argument, which must be there and have one of the ranks, if any are given."""
        tensor = self.optional(index)
        if tensor is None:
            raise self.error(index, "must not be omitted")
        if ranks and tensor.rank not in ranks:
            expected = " or ".join(str(rank) for rank in ranks)
            raise self.error(index, f"has shape {tensor.shape}, expected rank {expected}")
        return tensor

    def value(self, index: int) -> Array:
        """The argument's value; whoever called `infer` or `prepare` handles that it is unknown."""
        tensor = self.tensor(index)
        if tensor.value is None:
            raise NotConstant
        return tensor.value

    def number(self, index: int) -> float:
        """The value of a floating point scalar."""
        return float(self.value(index).reshape(-1)[0])

    def integer(self, index: int, minimum: int | None = None) -> int:
        """The value of an integer scalar, checked against a smallest legal value."""
        value = int(self.value(index).reshape(-1)[0])
        if minimum is not None and value < minimum:
            raise self.error(index, f"is {value}, expected at least {minimum}")
        return value

    def flag(self, index: int) -> bool:
        """The value of a boolean scalar; False where the argument is not given."""
        return self.has(index) and bool(self.value(index).reshape(-1)[0])

    def integers(self, index: int) -> tuple[int, ...]:
        """The values of an integer tensor, flattened."""
        return tuple(int(value) for value in self.value(index).reshape(-1))

    def axis(self, index: int, rank: int) -> int:
        """The value of an axis scalar, made non-negative."""
        return self.checked_axis(index, self.integer(index), rank)

    def checked_axis(self, index: int, axis: int, rank: int) -> int:
        """An axis that came with argument `index`, made non-negative."""
        if not -rank <= axis < rank:
            raise self.error(index, f"is axis {axis}, expected within [{-rank}, {rank})")
        return axis % rank


Rule = Callable[[Arguments], list[Tensor]]
Compute = Callable[[Arguments, Sequence[Tensor]], Kernel]


class Operation:
    """One operation of the HAL: its signatures, its shape rule and its computation."""

    __slots__ = ("_compute", "_rule", "signatures", "type")

    def __init__(
        self, type: OperationType, signatures: Sequence[Signature], rule: Rule, compute: Compute
    ) -> None:
        self.type = type
        self.signatures = tuple(signatures)
        self._rule = rule
        self._compute = compute

    @property
    def since(self) -> HalVersion:
        """The HAL version that introduced the operation."""
        return min(signature.since for signature in self.signatures)

    def signature(self, inputs: Sequence[int | None], outputs: Sequence[int] = ()) -> Signature:
        """The signature of these operand types; None stands for an omitted operand.

        Without `outputs` it is the first that fits the inputs. Raises ModelError when none does.
        """
        for signature in self.signatures:
            if signature.accepts(inputs, outputs):
                return signature
        raise ModelError(_mismatch(self, inputs, outputs))

    def infer(
        self, inputs: Sequence[Tensor | None], output_types: Sequence[int] = ()
    ) -> list[Tensor]:
        """What the outputs are, given the inputs.

        Shape () stands for "not known yet": a dimension or a needed value of an input is not known.
        Scale and zero point stay 0 where the rule leaves them to the caller. `output_types` chooses
        where the inputs leave a choice. Raises ModelError that names the argument at fault.
        """
        types = [None if tensor is None else tensor.type for tensor in inputs]
        signature = self.signature(types, output_types)
        outputs = [Tensor(type=parameter.type) for parameter in signature.outputs]
        if any(tensor is not None and not tensor.is_known for tensor in inputs):
            return outputs
        try:
            results = self._rule(Arguments(self.type, inputs, signature))
        except NotConstant:
            return outputs
        for index, result in enumerate(results):
            if not result.is_known:
                shape = f"shape {result.shape}, which has no elements"
                raise ModelError(f"{self.type.name}: output {index} would have {shape}")
        return results

    def prepare(self, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]) -> Kernel:
        """Checks all operands, packs the constants and returns the kernel.

        All shapes must be known. Raises ModelError that names the argument at fault.
        """
        for index, tensor in enumerate(inputs):
            if tensor is not None and not tensor.is_known:
                name = self.type.name
                raise ModelError(f"{name}: input {index}: shape {tensor.shape} is not known")
        inferred = self.infer(inputs, [tensor.type for tensor in outputs])
        for index, (tensor, expected) in enumerate(zip(outputs, inferred, strict=True)):
            _check_output(self.type, index, tensor, expected)
        if not all(expected.is_known for expected in inferred):
            return _late_kernel(self, inputs, outputs)
        if any(tensor is not None and tensor.type in _HALVES for tensor in (*inputs, *outputs)):
            return _half_kernel(self, inputs, outputs)
        signature = self.signature(
            [None if tensor is None else tensor.type for tensor in inputs],
            [tensor.type for tensor in outputs],
        )
        try:
            return self._compute(Arguments(self.type, inputs, signature), outputs)
        except NotConstant:
            return _late_kernel(self, inputs, outputs)


def is_quantized(type: int) -> bool:
    """Whether a tensor type is one of the two asymmetric 8-bit types."""
    return type in _RANGES


def quantized_range(type: int) -> tuple[int, int]:
    """Smallest and largest quantised value of an asymmetric 8-bit type."""
    return _RANGES[type]


def _mismatch(operation: Operation, inputs: Sequence[int | None], outputs: Sequence[int]) -> str:
    counts = sorted({len(signature.inputs) for signature in operation.signatures})
    name = operation.type.name
    if not any(signature.parameters(len(inputs)) for signature in operation.signatures):
        legal = " or ".join(str(count) for count in counts)
        return f"{name}: has {len(inputs)} inputs, expected {legal}"
    best = max(operation.signatures, key=lambda signature: _fitting(signature, inputs))
    for index, parameter in enumerate(best.parameters(len(inputs)) or ()):
        type = inputs[index]
        if type is None and not parameter.optional:
            return f"{name}: input {index} ({parameter.name}) must not be omitted"
        if type is not None and type != parameter.type:
            expected = sorted(
                {
                    hal.type_name(parameters[index].type)
                    for signature in operation.signatures
                    if (parameters := signature.parameters(len(inputs))) is not None
                }
            )
            return (
                f"{name}: input {index} ({parameter.name}) is {hal.type_name(type)}, which does not"
                f" fit the other inputs; expected {' or '.join(expected)}"
            )
    expected = [hal.type_name(parameter.type) for parameter in best.outputs]
    given = [hal.type_name(type) for type in outputs]
    return f"{name}: outputs are {given}, expected {expected}"


def _fitting(signature: Signature, inputs: Sequence[int | None]) -> int:
    """How many leading inputs fit; -1 when the count does not."""
    parameters = signature.parameters(len(inputs))
    if parameters is None:
        return -1
    for index, (parameter, type) in enumerate(zip(parameters, inputs, strict=True)):
        if not (parameter.optional if type is None else parameter.type == type):
            return index
    return len(inputs)


def _check_output(type: OperationType, index: int, given: Tensor, expected: Tensor) -> None:
    """Raises ModelError unless an output is what the rule says, where the rule says anything."""
    where = f"{type.name}: output {index}"
    if not given.is_known:
        raise ModelError(f"{where}: shape {given.shape} is not known")
    if expected.is_known and given.shape != expected.shape:
        raise ModelError(f"{where}: has shape {given.shape}, expected {expected.shape}")
    if not is_quantized(given.type):
        return
    if not given.scale > 0:
        raise ModelError(f"{where}: has scale {given.scale}, expected a positive one")
    if expected.scale and (given.scale, given.zero_point) != (expected.scale, expected.zero_point):
        raise ModelError(
            f"{where}: has scale {given.scale} and zero point {given.zero_point}, expected"
            f" {expected.scale} and {expected.zero_point}"
        )


def _widened(tensor: Tensor | None) -> Tensor | None:
    """The float32 twin of a float16 operand; others as they are."""
    if tensor is None or tensor.type not in _HALVES:
        return tensor
    value = None if tensor.value is None else tensor.value.astype(np.float32)
    return Tensor(type=_HALVES[tensor.type], shape=tensor.shape, value=value)


def _half_kernel(
    operation: Operation, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]
) -> Kernel:
    """A kernel that converts float16 operands to float32, computes, and converts back."""
    wide_inputs = [_widened(tensor) for tensor in inputs]
    wide_outputs = [tensor for tensor in map(_widened, outputs) if tensor is not None]
    inner = operation.prepare(wide_inputs, wide_outputs)
    converted = [
        index
        for index, tensor in enumerate(inputs)
        if tensor is not None and tensor.type in _HALVES and tensor.value is None
    ]
    returned = [index for index, tensor in enumerate(outputs) if tensor.type in _HALVES]
    specs = [ArraySpec(_shape(wide_inputs[index])) for index in converted]
    specs += [ArraySpec(wide_outputs[index].shape) for index in returned]

    def bind(inputs: Sequence[Any], outputs: Sequence[Array], scratch: Sequence[Array]) -> Step:
        wide_in = [
            array if tensor is None or tensor.value is None else tensor.value
            for array, tensor in zip(inputs, wide_inputs, strict=True)
        ]
        wide_out = list(outputs)
        before: list[tuple[Array, Array]] = []
        after: list[tuple[Array, Array]] = []
        for index, wide in zip(converted, scratch, strict=False):
            narrow = inputs[index]
            before.append((wide, narrow))
            wide_in[index] = wide
        for index, wide in zip(returned, scratch[len(converted) :], strict=False):
            after.append((outputs[index], wide))
            wide_out[index] = wide
        compute = inner.bind(wide_in, wide_out, scratch[len(specs) :])
        return _converting(before, compute, after)

    return Kernel(bind, (*specs, *inner.scratch))


def _shape(tensor: Tensor | None) -> Shape:
    return () if tensor is None else tensor.shape


def _converting(
    before: Sequence[tuple[Array, Array]], compute: Step, after: Sequence[tuple[Array, Array]]
) -> Step:
    copyto = np.copyto

    def step() -> None:
        for target, source in before:
            copyto(target, source)
        compute()
        for target, source in after:
            copyto(target, source, casting="same_kind")

    return step


def _late_kernel(
    operation: Operation, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]
) -> Kernel:
    """A kernel for operands, such as weights, that are only known at each run: it prepares then."""
    tensors, targets = tuple(inputs), tuple(outputs)

    def bind(inputs: Sequence[Any], outputs: Sequence[Array], scratch: Sequence[Array]) -> Step:
        def step() -> None:
            known = [
                None if tensor is None else msgspec.structs.replace(tensor, value=array)
                for tensor, array in zip(tensors, inputs, strict=True)
            ]
            kernel = operation.prepare(known, targets)
            temporary = [np.empty(spec.shape, spec.dtype) for spec in kernel.scratch]
            kernel.bind(inputs, outputs, temporary)()

        return step

    return Kernel(bind)
