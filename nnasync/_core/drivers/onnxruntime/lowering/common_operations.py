"""The operations of org.nnasync.common."""

from __future__ import annotations

import math

import numpy as np

from nnasync._core.drivers.onnxruntime.lowering.call import OperationCall
from nnasync._core.drivers.onnxruntime.lowering.emitter import Emitter
from nnasync._core.drivers.onnxruntime.lowering.windows import Lower
from nnasync.extensions import COMMON, CommonOperation


def _batch_matmul(emitter: Emitter, call: OperationCall) -> None:
    names = [emitter.real(index) for index in call.inputs[:2]]
    for position in (0, 1):
        if call.flag(position + 2):
            rank = call.tensor(position).rank
            order = [*range(rank - 2), rank - 1, rank - 2]
            names[position] = emitter.node("Transpose", [names[position]], perm=order)
    emitter.give_real(call.outputs[0], emitter.node("MatMul", names))


def _number(emitter: Emitter, value: float) -> str:
    return emitter.constant(np.asarray(value, np.float32))


def _gelu(emitter: Emitter, call: OperationCall) -> None:
    """Emits GELU as the nodes that ONNX Runtime fuses; this opset has no such operator."""
    x = emitter.real(call.inputs[0])
    inner = _tanh(emitter, x) if call.flag(1) else _erf(emitter, x)
    share = emitter.node("Add", [inner, _number(emitter, 1)])
    name = emitter.node("Mul", [emitter.node("Mul", [x, share]), _number(emitter, 0.5)])
    emitter.give_real(call.outputs[0], name)


def _erf(emitter: Emitter, x: str) -> str:
    return emitter.node("Erf", [emitter.node("Div", [x, _number(emitter, math.sqrt(2))])])


def _tanh(emitter: Emitter, x: str) -> str:
    """tanh(sqrt(2 / pi) * (x + 0.044715 * x**3))."""
    cube = emitter.node("Mul", [emitter.node("Mul", [x, x]), x])
    cube = emitter.node("Mul", [cube, _number(emitter, 0.044715)])
    whole = emitter.node("Add", [x, cube])
    factor = _number(emitter, math.sqrt(2 / math.pi))
    return emitter.node("Tanh", [emitter.node("Mul", [whole, factor])])


def _cumulative_sum(emitter: Emitter, call: OperationCall) -> None:
    axis = emitter.constant(np.asarray(call.integer(1), np.int64))
    flags = {"exclusive": int(call.flag(2)), "reverse": int(call.flag(3))}
    name = emitter.node("CumSum", [emitter.real(call.inputs[0]), axis], **flags)
    emitter.give_real(call.outputs[0], name)


def _round(emitter: Emitter, call: OperationCall) -> None:
    index = call.inputs[0]
    first = emitter.is_first(index)
    name = emitter.node("Round", [emitter.real(index, first=first)])
    emitter.give_real(call.outputs[0], name, first=first)


LOWERINGS: dict[int | tuple[str, int], Lower] = {
    (COMMON.name, CommonOperation.BATCH_MATMUL): _batch_matmul,
    (COMMON.name, CommonOperation.GELU): _gelu,
    (COMMON.name, CommonOperation.CUMSUM): _cumulative_sum,
    (COMMON.name, CommonOperation.ROUND): _round,
}
