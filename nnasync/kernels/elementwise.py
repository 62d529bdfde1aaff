"""ADD, MUL and SUB of two broadcast operands, and LOG."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nnasync.hal import Array, FusedActivationFunc, HalVersion, OperandType, OperationType, Shape
from nnasync.kernels.linear import activation
from nnasync.kernels.operation import (
    Arguments,
    ArraySpec,
    Kernel,
    Operation,
    Parameter,
    Signature,
    Step,
    Tensor,
    is_quantized,
    quantized_range,
)
from nnasync.kernels.rescale import Halves, Rescale, store_quantized
from nnasync.kernels.steps import (
    Call,
    blocks,
    clip,
    copy,
    float_bounds,
    quantized_bounds,
    sequence,
)

__all__ = ["OPERATIONS", "ADD", "LOG", "MUL", "SUB", "broadcast"]

_FIRST: dict[OperandType, HalVersion] = {
    OperandType.TENSOR_FLOAT32: HalVersion.V1_0,
    OperandType.TENSOR_QUANT8_ASYMM: HalVersion.V1_0,
    OperandType.TENSOR_FLOAT16: HalVersion.V1_2,
    OperandType.TENSOR_QUANT8_ASYMM_SIGNED: HalVersion.V1_3,
    OperandType.TENSOR_INT32: HalVersion.V1_3,
}
_SUB: dict[OperandType, HalVersion] = {
    **_FIRST,
    OperandType.TENSOR_FLOAT32: HalVersion.V1_1,
    OperandType.TENSOR_QUANT8_ASYMM: HalVersion.V1_2,
}


def broadcast(arguments: Arguments, first: int, second: int) -> Shape:
    """The common shape of two arguments, aligned at the last dimension."""
    a, b = arguments.tensor(first), arguments.tensor(second)
    try:
        return np.broadcast_shapes(a.shape, b.shape)
    except ValueError:
        raise arguments.error(
            second, f"has shape {b.shape}, which does not broadcast with {a.shape}"
        ) from None


def _signatures(types: dict[OperandType, HalVersion]) -> list[Signature]:
    fused = Parameter("activation", OperandType.INT32)
    return [
        Signature(
            since, (Parameter("a", type), Parameter("b", type), fused), (Parameter("output", type),)
        )
        for type, since in types.items()
    ]


def _infer(arguments: Arguments) -> list[Tensor]:
    shape = broadcast(arguments, 0, 1)
    if len(shape) > 4:
        raise arguments.fail(f"the result has shape {shape}, expected at most rank 4")
    return [Tensor(type=arguments.tensor(0).type, shape=shape)]


def _binary(
    type: OperationType, function: Callable[..., Any], types: dict[OperandType, HalVersion]
) -> Operation:
    def prepare(arguments: Arguments, outputs: Sequence[Tensor]) -> Kernel:
        fused = activation(arguments, 2)
        if is_quantized(outputs[0].type):
            return _quantized_kernel(arguments, outputs[0], function, fused)
        return _plain_kernel(arguments, outputs[0], function, fused)

    return Operation(type, _signatures(types), _infer, prepare)


def _plain_kernel(
    arguments: Arguments, output: Tensor, function: Callable[..., Any], fused: int
) -> Kernel:
    """Float and integer arithmetic in place of the output."""
    if output.type == OperandType.TENSOR_INT32 and fused != FusedActivationFunc.NONE:
        raise arguments.error(2, f"is {fused}, expected 0 (NONE) for TENSOR_INT32")
    lower, upper = (np.asarray(bound, np.float32) for bound in float_bounds(fused))

    def bind(inputs: Sequence[Any], outputs: Sequence[Array], scratch: Sequence[Array]) -> Step:
        a, b, target = _long_rows(inputs[0], inputs[1], outputs[0])
        calls: list[Call] = [(function, (a, b, target))]
        if fused != FusedActivationFunc.NONE:
            calls.append((clip, (target, lower, upper, target)))
        return sequence(calls)

    return Kernel(bind)


def _long_rows(a: Array, b: Array, target: Array) -> tuple[Array, Array, Array]:
    """The operands reshaped so that equal shapes are one long row."""
    if a.shape == b.shape:
        return a.reshape(-1), b.reshape(-1), target.reshape(-1)
    return a, b, target


class _Product:
    """MUL of raw float operands, of which the second has its zero point subtracted already."""

    def __init__(self, a: Tensor, b: Tensor, output: Tensor, fused: int) -> None:
        scale = np.asarray([a.scale * b.scale / output.scale])
        dtype = np.dtype(np.float32)
        self._rescale = Rescale(scale, np.zeros(1), output, fused, dtype, halves=Halves.AWAY)
        self._zero = _f32(a.zero_point)

    def scratch(self, shape: Shape) -> list[ArraySpec]:
        """Scratch besides the operands and the result."""
        return self._rescale.scratch(shape, np.dtype(np.float32))

    def calls(
        self, x: Array, y: Array, sums: Array, target: Array, scratch: Sequence[Array]
    ) -> list[Call]:
        """Calls from two float operands to the quantised target."""
        calls: list[Call] = [(np.subtract, (x, self._zero, x))] if self._zero else []
        calls.append((np.multiply, (x, y, sums)))
        return calls + self._rescale.calls(sums, target, scratch)


class _Sum:
    """ADD: a * scale + b + shift, where b is in steps of the output already."""

    def __init__(self, a: Tensor, b: Tensor, output: Tensor, fused: int) -> None:
        offset = -quantized_range(output.type)[0]
        scale = a.scale / output.scale
        self._shift = _f32(output.zero_point + offset + 0.5 - a.zero_point * scale)
        lower, upper = quantized_bounds(fused, output)
        self._limits = _f32(lower + offset), _f32(upper + offset + 0.5)
        self._factor = _f32(scale)

    def scratch(self, shape: Shape) -> list[ArraySpec]:
        """Scratch besides the operands and the result."""
        return []

    def calls(
        self, x: Array, y: Array, sums: Array, target: Array, scratch: Sequence[Array]
    ) -> list[Call]:
        """Calls from two float operands to the quantised target."""
        return [
            (np.multiply, (x, self._factor, x)),
            (np.add, (x, y, sums)),
            (np.add, (sums, self._shift, sums)),
            (clip, (sums, *self._limits, sums)),
            *store_quantized(sums, target),
        ]


def _f32(value: float) -> Array:
    return np.asarray(value, np.float32)


def _quantized_kernel(
    arguments: Arguments, output: Tensor, function: Callable[..., Any], fused: int
) -> Kernel:
    a, b = arguments.tensor(0), arguments.tensor(1)
    if a.size < b.size and function is not np.subtract:
        return _swapped(_affine_kernel(b, a, output, function, fused))
    return _affine_kernel(a, b, output, function, fused)


def _swapped(kernel: Kernel) -> Kernel:
    def bind(inputs: Sequence[Any], outputs: Sequence[Array], scratch: Sequence[Array]) -> Step:
        return kernel.bind([inputs[1], inputs[0]], outputs, scratch)

    return Kernel(bind, kernel.scratch)


def _affine_kernel(
    a: Tensor, b: Tensor, output: Tensor, function: Callable[..., Any], fused: int
) -> Kernel:
    """Blocks of the output's rows; a second operand that broadcasts over them is converted once."""
    layout = _Layout(a.shape, b.shape, output.shape)
    multiply = function is np.multiply
    finish = (_Product if multiply else _Sum)(a, b, output, fused)
    factor = 1.0 if multiply else b.scale / output.scale
    second = _Operand(b.zero_point, -factor if function is np.subtract else factor)
    parts = list(blocks(layout.rows, layout.row_elements))
    largest = parts[0].stop
    specs = [
        ArraySpec(layout.part(layout.a, largest)),
        ArraySpec(layout.part(layout.b, largest)),
        ArraySpec((largest, *layout.output[1:])),
    ]
    specs += finish.scratch((largest, *layout.output[1:]))

    def bind(inputs: Sequence[Any], outputs: Sequence[Array], scratch: Sequence[Array]) -> Step:
        first, other = inputs[0].reshape(layout.a), inputs[1].reshape(layout.b)
        target = outputs[0].reshape(layout.output)
        calls: list[Call] = []
        if layout.b[0] == 1:
            calls += second.calls(scratch[1], other)
        for part in parts:
            count = part.stop - part.start
            x, y, sums, *rest = (array[:count] for array in scratch)
            calls.append(copy(x, first[part] if layout.a[0] > 1 else first))
            if layout.b[0] > 1:
                calls += second.calls(y, other[part])
            calls += finish.calls(x, y, sums, target[part], rest)
        return sequence(calls)

    return Kernel(bind, specs)


