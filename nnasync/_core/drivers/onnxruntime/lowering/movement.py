"""Operations that move numbers: quantized ones as they are where nothing is requantized."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nnasync._core.drivers.onnxruntime.lowering.call import OperationCall, OrtUnsupported
from nnasync._core.drivers.onnxruntime.lowering.emitter import AXIS_FIRST, FIRST, Emitter
from nnasync._core.drivers.onnxruntime.lowering.windows import Lower
from nnasync.hal import OperandType, OperationType, is_quantized
from nnasync.kernels import Tensor
from nnasync.kernels.windows.window import is_nchw

_FAR = 2**31 - 1
_WHOLE = (
    OperandType.TENSOR_FLOAT32,
    OperandType.TENSOR_FLOAT16,
    OperandType.TENSOR_INT32,
    OperandType.TENSOR_BOOL8,
    OperandType.TENSOR_QUANT8_ASYMM,
    OperandType.TENSOR_QUANT8_ASYMM_SIGNED,
)


def _take(emitter: Emitter, call: OperationCall, *, first: bool = False) -> str:
    """Input 0 as it is; Unsupported where it is requantized on the way."""
    if call.tensor(0).type not in _WHOLE:
        raise OrtUnsupported(f"moves {OperandType(call.tensor(0).type).name}")
    if not call.keeps_numbers:
        raise OrtUnsupported("requantizes what it moves")
    return emitter.whole(call.inputs[0], first=first)


def _reshape(emitter: Emitter, call: OperationCall) -> None:
    name = emitter.reshaped(_take(emitter, call), call.result.shape)
    emitter.give(call.outputs[0], name)


def _transpose(emitter: Emitter, call: OperationCall) -> None:
    rank = call.tensor(0).rank
    order = call.integers(1) if call.has(1) else list(range(rank))[::-1]
    name = emitter.node("Transpose", [_take(emitter, call)], perm=order)
    emitter.give(call.outputs[0], name)


def _concatenation(emitter: Emitter, call: OperationCall) -> None:
    count = len(call.inputs) - 1
    axis = call.integer(count) % call.result.rank
    first = call.result.rank == 4 and emitter.is_first(*call.inputs[:count])
    if first:
        axis = AXIS_FIRST[axis]
    tensors = [call.tensor(position) for position in range(count)]
    if all(_is_alike(tensor, call.result) for tensor in tensors):
        names = [emitter.whole(index, first=first) for index in call.inputs[:count]]
        name = emitter.node("Concat", names, axis=axis)
        emitter.give(call.outputs[0], name, first=first)
        return
    names = [emitter.real(index, first=first) for index in call.inputs[:count]]
    emitter.give_real(call.outputs[0], emitter.node("Concat", names, axis=axis), first=first)


def _is_alike(a: Tensor, b: Tensor) -> bool:
    return (a.type, a.scale, a.zero_point) == (b.type, b.scale, b.zero_point)


def _pad(emitter: Emitter, call: OperationCall) -> None:
    source = call.tensor(0)
    amounts = call.array(1)
    first = emitter.is_first(call.inputs[0])
    if first:
        amounts = amounts[list(FIRST)]
    number = source.zero_point if is_quantized(source.type) else 0
    if call.key == OperationType.PAD_V2:
        number = call.array(2).reshape(-1)[0]
    value = emitter.constant(np.asarray(number, source.dtype))
    name = emitter.node(
        "Pad",
        [
            _take(emitter, call, first=first),
            emitter.integers([int(n) for n in amounts.T.reshape(-1)]),
            value,
        ],
    )
    emitter.give(call.outputs[0], name, first=first)


def _cut(emitter: Emitter, name: str, begin: Sequence[int], end: Sequence[int]) -> str:
    return emitter.node("Slice", [name, emitter.integers(begin), emitter.integers(end)])


def _slice(emitter: Emitter, call: OperationCall) -> None:
    begin = call.integers(1)
    end = [a + n for a, n in zip(begin, call.result.shape, strict=True)]
    emitter.give(call.outputs[0], _cut(emitter, _take(emitter, call), begin, end))


def _strided_slice(emitter: Emitter, call: OperationCall) -> None:
    begins, ends, strides = (call.integers(place) for place in (1, 2, 3))
    begin_mask, end_mask = call.integer(4), call.integer(5)
    for axis, stride in enumerate(strides):
        if begin_mask & 1 << axis:
            begins[axis] = 0 if stride > 0 else _FAR
        if end_mask & 1 << axis:
            ends[axis] = _FAR if stride > 0 else -_FAR
    name = emitter.node(
        "Slice",
        [
            _take(emitter, call),
            emitter.integers(begins),
            emitter.integers(ends),
            emitter.integers(range(len(begins))),
            emitter.integers(strides),
        ],
    )
    emitter.give(call.outputs[0], emitter.reshaped(name, call.result.shape))


def _channel_shuffle(emitter: Emitter, call: OperationCall) -> None:
    shape, groups = call.shape(0), call.integer(1)
    axis = call.integer(2) % len(shape)
    parts = (*shape[:axis], groups, shape[axis] // groups, *shape[axis + 1 :])
    order = list(range(len(parts)))
    order[axis], order[axis + 1] = axis + 1, axis
    name = emitter.reshaped(_take(emitter, call), parts)
    name = emitter.node("Transpose", [name], perm=order)
    emitter.give(call.outputs[0], emitter.reshaped(name, shape))


def _split(emitter: Emitter, call: OperationCall) -> None:
    axis = call.integer(1) % call.tensor(0).rank
    name = _take(emitter, call)
    names = emitter.nodes_of("Split", [name], len(call.outputs), axis=axis)
    if len(names) == 1:
        emitter.nodes.pop()
        names = [emitter.node("Identity", [name])]
    for index, each in zip(call.outputs, names, strict=True):
        emitter.give(index, each)


def _tile(emitter: Emitter, call: OperationCall) -> None:
    repeats = call.integers(1)
    name = emitter.node("Tile", [_take(emitter, call), emitter.integers(repeats)])
    emitter.give(call.outputs[0], name)


def _gather(emitter: Emitter, call: OperationCall) -> None:
    axis = call.integer(1) % call.tensor(0).rank
    places = _places(emitter, call, call.shape(0)[axis])
    name = emitter.node("Gather", [_take(emitter, call), places], axis=axis)
    emitter.give(call.outputs[0], name)


def _places(emitter: Emitter, call: OperationCall, size: int) -> str:
    """Places of which none is beyond the end, or the run fails: those below 0 are moved there."""
    known = call.tensor(2).value
    if known is None:
        places = emitter.whole(call.inputs[2])
        zero, beyond = (emitter.constant(np.asarray(n, np.int32)) for n in (0, size))
        below = emitter.node("Less", [places, zero])
        return emitter.node("Where", [below, beyond, places])
    if ((known < 0) | (known >= size)).any():
        raise OrtUnsupported("gathers beyond the end")
    return emitter.constant(known.astype(np.int64))


def _block(type: str) -> Lower:
    def lower(emitter: Emitter, call: OperationCall) -> None:
        nchw = is_nchw(call.arguments)
        name = emitter.real(call.inputs[0], first=not nchw)
        name = emitter.node(type, [name], blocksize=call.integer(1))
        emitter.give_real(call.outputs[0], name, first=not nchw)

    return lower


_O = OperationType
LOWERINGS: dict[int | tuple[str, int], Lower] = {
    _O.RESHAPE: _reshape,
    _O.SQUEEZE: _reshape,
    _O.EXPAND_DIMS: _reshape,
    _O.TRANSPOSE: _transpose,
    _O.CONCATENATION: _concatenation,
    _O.PAD: _pad,
    _O.PAD_V2: _pad,
    _O.SLICE: _slice,
    _O.STRIDED_SLICE: _strided_slice,
    _O.CHANNEL_SHUFFLE: _channel_shuffle,
    _O.SPLIT: _split,
    _O.TILE: _tile,
    _O.GATHER: _gather,
    _O.DEPTH_TO_SPACE: _block("DepthToSpace"),
    _O.SPACE_TO_DEPTH: _block("SpaceToDepth"),
}
"""How each operation becomes nodes."""
