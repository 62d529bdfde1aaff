"""Custom operators that the HAL has: the post-processing of detectors."""

from __future__ import annotations

import importlib
from typing import Any

from nnasync._core.importers.tflite.converter import FLOATS, Converter, Kinds, dequantized
from nnasync._core.importers.tflite.tensor_values import Tensors
from nnasync._core.importers.tflite.tflite_file import OperatorInfo
from nnasync.errors import ModelError
from nnasync.hal import OperandType, OperationType
from nnasync.kernels.operation import Tensor

_KINDS: Kinds = (
    *FLOATS,
    ("UINT8",),
    ("FLOAT32", "FLOAT32", "UINT8"),
    ("UINT8", "UINT8", "FLOAT32"),
)
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


CONVERTERS: dict[str, tuple[Converter, ...]] = {
    "CUSTOM TFLite_Detection_PostProcess": (Converter(_KINDS, _detections, outputs=("FLOAT32",)),),
}