class _Operand:
    """The affine map from raw quantised values to floats: (q - zero) * factor."""

    def __init__(self, zero_point: int, factor: float) -> None:
        self._zero = _f32(zero_point)
        self._factor = _f32(factor)

    def calls(self, target: Array, source: Array) -> list[Call]:
        """Calls that convert `source` into `target`."""
        calls = [copy(target, source)]
        if self._zero:
            calls.append((np.subtract, (target, self._zero, target)))
        if self._factor != 1:
            calls.append((np.multiply, (target, self._factor, target)))
        return calls


class _Layout:
    """Shapes of two operands and a result with the dimensions joined that need not be apart."""

    def __init__(self, a: Shape, b: Shape, output: Shape) -> None:
        rank = len(output)
        a, b = (1,) * (rank - len(a)) + a, (1,) * (rank - len(b)) + b
        joined: list[list[int]] = []
        for sizes in zip(a, b, output, strict=True):
            kind = (sizes[0] == sizes[2], sizes[1] == sizes[2])
            last = joined[-1] if joined else None
            if last is not None and (
                sizes == (1, 1, 1) or kind == (last[0] == last[2], last[1] == last[2])
            ):
                for index in range(3):
                    last[index] *= sizes[index]
            else:
                joined.append(list(sizes))
        if joined and joined[0] == [1, 1, 1] and len(joined) > 1:
            joined = joined[1:]
        if a == b and joined:
            joined = [[size, size, size] for size in _split(joined[0][0])]
        self.a, self.b, self.output = (tuple(sizes[i] for sizes in joined) for i in range(3))
        self.rows = self.output[0]
        self.row_elements = int(np.prod(self.output[1:]))

    @staticmethod
    def part(shape: Shape, rows: int) -> Shape:
        """Shape of a block of at most `rows` rows."""
        return (min(rows, shape[0]), *shape[1:])


