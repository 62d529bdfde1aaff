"""How far results may be from what is expected: tolerances by type, comparison.

Golden data, as of the conformance cases, allows |actual - expected| <= atol + rtol |expected|, by
type alone; an infinite value must be met exactly, and to expect what is no number is a fault. A
criterion may also limit the bias, mean(d), and the mean square, mean(d^2), of the deviations d,
which for floats are divided by max(1, |expected|); both are judged only where at least ten elements
were compared.

Where a criterion allows invalid values, elements are left out whose expected value is not finite,
above 1000 in float32 or above 100 in float16. The suites that these criteria stem from leave out
more, by a slip in an expression: every float16 and every value above 100. What agrees here agrees
there.
"""

from __future__ import annotations

import math

import numpy as np

from nnasync.hal import Array, Model, OperandType, Struct

_MIN_ELEMENTS_FOR_MEANS = 10


class Criterion(Struct, frozen=True):
    """What deviations are allowed.

    `mismatches` is the share of booleans that may be wrong. Infinite limits are not checked.
    """

    atol: float = 0.0
    rtol: float = 0.0
    bias: float = math.inf
    mse: float = math.inf
    mismatches: float = 0.0
    allows_invalid: bool = False


class Agreement(Struct, frozen=True):
    """How two results compare.

    `fault` says in words what is wrong, empty if they agree. `compared` elements of `elements` were
    not left out, `differing` of them are beyond the tolerance, `largest` is the largest deviation.
    """

    fault: str = ""
    elements: int = 0
    compared: int = 0
    differing: int = 0
    largest: float = 0.0
    bias: float = 0.0
    mse: float = 0.0


# -- criteria

_HALF = 5 * 0.0009765625
_SINGLE = 5 * 1.1920928955078125e-7
_MOBILENET_STEPS = 3
_FLOAT32 = (OperandType.FLOAT32, OperandType.TENSOR_FLOAT32)
_FLOAT16 = (OperandType.FLOAT16, OperandType.TENSOR_FLOAT16)
_FLOATS = (*_FLOAT32, *_FLOAT16)
_BOOLEAN = (OperandType.BOOL, OperandType.TENSOR_BOOL8)
_QUANT8 = (
    OperandType.TENSOR_QUANT8_ASYMM,
    OperandType.TENSOR_QUANT8_ASYMM_SIGNED,
    OperandType.TENSOR_QUANT8_SYMM,
    OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL,
)


def computes_in_half(model: Model) -> bool:
    """Returns whether float32 results are judged as float16: relaxed, or float16 inside."""
    return model.relax_computation_float32_to_float16 or any(
        operand.type == OperandType.TENSOR_FLOAT16
        for subgraph in (model.main, *model.referenced)
        for operand in subgraph.operands
    )


def golden_criterion(
    type: int, *, half: bool = False, test: str = "", suite: str = ""
) -> Criterion:
    """Returns the tolerance of golden data of a type; `half` is from `computes_in_half`.

    Large networks, which tests and suites reveal by their names, may be three steps off.
    """
    if type in _FLOAT16 or (type in _FLOAT32 and half):
        return Criterion(_HALF, _HALF)
    if type in _FLOAT32:
        return Criterion(1e-5, _SINGLE)
    if type in _BOOLEAN:
        return Criterion()
    if type in _QUANT8 and _is_large(test, suite):
        return Criterion(_MOBILENET_STEPS)
    return Criterion(1)


def _is_large(test: str, suite: str) -> bool:
    return "mobilenet" in test or ("CompilationCaching" in suite and "TOCTOU" not in test)


# -- comparison


def compare(actual: Array, expected: Array, type: int, criterion: Criterion) -> Agreement:
    """Compare two results of an operand type; booleans by truth, all else by value."""
    if actual.shape != expected.shape:
        return Agreement(f"has shape {list(actual.shape)}, expected {list(expected.shape)}")
    if type in _BOOLEAN:
        return _compare_truth(actual, expected, criterion)
    given, wanted = actual.astype(np.float64), expected.astype(np.float64)
    with np.errstate(all="ignore"):
        return _compare_values(given, wanted, type, criterion)


