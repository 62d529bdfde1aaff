"""Custom operators that the HAL has: the post-processing of detectors, and a layer of MediaPipe's.

MediaPipe's networks for segmentation have transposed convolutions with a bias. Their parameters are
a struct of C: padding (1 is SAME, 2 VALID) and strides, numbers of 32 bits. Unlike TFLite's own
operator it has no shape of the result, which follows from the parameters.
"""

from __future__ import annotations

import importlib
import struct
from typing import Any

from nnasync._core.importers.tflite.converter import FLOATS, Converter, Kinds, dequantized
from nnasync._core.importers.tflite.tensor_values import Tensors
from nnasync._core.importers.tflite.tflite_file import Graph, OperatorInfo
from nnasync._core.model.graph import Input
from nnasync.errors import ModelError
from nnasync.hal import OperandType, OperationType
from nnasync.kernels.operation import Tensor

_KINDS: Kinds = (
    *FLOATS,
    ("UINT8",),
    ("FLOAT32", "FLOAT32", "UINT8"),
    ("UINT8", "UINT8", "FLOAT32"),
)
_TRANSPOSED = struct.Struct("<3i")
_SAME, _VALID, _MOST, _NO_ACTIVATION = 1, 2, 1 << 15, 0
_DEFAULTS = {"detections_per_class": 100, "use_regular_nms": False}


def _options(operator: OperatorInfo) -> dict[str, Any]:
    """The parameters, which are a map in the format of flexbuffers; raises ModelError."""
    flexbuffers: Any = importlib.import_module("flatbuffers.flexbuffers")
    try:
        found = flexbuffers.Loads(operator.custom_options)
    except Exception as error:  # of a hostile file it may be any
        raise ModelError(f"has options that cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise ModelError("has options that are no map")
    return {**_DEFAULTS, **found}


def _detections(tensors: Tensors, operator: OperatorInfo) -> None:
    """Boxes, classes, scores and count; the HAL gives scores first and whole numbers as INT32."""
    options = _options(operator)
    try:
        scales = [float(options[f"{name}_scale"]) for name in ("y", "x", "h", "w")]
        counts = [int(options["max_detections"]), int(options["max_classes_per_detection"])]
        limits = [float(options[f"nms_{name}_threshold"]) for name in ("score", "iou")]
        per_class = int(options["detections_per_class"])
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(f"has options that are not those of this operator: {error}") from error
    given = [tensors.input(operator, place) for place in range(3)]
    boxes, scores, anchors = (
        x if x.type == OperandType.TENSOR_FLOAT32 else dequantized(tensors, x) for x in given
    )
    if scores.shape[-1] != options.get("num_classes", 0) + 1:
        raise ModelError("has no scores for the background")
    values = tensors.builder.operation_outputs(
        OperationType.DETECTION_POSTPROCESSING,
        scores,
        boxes,
        anchors,
        *scales,
        bool(options["use_regular_nms"]),
        *counts,
        per_class,
        *limits,
        False,
    )
    found = [values[1], values[2], values[0], values[3]]
    for place in (1, 3):
        result = Tensor(type=OperandType.TENSOR_FLOAT32, shape=found[place].shape)
        found[place] = tensors.builder.operation(OperationType.CAST, found[place], output=result)
    tensors.define_all(operator, found)


def _biased_transpose_convolution(tensors: Tensors, operator: OperatorInfo) -> None:
    padding, *strides = _TRANSPOSED.unpack_from(operator.custom_options)
    x, weights, bias = (tensors.input(operator, place) for place in range(3))
    sizes = zip(x.shape[2:0:-1], weights.shape[2:0:-1], strides, strict=True)
    cuts: list[Input] = []
    for size, window, stride in sizes:
        cut = max(0, window - (size - 1) % stride - 1) if padding == _SAME else 0
        cuts += [cut // 2, cut - cut // 2]
    inputs: list[Input] = [x, weights, bias, *cuts, *strides, _NO_ACTIVATION, False]
    tensors.emit(operator, OperationType.TRANSPOSE_CONV_2D, inputs)


def _refuse_biased(graph: Graph, operator: OperatorInfo) -> str | None:
    if len(operator.custom_options) < _TRANSPOSED.size or len(operator.inputs) != 3:
        return "with other inputs or parameters than MediaPipe's"
    padding, *strides = _TRANSPOSED.unpack_from(operator.custom_options)
    if padding not in (_SAME, _VALID) or not all(0 < stride < _MOST for stride in strides):
        return f"with padding {padding} and strides {strides}"
    x, weights = (graph.tensors[index] for index in operator.inputs[:2])
    if len(x.shape) != 4 or len(weights.shape) != 4 or 0 in x.open_shape:
        return "without an image and weights of rank 4"
    return None


CONVERTERS: dict[str, tuple[Converter, ...]] = {
    "CUSTOM Convolution2DTransposeBias": (
        Converter(FLOATS, _biased_transpose_convolution, _refuse_biased),
    ),
    "CUSTOM TFLite_Detection_PostProcess": (Converter(_KINDS, _detections, outputs=("FLOAT32",)),),
}
