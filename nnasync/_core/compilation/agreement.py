"""Whether the results of a candidate agree with those of the reference.

Floats may differ by a share of the largest expected value that grows with the number of operations
(1e-5 for one, 1e-4 up to eight, 1e-3 beyond), since sums in another order differ more the longer
they go on, or by what the network makes of the last bit of its inputs, as `conditioning` says; of
relaxed models by the tolerance of golden float16 results; and with bfloat16, where the application
asked for it, by a twentieth.

Quantized results accumulate rounding: engines round each layer in their own way, and a network
carries a step on. One operation may be one step off, up to eight three. Beyond, the bound follows
from the network: one and a half times what a step of noise in its inputs does to its results, as
`rounding` says.

Integers and truth values must be the same.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from nnasync._core.accuracy import Criterion, compare, golden_criterion
from nnasync._core.compilation.conditioning import is_rounding
from nnasync._core.compilation.rounding import Distances, class_of, fault_of, is_row_of_classes
from nnasync.hal import Array, Model, Operand, OperandType

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
_MOST_TEXTS = 3
_FEW = 8
_REDUCED = 0.05
_STEPS_OF_ONE, _STEPS_OF_FEW = 1, 3


class Judgment(msgspec.Struct, frozen=True):
    """States whether results agree, and says how far apart they are.

    may_be_rounding: floats disagree, and may not where `judge` is given what rounded inputs do.
    """

    agrees: bool
    text: str
    may_be_rounding: bool = False


class _Distance:
    """Records how far apart the samples of one output were."""

    def __init__(self) -> None:
        self.largest = 0.0
        self.same_class: bool | None = None
        self.fault = ""
        self.is_of_one_shape = True


def judge(
    model: Model,
    expected: Sequence[Sequence[Array]],
    actual: Sequence[Sequence[Array]],
    *,
    is_reduced: bool,
    moved: Sequence[Sequence[Array]] = (),
    edges: int = 0,
    rounded: Sequence[Sequence[Array]] = (),
) -> Judgment:
    """Compare the outputs of several runs, [run][output].

    `is_reduced`: the candidate computes floats with less than float32, as the application allows.
    `moved` are the reference's outputs for inputs that were moved by a step, which a model wants
    that `wants_moved`; the first `edges` runs are on inputs at edges of their range. `rounded` are
    those for inputs whose floats were moved to their neighbors.
    """
    operands = [model.main.operands[index] for index in model.main.output_indexes]
    size = _size(model)
    texts: list[str] = []
    is_plain = not is_reduced and not model.relax_computation_float32_to_float16
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
        if distance.fault and _is_carried_on(operand, size) and distance.is_of_one_shape:
            mine, his, noisy = (
                [run[position] for run in runs] for runs in (expected, actual, moved)
            )
            distance.fault = fault_of(Distances(mine, his, noisy, edges))
        is_float = is_plain and operand.type in _FLOATS and distance.is_of_one_shape
        if distance.fault and is_float and rounded:
            mine, his, noisy = (
                [run[position] for run in runs] for runs in (expected, actual, rounded)
            )
            distance.fault = "" if is_rounding(mine, his, noisy, size) else distance.fault
        if distance.fault:
            text = _at(position, operands, distance.fault)
            return Judgment(False, text, is_float and not rounded)
        texts.append(_distance_text(operand, distance))
    told = list(dict.fromkeys(texts))
    more = f"; {len(told) - _MOST_TEXTS} outputs more" if len(told) > _MOST_TEXTS else ""
    return Judgment(True, "; ".join(told[:_MOST_TEXTS]) + more)


def wants_moved(model: Model) -> bool:
    """Returns whether some of a network's results are judged by what moved inputs do."""
    operands = [model.main.operands[index] for index in model.main.output_indexes]
    return any(_is_carried_on(operand, _size(model)) for operand in operands)


def _size(model: Model) -> int:
    return sum(len(graph.operations) for graph in (model.main, *model.referenced))


def _is_carried_on(operand: Operand, size: int) -> bool:
    """Returns whether an output is quantized, and rounded many times on the way."""
    return size > _FEW and operand.type not in (*_FLOATS, *_EXACT)


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
    distance.is_of_one_shape &= expected.shape == actual.shape
    if is_row_of_classes(expected) and expected.shape == actual.shape:
        distance.same_class = class_of(expected, actual)[0] and distance.same_class is not False
    distance.fault = distance.fault or found.fault


def _float_criterion(
    operand: Operand, expected: Array, share: float, *, relaxed: bool
) -> Criterion:
    golden = golden_criterion(operand.type, half=relaxed)
    if relaxed:
        return golden
    finite = np.abs(expected[np.isfinite(expected)].astype(np.float64))
    return Criterion(golden.atol + share * float(finite.max(initial=0)), golden.rtol)


def _distance_text(operand: Operand, distance: _Distance) -> str:
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
