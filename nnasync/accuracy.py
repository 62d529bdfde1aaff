"""How far results may be from what is expected: tolerances by type and operation, comparison.

There are two sets of criteria. Golden data, as of the conformance cases, allows
|actual - expected| <= atol + rtol |expected|, by type alone; an infinite value must be met exactly,
and to expect what is no number is a fault. Random graphs, which are compared with the reference
device, have classes by operation and by size of the graph; these also limit the bias, mean(d), and
the mean square, mean(d^2), of the deviations d, which for floats are divided by max(1, |expected|).
Both are judged only where at least ten elements were compared.

Where a criterion allows invalid values, elements are left out whose expected value is not finite,
above 1000 in float32 or above 100 in float16. The suites that these criteria stem from leave out
more, by a slip in an expression: every float16 and every value above 100. What agrees here agrees
there.
"""

from __future__ import annotations

import enum
import math

import numpy as np

from nnasync.hal import Array, HalVersion, Model, OperandType, OperationType, Struct

__all__ = [
    "Agreement",
    "Criterion",
    "CriterionClass",
    "class_criterion",
    "class_of",
    "compare",
    "compare_distribution",
    "computes_in_half",
    "golden_criterion",
]

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


class CriterionClass(enum.Enum):
    """Classes of criteria for random graphs; the last two are for graphs of 5 and 40 operations."""

    STRICT = "strict"
    MEDIUM = "medium"
    RELAXED = "relaxed"
    CONVOLUTION = "convolution"
    SMALL_GRAPH = "small graph"
    LARGE_GRAPH = "large graph"


# -- criteria

_HALF = 5 * 0.0009765625
_SINGLE = 5 * 1.1920928955078125e-7
_MOBILENET_STEPS = 3
_FLOAT32 = (OperandType.FLOAT32, OperandType.TENSOR_FLOAT32)
_FLOAT16 = (OperandType.FLOAT16, OperandType.TENSOR_FLOAT16)
_FLOATS = (*_FLOAT32, *_FLOAT16)
_INTEGER = (OperandType.INT32, OperandType.UINT32, OperandType.TENSOR_INT32)
_BOOLEAN = (OperandType.BOOL, OperandType.TENSOR_BOOL8)
_QUANT8 = (
    OperandType.TENSOR_QUANT8_ASYMM,
    OperandType.TENSOR_QUANT8_ASYMM_SIGNED,
    OperandType.TENSOR_QUANT8_SYMM,
    OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL,
)


def computes_in_half(model: Model) -> bool:
    """Whether golden float32 results have the tolerance of float16: relaxed, or float16 inside."""
    return model.relax_computation_float32_to_float16 or any(
        operand.type == OperandType.TENSOR_FLOAT16
        for subgraph in (model.main, *model.referenced)
        for operand in subgraph.operands
    )


def golden_criterion(
    type: int, *, half: bool = False, test: str = "", suite: str = ""
) -> Criterion:
    """What golden data of a type allows; `half` as `computes_in_half` says of the model.

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


_CLASSES: dict[CriterionClass, tuple[tuple[float, float, float], ...]] = {
    CriterionClass.STRICT: ((1e-6, 1e-7, 1e-10), (1e-3, 1e-4, 1e-8), (1, 0.1, 0.1)),
    CriterionClass.MEDIUM: ((1e-5, 1e-6, 1e-8), (1e-2, 1e-3, 1e-5), (2, 1.2, 1.2)),
    CriterionClass.RELAXED: ((1e-3, 3e-5, 1e-6), (1.0, 5e-3, 1e-3), (10, 1.5, 1.5)),
    CriterionClass.CONVOLUTION: ((2e-2, 4e-4, 1e-5), (1.0, 5e-2, 1e-2), (10, 1.5, 1.5)),
    CriterionClass.SMALL_GRAPH: ((1e-2, 4e-4, 1e-5), (1.0, 5e-2, 1e-2), (12, 2, 2)),
    CriterionClass.LARGE_GRAPH: ((1e-1, 1e-2, 1e-4), (1.0, 1e-1, 5e-2), (12, 2, 2)),
}
"""(tolerance, bias, mean square) for float32, float16 and quantised types."""

_WRONG_BOOLEANS = 0.1


def class_criterion(name: CriterionClass, type: int) -> Criterion:
    """What a class of random graphs allows an output of a type."""
    if type in _BOOLEAN:
        return Criterion(mismatches=_WRONG_BOOLEANS, allows_invalid=True)
    if type in _INTEGER:
        return Criterion(1, allows_invalid=True)
    single, half, quantized = _CLASSES[name]
    if type in _FLOAT32 or type in _FLOAT16:
        tolerance, bias, mse = single if type in _FLOAT32 else half
        return Criterion(tolerance, tolerance, bias, mse, allows_invalid=True)
    tolerance, bias, mse = quantized
    return Criterion(tolerance, tolerance, bias, mse, allows_invalid=True)


def class_of(operation: OperationType, version: HalVersion) -> CriterionClass | None:
    """The class of a graph of one operation, in its form of a HAL version.

    None for what random graphs do not cover: recurrent operations, detection, control flow.
    """
    if operation == OperationType.DIV and version == HalVersion.V1_3:
        return CriterionClass.MEDIUM
    return _CLASS_OF.get(operation)


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


# -- classes of operations

_NAMES: dict[CriterionClass, str] = {
    CriterionClass.STRICT: """
        DEPTH_TO_SPACE SPACE_TO_DEPTH EMBEDDING_LOOKUP HASHTABLE_LOOKUP RESHAPE BATCH_TO_SPACE_ND
        SPACE_TO_BATCH_ND PAD PAD_V2 TRANSPOSE SQUEEZE STRIDED_SLICE ARGMAX ARGMIN EQUAL NOT_EQUAL
        GREATER GREATER_EQUAL LESS LESS_EQUAL LOGICAL_AND LOGICAL_OR LOGICAL_NOT CHANNEL_SHUFFLE
        EXPAND_DIMS TILE GATHER SELECT TOPK_V2 SLICE FILL RANK""",
    CriterionClass.MEDIUM: """
        ADD SUB MUL FLOOR RELU RELU1 RELU6 CONCATENATION DEQUANTIZE QUANTIZE CAST ABS NEG MAXIMUM
        MINIMUM PRELU SPLIT ELU HARD_SWISH""",
    CriterionClass.RELAXED: """
        LOGISTIC TANH SOFTMAX L2_NORMALIZATION LOCAL_RESPONSE_NORMALIZATION AVERAGE_POOL_2D
        L2_POOL_2D MAX_POOL_2D RESIZE_BILINEAR RESIZE_NEAREST_NEIGHBOR FULLY_CONNECTED DIV MEAN EXP
        LOG RSQRT SIN SQRT POW REDUCE_ALL REDUCE_ANY REDUCE_MAX REDUCE_MIN REDUCE_PROD REDUCE_SUM
        INSTANCE_NORMALIZATION LOG_SOFTMAX ROI_ALIGN ROI_POOLING HEATMAP_MAX_KEYPOINT""",
    CriterionClass.CONVOLUTION: """
        CONV_2D DEPTHWISE_CONV_2D GROUPED_CONV_2D TRANSPOSE_CONV_2D""",
}

_CLASS_OF: dict[int, CriterionClass] = {
    OperationType[name]: kind for kind, names in _NAMES.items() for name in names.split()
}
