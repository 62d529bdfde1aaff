"""Whether the results of a candidate agree with those of the reference.

Floats may differ by a share of the largest expected value that grows with the number of operations
(1e-5 for one, 1e-4 up to eight, 1e-3 beyond), since sums in another order differ more the longer
they go on; of relaxed models by the tolerance of golden float16 results; and with bfloat16, where
the application asked for it, by a twentieth.

Quantised results accumulate rounding: engines round each layer in their own way, and a network
carries a step on. One operation may be one step off, up to eight three. Beyond, the bound is a
distance and the class: root mean square at most 2.5 steps, no element more than 64, and where the
output is a row of classes the candidate's class must be, for the reference, within 16 steps of the
best, a sixteenth of the range: what is no class at all for the reference may become another one.
(LiteRT with XNNPACK is up to 7 steps from golden results on MobileNet v1 and v2, up to 59 on v3,
with the same class.)

Integers and truth values must be the same.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from nnasync.accuracy import Criterion, compare, golden_criterion
from nnasync.hal import Array, Model, Operand, OperandType

__all__ = ["Judgement", "judge"]

_FLOATS = (
    OperandType.FLOAT32,
    OperandType.FLOAT16,
    OperandType.TENSOR_FLOAT32,
    OperandType.TENSOR_FLOAT16,
)
_EXACT = (
    OperandType.INT32,
    OperandType.UINT32,
    OperandType.TENSOR_INT32,
    OperandType.BOOL,
    OperandType.TENSOR_BOOL8,
)
_TOLD = 3
_FEW = 8
_REDUCED = 0.05
_STEPS_OF_ONE, _STEPS_OF_FEW = 1, 3
_WIDE_STEPS = 256
"""Steps of 16 bits count as so much less in a larger network."""
_MAX_RMS, _MAX_STEPS, _CLASS_STEPS = 2.5, 64, 16


class Judgement(msgspec.Struct, frozen=True):
    """Whether results agree, and how far apart they are, in words."""

    agrees: bool
    text: str


class _Distance:
    """How far apart the samples of one output were."""

    def __init__(self) -> None:
        self.largest = 0.0
        self.same_class: bool | None = None
        self.fault = ""


def judge(
    model: Model,
    expected: Sequence[Sequence[Array]],
    actual: Sequence[Sequence[Array]],
    *,
    is_reduced: bool,
) -> Judgement:
    """Compare the outputs of several runs, [run][output].

    `is_reduced`: the candidate computes floats with less than float32, as the application allows.
    """
    operands = [model.main.operands[index] for index in model.main.output_indexes]
    size = sum(len(graph.operations) for graph in (model.main, *model.referenced))
    texts: list[str] = []
    for position, operand in enumerate(operands):
        distance = _Distance()
        for run_expected, run_actual in zip(expected, actual, strict=True):
            relaxed = model.relax_computation_float32_to_float16
            _compare(
                distance,
                operand,
                run_expected[position],
                run_actual[position],
                size=size,
                share=_share(size, is_reduced=is_reduced),
                relaxed=relaxed and not is_reduced,
            )
        if distance.fault:
            return Judgement(False, _at(position, operands, distance.fault))
        texts.append(_told(operand, distance))
    told = list(dict.fromkeys(texts))
    more = f"; {len(told) - _TOLD} outputs more" if len(told) > _TOLD else ""
    return Judgement(True, "; ".join(told[:_TOLD]) + more)


def _share(size: int, *, is_reduced: bool) -> float:
    if is_reduced:
        return _REDUCED
    return 1e-5 if size <= 1 else 1e-4 if size <= _FEW else 1e-3


def _compare(
    distance: _Distance,
    operand: Operand,
    expected: Array,
    actual: Array,
    *,
    size: int,
    share: float,
    relaxed: bool,
) -> None:
    """Add one pair of results to what is known of an output."""
    if operand.type in _FLOATS:
        criterion = _float_criterion(operand, expected, share, relaxed=relaxed)
    elif operand.type in _EXACT:
        criterion = Criterion()
    else:
        criterion = Criterion(_STEPS_OF_ONE if size <= 1 else _STEPS_OF_FEW)
    found = compare(actual, expected, operand.type, criterion)
    distance.largest = max(distance.largest, found.largest)
    near = True
    allowed = _CLASS_STEPS if expected.dtype.itemsize == 1 else _CLASS_STEPS * _WIDE_STEPS
    if _is_row_of_classes(expected) and expected.shape == actual.shape:
        same, near = _class_of(expected, actual, allowed)
        distance.same_class = same and distance.same_class is not False
    fault = found.fault
    if fault and operand.type not in (*_FLOATS, *_EXACT) and size > _FEW:
        unit = 1 if expected.dtype.itemsize == 1 else _WIDE_STEPS
        fault = _beyond_steps(found.largest / unit, float(np.sqrt(found.mse)) / unit, near=near)
    distance.fault = distance.fault or fault


def _float_criterion(
    operand: Operand, expected: Array, share: float, *, relaxed: bool
) -> Criterion:
    golden = golden_criterion(operand.type, half=relaxed)
    if relaxed:
        return golden
    finite = np.abs(expected[np.isfinite(expected)].astype(np.float64))
    return Criterion(golden.atol + share * float(finite.max(initial=0)), golden.rtol)


def _beyond_steps(largest: float, rms: float, *, near: bool) -> str:
    if largest > _MAX_STEPS or rms > _MAX_RMS:
        return f"{largest:g} steps at most and {rms:.2g} in the mean square from the reference"
    return "" if near else f"another top class, {largest:g} steps at most from the reference"


def _class_of(expected: Array, actual: Array, allowed: float) -> tuple[bool, bool]:
    """Whether the top class is the same, and whether it is nearly as good for the reference."""
    wanted = expected.reshape(-1, expected.shape[-1])
    got = actual.reshape(wanted.shape).argmax(axis=1)
    chosen = wanted[np.arange(len(wanted)), got].astype(np.float64)
    best = wanted.max(axis=1).astype(np.float64)
    return bool((got == wanted.argmax(axis=1)).all()), bool((best - chosen <= allowed).all())


def _is_row_of_classes(values: Array) -> bool:
    """[batch, classes], with dimensions of 1 in between."""
    return values.ndim >= 2 and values.shape[-1] > 1 and not any(n > 1 for n in values.shape[1:-1])


def _told(operand: Operand, distance: _Distance) -> str:
    if operand.type in _FLOATS:
        text = f"max {distance.largest:.1e}"
    elif operand.type in _EXACT:
        return "equal"
    else:
        plural = "" if distance.largest == 1 else "s"
        text = f"max {distance.largest:g} step{plural}"
    if distance.same_class is None:
        return text
    return f"{text}, {'same' if distance.same_class else 'nearly the same'} top class"


def _at(position: int, operands: Sequence[Operand], fault: str) -> str:
    return f"disagrees: {fault}" if len(operands) == 1 else f"output {position} disagrees: {fault}"
