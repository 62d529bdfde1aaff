"""A subgraph under construction: operands, operations, and handles for them.

Shapes, types and quantization of an operation's outputs come from its rule in `kernels.OPERATIONS`;
the caller states only what the rule leaves open: the scale and zero point of most quantized
results. Whatever is not a handle becomes a constant.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from nnasync import hal, kernels
from nnasync._core.model.constants import Constants
from nnasync.errors import ModelError
from nnasync.extensions import WHOLE_FILES, Registry, encode, extension_of
from nnasync.hal import (
    Array,
    ChannelQuant,
    DataLocation,
    Operand,
    OperandLifeTime,
    OperandType,
    Operation,
    OperationType,
    Shape,
    Subgraph,
)
from nnasync.kernels.operation import Tensor
from nnasync.memory import Pool

_SCALAR_TYPES: dict[type, OperandType] = {
    bool: OperandType.BOOL,
    np.bool_: OperandType.BOOL,
    np.int32: OperandType.INT32,
    np.uint32: OperandType.UINT32,
    np.float32: OperandType.FLOAT32,
    np.float16: OperandType.FLOAT16,
}
_TENSOR_TYPES: dict[np.dtype[Any], OperandType] = {
    np.dtype(np.float32): OperandType.TENSOR_FLOAT32,
    np.dtype(np.float16): OperandType.TENSOR_FLOAT16,
    np.dtype(np.int32): OperandType.TENSOR_INT32,
    np.dtype(np.bool_): OperandType.TENSOR_BOOL8,
}
_QUANTIZED_TYPES: dict[np.dtype[Any], OperandType] = {
    np.dtype(np.uint8): OperandType.TENSOR_QUANT8_ASYMM,
    np.dtype(np.int8): OperandType.TENSOR_QUANT8_ASYMM_SIGNED,
    np.dtype(np.int16): OperandType.TENSOR_QUANT16_SYMM,
    np.dtype(np.uint16): OperandType.TENSOR_QUANT16_ASYMM,
}

_SCALED = frozenset({*_QUANTIZED_TYPES.values(), OperandType.TENSOR_QUANT8_SYMM})
"""Types of which even an omitted operand has a scale."""
_RESHAPED = (
    OperandType.TENSOR_FLOAT32,
    OperandType.TENSOR_FLOAT16,
    OperandType.TENSOR_QUANT8_ASYMM,
    OperandType.TENSOR_QUANT8_ASYMM_SIGNED,
)


class Value:
    """A handle for one operand of a subgraph under construction."""

    __slots__ = ("_tensor", "graph", "index")

    def __init__(self, graph: GraphBuilder, index: int, tensor: Tensor) -> None:
        self.graph = graph
        self.index = index
        self._tensor = tensor

    @property
    def type(self) -> int:
        """Operand type."""
        return self._tensor.type

    @property
    def shape(self) -> Shape:
        """Dimensions; 0 is an unknown one, empty a scalar or an unknown rank."""
        return self._tensor.shape

    @property
    def scale(self) -> float:
        """Scale of a quantized tensor, otherwise 0."""
        return self._tensor.scale

    @property
    def zero_point(self) -> int:
        """Zero point of a quantized tensor."""
        return self._tensor.zero_point

    @property
    def tensor(self) -> Tensor:
        """Returns the tensor of the operand, in the form that the kernels take."""
        return self._tensor

    def __repr__(self) -> str:
        name = self.graph.name_of(self)
        label = f' "{name}"' if name else ""
        return f"<operand {self.index}{label}: {hal.type_name(self.type)} {list(self.shape)}>"


Input = Value | npt.ArrayLike | None
"""What an operation takes: a handle, a number or array (a constant), or None for "omitted"."""


class _Draft:
    """An operand before its subgraph is finished."""

    __slots__ = ("constant", "consumers", "lifetime", "name", "subgraph", "tensor")

    def __init__(
        self, tensor: Tensor, lifetime: OperandLifeTime, name: str, constant: int = -1
    ) -> None:
        self.tensor = tensor
        self.lifetime = lifetime
        self.name = name
        self.constant = constant
        self.consumers = 0
        self.subgraph = 0


class GraphBuilder:
    """Builds one subgraph; `ModelBuilder` is the one of the main subgraph."""

    def __init__(
        self,
        constants: Constants,
        referenced: list[GraphBuilder] | None = None,
        extensions: Registry | None = None,
    ) -> None:
        """`referenced` are the subgraphs that IF and WHILE refer to, shared by a whole model.

        So are the prefixes of `extensions`.
        """
        self._constants = constants
        self._referenced: list[GraphBuilder] = [] if referenced is None else referenced
        self._extensions = Registry() if extensions is None else extensions
        self._drafts: list[_Draft] = []
        self._operations: list[Operation] = []
        self._inputs: list[int] = []
        self._outputs: list[int] = []

    def input(
        self,
        name: str,
        shape: Shape,
        *,
        type: int = OperandType.TENSOR_FLOAT32,
        scale: float = 0.0,
        zero_point: int = 0,
    ) -> Value:
        """A value that the caller of the network gives; `type` may be an `extension_type`."""
        tensor = Tensor(type=type, shape=tuple(shape), scale=scale, zero_point=zero_point)
        value = self._add(tensor, OperandLifeTime.SUBGRAPH_INPUT, name)
        self._inputs.append(value.index)
        return value

    def output(self, name: str, value: Value) -> Value:
        """Make a computed value an output; anything else is copied first."""
        value = self._exclusive(value)
        draft = self._drafts[value.index]
        draft.lifetime, draft.name = OperandLifeTime.SUBGRAPH_OUTPUT, name
        self._outputs.append(value.index)
        return value

    def constant(
        self,
        value: npt.ArrayLike,
        *,
        type: OperandType | None = None,
        scale: float = 0.0,
        zero_point: int = 0,
        channel_quant: ChannelQuant | None = None,
        name: str = "",
    ) -> Value:
        """A constant; numbers become scalars, arrays tensors.

        float64 becomes float32, int64 becomes int32. 8- and 16-bit integers are quantized: they
        need a scale, or int8 a `channel_quant`. Raises ModelError for what has no operand type.
        """
        if type is None:
            type, array = _typed(value, per_channel=channel_quant is not None)
        else:
            array = np.asarray(value, hal.dtype_of(type))
        if array.ndim == 0 and not hal.is_scalar(type):
            array = array.reshape(1)
        tensor = Tensor(
            type=type,
            shape=array.shape,
            scale=scale,
            zero_point=zero_point,
            channel_quant=channel_quant,
            value=array,
        )
        return self._add_constant(tensor, name, self._constants.add(array))

    def mapped_constant(self, pool: Pool, offset: int, tensor: Tensor, name: str = "") -> Value:
        """A constant whose value is a part of a pool (of a model file): it is not copied."""
        array = pool.array(tensor.dtype, tensor.shape, offset)
        tensor = msgspec.structs.replace(tensor, value=array)
        return self._add_constant(tensor, name, self._constants.add_mapped(pool, offset, array))

    def operation(
        self,
        type: int,
        *inputs: Input,
        output: Tensor | Value | None = None,
        like: Value | None = None,
        scale: float | None = None,
        zero_point: int | None = None,
        name: str = "",
    ) -> Value:
        """Add an operation of one output and return that.

        The output is what the operation's rule says; `output` states it in full (a Tensor, or a
        value that it resembles), `scale` and `zero_point` or `like` only its quantization.
        Raises ModelError for operands that do not fit.
        """
        if like is not None:
            scale, zero_point = like.scale, like.zero_point
        given = output.tensor if isinstance(output, Value) else output
        (result,) = self._apply(type, inputs, [given], scale, zero_point, [name])
        return result

    def operation_outputs(
        self,
        type: int,
        *inputs: Input,
        outputs: Sequence[Tensor | None] | None = None,
        names: Sequence[str] = (),
    ) -> tuple[Value, ...]:
        """Add an operation of any number of outputs; None is an output that the rule describes."""
        return self._apply(type, inputs, outputs, None, None, names)

    def extension_type(self, name: str, type: int) -> int:
        """An extension's operation or operand type as it stands in this model.

        Raises InvalidArgument where the name or the type is not legal.
        """
        return encode(self._extensions.prefix(name), type)

    def name_of(self, value: Value) -> str:
        """Name of an operand, or an empty string."""
        return self._drafts[value.index].name

    def _add(
        self, tensor: Tensor, lifetime: OperandLifeTime, name: str, constant: int = -1
    ) -> Value:
        self._drafts.append(_Draft(tensor, lifetime, name, constant))
        return Value(self, len(self._drafts) - 1, tensor)

    def _add_constant(self, tensor: Tensor, name: str, number: int) -> Value:
        if tensor.type in _QUANTIZED_TYPES.values() and not tensor.scale > 0:
            raise ModelError(
                f'constant "{name}" of {hal.type_name(tensor.type)} needs a scale above 0'
            )
        return self._add(tensor, OperandLifeTime.CONSTANT_COPY, name, number)

    def _exclusive(self, value: Value) -> Value:
        """The value itself if it may become an output, otherwise a copy of it."""
        self._check_mine(value)
        if self._drafts[value.index].lifetime == OperandLifeTime.TEMPORARY_VARIABLE:
            return value
        is_reshaped = value.type in _RESHAPED and 0 < len(value.shape) <= 4
        if not is_reshaped or 0 in value.shape:
            return self.operation(OperationType.CAST, value, output=value)
        shape = int32_array(value.shape)
        return self.operation(OperationType.RESHAPE, value, shape, output=value)

    def _output_values(self) -> list[Value]:
        return [Value(self, index, self._drafts[index].tensor) for index in self._outputs]

    def _check_mine(self, value: Value) -> None:
        if value.graph is not self:
            raise ModelError(f"{value!r} belongs to another subgraph")

    def _apply(
        self,
        type: int,
        inputs: Sequence[Input],
        outputs: Sequence[Tensor | None] | None,
        scale: float | None,
        zero_point: int | None,
        names: Sequence[str],
    ) -> tuple[Value, ...]:
        try:
            operands = self._operands(type, inputs)
            tensors = self._output_tensors(type, operands, outputs, scale, zero_point)
        except ModelError as error:
            raise ModelError(f"operation {len(self._operations)}: {error}") from error
        labels = [*names, *[""] * (len(tensors) - len(names))]
        results = tuple(
            self._add(tensor, OperandLifeTime.TEMPORARY_VARIABLE, label)
            for tensor, label in zip(tensors, labels, strict=True)
        )
        for operand in operands:
            self._drafts[operand].consumers += 1
        self._operations.append(Operation(type, tuple(operands), tuple(r.index for r in results)))
        return results

    def _operands(self, type: int, inputs: Sequence[Input]) -> list[int]:
        half = any(
            isinstance(value, Value) and value.type == OperandType.TENSOR_FLOAT16
            for value in inputs
        )
        operands: list[int] = []
        omitted: list[int] = []
        for position, value in enumerate(inputs):
            if isinstance(value, Value):
                self._check_mine(value)
                operands.append(value.index)
            elif value is None:
                omitted.append(position)
                tensor = Tensor(type=OperandType.TENSOR_FLOAT32)
                operands.append(self._add(tensor, OperandLifeTime.NO_VALUE, "").index)
            else:
                narrow = half and isinstance(value, float)
                operands.append(self.constant(np.float16(value) if narrow else value).index)  # type: ignore[arg-type]
        # Most operations omit nothing, and kernels take time to import.
        if omitted and (rule := self._rule(type)) is not None:
            self._type_omitted(rule, operands, omitted)
        return operands

    def _rule(self, type: int) -> kernels.Operation | None:
        """The signatures and the shape rule of an operation, if they are known."""
        if not hal.is_extension(type):
            return kernels.OPERATIONS.get(OperationType(type))
        known = extension_of(self._extensions.entries(), type)
        if known is None or known[0] in WHOLE_FILES:
            return None
        return kernels.EXTENSION_OPERATIONS.get(known)

    def _type_omitted(
        self, rule: kernels.Operation, operands: Sequence[int], omitted: Sequence[int]
    ) -> None:
        """Give an omitted operand the type that it would have if it were there."""
        types = [self._drafts[operand].tensor.type for operand in operands]
        given = [None if p in omitted else t for p, t in enumerate(types)]
        parameters = rule.signature(given).parameters(len(given)) or ()
        for position in omitted:
            type = parameters[position].type
            tensor = Tensor(type=type, scale=1.0 if type in _SCALED else 0.0)
            self._drafts[operands[position]].tensor = tensor

    def _known(self, operand: int) -> Tensor | None:
        draft = self._drafts[operand]
        return None if draft.lifetime == OperandLifeTime.NO_VALUE else draft.tensor

    def _output_tensors(
        self,
        type: int,
        operands: Sequence[int],
        given: Sequence[Tensor | None] | None,
        scale: float | None,
        zero_point: int | None,
    ) -> list[Tensor]:
        given = given or ()
        known = self._rule(type)
        if known is None:
            if not given or None in given:
                raise ModelError(f"{hal.operation_name(type)}: has no rule here, state its outputs")
            return [tensor for tensor in given if tensor is not None]
        inputs = [self._known(operand) for operand in operands]
        types = [tensor.type for tensor in given if tensor is not None]
        complete = types if len(types) == len(given) else []
        inferred = known.infer(inputs, complete)
        if given and len(given) != len(inferred):
            raise ModelError(f"{known.name}: has {len(inferred)} outputs, {len(given)} were stated")
        stated = given or [None] * len(inferred)
        return [
            _resolved(known.name, position, rule, tensor, scale, zero_point)
            for position, (rule, tensor) in enumerate(zip(inferred, stated, strict=True))
        ]

    def _finish(
        self,
        places: Sequence[tuple[OperandLifeTime, DataLocation]],
        inputs: Sequence[int],
        outputs: Sequence[int],
    ) -> Subgraph:
        operands = []
        for draft in self._drafts:
            lifetime, location = draft.lifetime, DataLocation()
            if draft.constant >= 0:
                lifetime, location = places[draft.constant]
            elif lifetime == OperandLifeTime.SUBGRAPH:
                location = DataLocation(offset=draft.subgraph)
            tensor = draft.tensor
            operands.append(
                Operand(
                    type=int(tensor.type),
                    dimensions=tuple(int(n) for n in tensor.shape),
                    number_of_consumers=draft.consumers,
                    scale=float(tensor.scale),
                    zero_point=int(tensor.zero_point),
                    lifetime=lifetime,
                    location=location,
                    extra_params=tensor.channel_quant,
                    name=draft.name,
                )
            )
        return Subgraph(tuple(operands), tuple(self._operations), tuple(inputs), tuple(outputs))


def _typed(value: npt.ArrayLike, *, per_channel: bool) -> tuple[OperandType, Array]:
    """Operand type and array of a constant given without a type."""
    if isinstance(value, (bool, int, float, np.generic)):
        kind = type(value)
        if kind in _SCALAR_TYPES:
            return _SCALAR_TYPES[kind], np.asarray(value)
        if isinstance(value, (int, np.integer)):
            return OperandType.INT32, int32_array(value)
        if isinstance(value, (float, np.floating)):
            return OperandType.FLOAT32, np.asarray(value, np.float32)
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise ModelError(f"a constant is no array: {error}") from error
    if array.dtype == np.float64:
        array = array.astype(np.float32)
    elif array.dtype == np.int64:
        array = int32_array(array)
    if per_channel and array.dtype == np.int8:
        return OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL, array
    found = _TENSOR_TYPES.get(array.dtype) or _QUANTIZED_TYPES.get(array.dtype)
    if found is None:
        raise ModelError(f"a constant of dtype {array.dtype} has no operand type")
    return found, array


def int32_array(numbers: npt.ArrayLike) -> Array:
    """Integers as an int32 array; raises ModelError where one does not fit."""
    try:
        array = np.asarray(numbers)
        narrow = array.astype(np.int32)
    except (OverflowError, TypeError, ValueError) as error:
        raise ModelError(f"not a constant of int32: {error}") from error
    if not np.array_equal(narrow, array):
        raise ModelError("a constant has numbers that are no int32")
    return narrow


def _resolved(
    name: str,
    position: int,
    rule: Tensor,
    stated: Tensor | None,
    scale: float | None,
    zero_point: int | None,
) -> Tensor:
    """An output from what the rule says and what the caller states."""
    shape = rule.shape if rule.is_known or stated is None else stated.shape
    if stated is not None and stated.shape and rule.is_known and stated.shape != rule.shape:
        raise ModelError(
            f"{name}: output {position} was stated as {list(stated.shape)}, the operation's "
            f"rule gives {list(rule.shape)}"
        )
    result_scale, result_zero_point = rule.scale, rule.zero_point
    if stated is not None:
        result_scale, result_zero_point = stated.scale, stated.zero_point
    if scale is not None:
        result_scale, result_zero_point = scale, zero_point or 0
    if rule.type in _QUANTIZED_TYPES.values() and not result_scale > 0:
        raise ModelError(
            f"{name}: output {position} is {hal.type_name(rule.type)}: state its scale and "
            "zero point"
        )
    if rule.type not in _QUANTIZED_TYPES.values():
        keeps = stated is not None and rule.type == OperandType.TENSOR_INT32
        result_scale, result_zero_point = result_scale if keeps else 0.0, 0
    return Tensor(
        type=rule.type, shape=tuple(shape), scale=result_scale, zero_point=result_zero_point
    )