def _split(elements: int) -> tuple[int, int]:
    """One long row as rows that are long enough for numpy."""
    size = max(count for count in range(1, min(elements, 4096) + 1) if elements % count == 0)
    return elements // size, size


def _unary_signatures(types: dict[OperandType, HalVersion]) -> list[Signature]:
    return [
        Signature(since, (Parameter("input", type),), (Parameter("output", type),))
        for type, since in types.items()
    ]


def _infer_unary(arguments: Arguments) -> list[Tensor]:
    source = arguments.tensor(0)
    return [Tensor(type=source.type, shape=source.shape)]


def _unary(
    type: OperationType, function: Callable[..., Any], types: dict[OperandType, HalVersion]
) -> Operation:
    def prepare(arguments: Arguments, outputs: Sequence[Tensor]) -> Kernel:
        def bind(inputs: Sequence[Any], outputs: Sequence[Array], scratch: Sequence[Array]) -> Step:
            return sequence([(function, (inputs[0], outputs[0]))])

        return Kernel(bind)

    return Operation(type, _unary_signatures(types), _infer_unary, prepare)


ADD = _binary(OperationType.ADD, np.add, _FIRST)
MUL = _binary(OperationType.MUL, np.multiply, _FIRST)
SUB = _binary(OperationType.SUB, np.subtract, _SUB)
LOG = _unary(
    OperationType.LOG,
    np.log,
    {
        OperandType.TENSOR_FLOAT32: HalVersion.V1_2,
        OperandType.TENSOR_FLOAT16: HalVersion.V1_2,
    },
)

OPERATIONS: tuple[Operation, ...] = (
    ADD,
    LOG,
    MUL,
    SUB,
)