def _compare_truth(actual: Array, expected: Array, criterion: Criterion) -> Agreement:
    wrong = (actual.view(np.uint8) != 0) != (expected.view(np.uint8) != 0)
    differing, elements = int(np.count_nonzero(wrong)), wrong.size
    fault = ""
    if differing > math.ceil(criterion.mismatches * elements):
        at = tuple(map(int, np.argwhere(wrong)[0]))
        fault = f"{differing} of {elements} differ, the first at {list(at)}: {bool(actual[at])}"
    return Agreement(fault, elements, elements, differing, float(differing > 0))


def _compare_values(actual: Array, expected: Array, type: int, criterion: Criterion) -> Agreement:
    kept = _kept(expected, type) if criterion.allows_invalid else np.ones(expected.shape, np.bool_)
    compared = int(np.count_nonzero(kept))
    same = actual == expected
    deviation = np.where(same, 0.0, actual - expected)
    allowed = criterion.atol + criterion.rtol * np.abs(expected)
    close = same | (np.isfinite(expected) & (np.abs(deviation) <= allowed))
    wrong = kept & ~close
    differing = int(np.count_nonzero(wrong))
    used = deviation[kept]
    relative = used / np.maximum(1.0, np.abs(expected[kept])) if type in _FLOATS else used
    bias = float(relative.mean()) if compared else 0.0
    mse = float(np.square(relative).mean()) if compared else 0.0
    return Agreement(
        _fault(actual, expected, wrong, criterion) or _mean_fault(bias, mse, compared, criterion),
        expected.size,
        compared,
        differing,
        float(np.abs(used).max()) if compared else 0.0,
        bias,
        mse,
    )


def _kept(expected: Array, type: int) -> Array:
    kept = np.isfinite(expected)
    if type in _FLOATS:
        kept &= np.abs(expected) <= (1e3 if type in _FLOAT32 else 1e2)
    return kept


def _fault(actual: Array, expected: Array, wrong: Array, criterion: Criterion) -> str:
    differing = int(np.count_nonzero(wrong))
    if not differing:
        return ""
    at = tuple(map(int, np.argwhere(wrong)[0]))
    allowed = criterion.atol + criterion.rtol * abs(float(expected[at]))
    return (
        f"{differing} of {wrong.size} differ, the first at {list(at)}: {float(actual[at]):.9g}, "
        f"expected {float(expected[at]):.9g} within {allowed:.3g}"
    )


def _mean_fault(bias: float, mse: float, compared: int, criterion: Criterion) -> str:
    if compared < _MIN_ELEMENTS_FOR_MEANS:
        return ""
    if not abs(bias) <= criterion.bias:
        return f"the mean deviation is {bias:.3g}, beyond {criterion.bias:g}"
    if not mse <= criterion.mse:
        return f"the mean square deviation is {mse:.3g}, beyond {criterion.mse:g}"
    return ""


def compare_distribution(samples: Array, logits: Array, tolerance: float) -> Agreement:
    """Compare the frequencies of drawn classes with softmax(logits).

    `samples` is [batch, draws] of class numbers, `logits` [batch, classes]; each frequency may be
    `tolerance` off.
    """
    if samples.ndim != 2 or logits.ndim != 2 or len(samples) != len(logits):
        return Agreement(f"has shape {list(samples.shape)} for inputs {list(logits.shape)}")
    batch, classes = logits.shape
    if samples.size == 0 or samples.min() < 0 or samples.max() >= classes:
        return Agreement(f"samples must be in [0, {classes - 1}]", samples.size)
    exponential = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    expected = exponential / exponential.sum(axis=1, keepdims=True)
    counts = np.stack([np.bincount(row.astype(np.int64), minlength=classes) for row in samples])
    frequencies: Array = counts / samples.shape[1]
    wrong = np.abs(frequencies - expected) > tolerance
    fault = _fault(frequencies, expected, wrong, Criterion(tolerance))
    largest = float(np.abs(frequencies - expected).max())
    differing = int(np.count_nonzero(wrong))
    return Agreement(fault, batch * classes, batch * classes, differing, largest)
