"""A quantized model whose convolutions have weights that are signed bytes, as far as that goes.

Engines multiply bytes several times as fast as real numbers, but want weights about 0 that are
signed bytes. Those of older networks are unsigned with a zero point anywhere, and miss it by one or
two weights of each filter. Here images get copies of channels (`copies`), after which these weights
are sums. Nothing is rounded, and all results are the same, in a model that is larger by one channel
here and there.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from nnasync._core.drivers.openvino.copies import Copies, centered, fits, split
from nnasync._core.validation import subgraph_tensors
from nnasync.hal import (
    Array,
    ChannelQuant,
    DataLocation,
    Model,
    Operand,
    OperandLifeTime,
    OperandType,
    Operation,
    OperationType,
    is_constant,
    is_quantized,
)
from nnasync.kernels import Tensor

_PRODUCTS = (OperationType.CONV_2D, OperationType.DEPTHWISE_CONV_2D)
_MIDDLES = {
    OperandType.TENSOR_QUANT8_ASYMM: 128,
    OperandType.TENSOR_QUANT8_ASYMM_SIGNED: 0,
}
_PLACE = 64


def narrowed(model: Model) -> Model:
    """Returns the network with signed bytes as weights, where copies of channels allow that.

    It is the model itself where nothing is to be done, or nothing can.
    """
    tensors = subgraph_tensors(model, model.main)
    copies = Copies(model, tensors)
    return _Narrowing(model, tensors, copies).model() if copies else model


class _NewConstants:
    """Constants to be added to a model, behind those that it has."""

    def __init__(self, model: Model) -> None:
        self._values = bytearray(model.operand_values)

    def add(self, value: Array, like: Operand) -> Operand:
        """An operand with this value, otherwise like another."""
        self._values.extend(bytes(-len(self._values) % _PLACE))
        place = DataLocation(offset=len(self._values), length=value.nbytes)
        self._values.extend(np.ascontiguousarray(value).tobytes())
        return msgspec.structs.replace(
            like,
            dimensions=value.shape,
            lifetime=OperandLifeTime.CONSTANT_COPY,
            location=place,
        )

    def values(self) -> bytes:
        """Returns all constants, old and new."""
        return bytes(self._values)


class _Narrowing:
    """A model under construction: images keep their indexes, constants get new ones."""

    def __init__(self, model: Model, tensors: Sequence[Tensor | None], copies: Copies) -> None:
        self._model = model
        self._tensors = tensors
        self._copies = copies
        self._constants = _NewConstants(model)
        self._operands = [self._widened(*each) for each in enumerate(model.main.operands)]
        self._operations = [self._translated(each) for each in model.main.operations]

    def model(self) -> Model:
        """Returns the resulting model."""
        counts = [0] * len(self._operands)
        for operation in self._operations:
            for index in operation.inputs:
                counts[index] += 1
        operands = tuple(
            msgspec.structs.replace(operand, number_of_consumers=count)
            for operand, count in zip(self._operands, counts, strict=True)
        )
        main = msgspec.structs.replace(
            self._model.main, operands=operands, operations=tuple(self._operations)
        )
        values = self._constants.values()
        return msgspec.structs.replace(self._model, main=main, operand_values=values)

    def _widened(self, index: int, operand: Operand) -> Operand:
        """An image with its copies."""
        copied, tensor = self._copies.of(index), self._tensors[index]
        if not copied or tensor is None or is_constant(operand):
            return operand
        shape = (*tensor.shape[:-1], tensor.shape[-1] + len(copied))
        return msgspec.structs.replace(operand, dimensions=shape)

    def _translated(self, operation: Operation) -> Operation:
        """An operation whose constants are such that it takes and gives copies."""
        given = self._copies.of(operation.outputs[0])
        taken = self._copies.of(operation.inputs[0])
        if operation.type not in _PRODUCTS:
            inputs = [self._with_copies(index, given) for index in operation.inputs]
        elif given or (taken and operation.type == OperationType.CONV_2D):
            inputs = self._product(operation, taken, given)
        else:
            return operation
        return msgspec.structs.replace(operation, inputs=tuple(inputs))

    def _with_copies(self, index: int, copied: Sequence[int]) -> int:
        """A constant that has channels, with those of its result."""
        operand, tensor = self._model.main.operands[index], self._tensors[index]
        if not copied or tensor is None or tensor.value is None or not is_quantized(operand.type):
            return index
        value = tensor.value
        if value.shape[-1] == 1:
            return index
        return self._constant(np.concatenate([value, value[..., list(copied)]], -1), operand)

    def _product(
        self, operation: Operation, taken: Sequence[int], given: Sequence[int]
    ) -> list[int]:
        """The inputs of a convolution that takes and gives copies."""
        _, weights, offsets, *rest = operation.inputs
        filter, bias = self._tensors[weights], self._tensors[offsets]
        operand = self._model.main.operands[weights]
        if filter is None or filter.value is None or bias is None or bias.value is None:
            raise ValueError("weights that are computed")
        value, rows, axis = filter.value, bias.value, 3
        if operation.type == OperationType.CONV_2D:
            axis = 0
            value, operand = _narrow(filter, operand, taken)
        if given:
            results = [*range(value.shape[axis]), *given]
            value, rows = value.take(results, axis), rows[results]
            operand = _chosen(operand, results)
        bias_operand = self._model.main.operands[offsets]
        return [
            operation.inputs[0],
            self._constant(value, operand),
            self._constant(rows, bias_operand),
            *rest,
        ]

    def _constant(self, value: Array, like: Operand) -> int:
        self._operands.append(self._constants.add(value, like))
        return len(self._operands) - 1


def _narrow(filter: Tensor, operand: Operand, taken: Sequence[int]) -> tuple[Array, Operand]:
    """A filter for an image with copies, as signed bytes; one without that does not fit stays."""
    numbers = centered(filter)
    if filter.value is None or not (taken or fits(numbers)):
        return np.asarray(filter.value), operand
    middle = _MIDDLES.get(OperandType(operand.type), 0)
    whole = split(numbers, taken) + np.int16(middle)
    if operand.type in _MIDDLES:
        operand = msgspec.structs.replace(operand, zero_point=middle)
    return whole.astype(filter.value.dtype), operand


def _chosen(operand: Operand, results: Sequence[int]) -> Operand:
    """A filter whose scales by channel are those of some results."""
    quant = operand.extra_params
    if not isinstance(quant, ChannelQuant):
        return operand
    scales = tuple(quant.scales[row] for row in results)
    return msgspec.structs.replace(operand, extra_params=ChannelQuant(scales, quant.channel_dim))
