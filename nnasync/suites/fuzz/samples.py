"""What fuzzing begins with: small models of every operation in all its types, and their inputs."""

from __future__ import annotations

import functools
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from nnasync import hal
from nnasync._core.model import ModelBuilder, Value
from nnasync.errors import CallerError, InvalidArgument
from nnasync.extensions import COMMON, TFLITE
from nnasync.hal import Array, ChannelQuant, Model, OperandType, Struct
from nnasync.hal import OperationType as O
from nnasync.kernels import (
    EXTENSION_OPERATIONS,
    OPERATIONS,
    Operation,
    Parameter,
    Signature,
    Tensor,
)
from nnasync.suites.fuzz.small_models import branching, example, looping

__all__ = [
    "FuzzSample",
    "own_samples",
    "random_array",
    "samples_of",
    "without_samples",
]

T = OperandType


class FuzzSample(Struct, frozen=True):
    """A model and values for operands of its main subgraph that are, or may become, inputs."""

    model: Model
    feeds: dict[int, Array]


class ConstantForm:
    """A constant tensor of this shape, or with these values."""

    def __init__(self, *shape: int, values: Any = None) -> None:
        self.shape = shape
        self.values = values


def numbers(*values: Any) -> ConstantForm:
    """A constant tensor with values."""
    return ConstantForm(values=np.array(values))


Form = dict[str, Any]
"""What each parameter of an operation is, by name.

The shape of an input, a ConstantForm, a scalar, or None for an omitted one.
"""

_COMMON: Form = {
    "a": (2, 1, 3),
    "activation": 0,
    "alpha": 1.0,
    "axis": 1,
    "b": (2, 3),
    "beta": 1.0,
    "bias": ConstantForm(2),
    "dilation_height": 1,
    "dilation_width": 1,
    "depth_multiplier": 1,
    "filter_height": 2,
    "filter_width": 2,
    "input": (1, 4, 4, 2),
    "padding_bottom": 1,
    "padding_left": 0,
    "padding_right": 1,
    "padding_scheme": 1,
    "padding_top": 0,
    "stride_height": 1,
    "stride_width": 2,
}
_UNPADDED: Form = {"padding_scheme": 2, "padding_right": 0, "padding_bottom": 0}
_REDUCTION: Form = {"axes": numbers(1, -1), "keep_dimensions": True}
_ROI: Form = {
    "rois": numbers([0.0, 0.0, 2.0, 3.0], [1.0, 1.0, 4.0, 4.0]),
    "batch_indexes": numbers(0, 0),
    "output_height": 2,
    "output_width": 2,
    "height_ratio": 2.0,
    "width_ratio": 2.0,
    "height_sampling": 2,
    "width_sampling": 0,
}
_LSTM: Form = {
    "projection_.*": None,
    "aux_.*": None,
    "input": (2, 3),
    "input_to_.*": ConstantForm(4, 3),
    "recurrent_to_.*": ConstantForm(4, 4),
    "cell_to_.*": ConstantForm(4),
    ".*_bias": ConstantForm(4),
    "output_state_in": (2, 4),
    "cell_state_in": (2, 4),
    "cell_clip": 3.0,
    "projection_clip": 0.0,
    ".*_layer_norm_weights": None,
    "input_intermediate_scale": 0.01,
    "forget_intermediate_scale": 0.01,
    "cell_intermediate_scale": 0.01,
    "output_intermediate_scale": 0.01,
    "hidden_state_zero_point": 0,
    "hidden_state_scale": 0.01,
    "activation": 4,
}
_NORMALIZED: Form = _LSTM | {
    "recurrent_to_.*": ConstantForm(4, 2),
    ".*_layer_norm_weights": ConstantForm(4),
    "projection_weights": ConstantForm(2, 4),
    "projection_bias": ConstantForm(2),
    "output_state_in": (2, 2),
}
_COUPLED: Form = {"(.*_to_input|cell_to_.*)_weights": None, "input_gate_bias": None} | _LSTM
_RNN: Form = {
    "input": (2, 2, 3),
    "weights": ConstantForm(4, 3),
    "recurrent_weights": ConstantForm(4, 4),
    "bias": ConstantForm(4),
    "hidden_state_in": (2, 4),
    "aux_.*": None,
}
_SVDF: Form = {
    "input": (2, 3),
    "weights_feature": ConstantForm(4, 3),
    "weights_time": ConstantForm(4, 5),
    "bias": ConstantForm(2),
    "state_in": (2, 20),
    "rank": 2,
}


def _sequences(*forms: Form) -> tuple[Form, ...]:
    return tuple(form | {"input": (3, 2, 3), "is_time_major": True} for form in forms)


_FORMS: dict[str, tuple[Form, ...]] = {
    "AVERAGE_POOL_2D": (
        {},
        {"is_nchw": True},
        {"filter_height": 4, "filter_width": 4, **_UNPADDED},
    ),
    "AXIS_ALIGNED_BBOX_TRANSFORM": (
        _ROI
        | {
            "deltas": (2, 8),
            "image_info": numbers([32.0, 32.0]),
        },
    ),
    "BATCH_TO_SPACE_ND": ({"input": (4, 2, 2, 1), "block_shape": numbers(2, 2)},),
    "BIDIRECTIONAL_SEQUENCE_LSTM": (
        *_sequences(_LSTM, _COUPLED),
        *_sequences(
            {"aux_input": (3, 2, 3), "aux_input_to_.*": ConstantForm(4, 3)} | _LSTM,
            _LSTM | {"merge_outputs": True},
        ),
    ),
    "BIDIRECTIONAL_SEQUENCE_RNN": (
        _RNN,
        _RNN | {"merge_outputs": True, "is_time_major": True},
        {"aux_input": (2, 2, 3), "aux_input_weights": ConstantForm(4, 3)} | _RNN,
    ),
    f"{COMMON.name}.BATCH_MATMUL": (
        {"a": (2, 1, 3), "b": ConstantForm(3, 2), "transpose_a": False, "transpose_b": False},
        {"a": (3, 2), "b": (2, 2, 3), "transpose_a": True, "transpose_b": True},
    ),
    f"{COMMON.name}.CUMSUM": tuple(
        {"input": (3, 1, 4), "axis": axis, "exclusive": exclusive, "reverse": reverse}
        for axis, exclusive, reverse in ((0, False, False), (-1, True, False), (2, True, True))
    ),
    f"{COMMON.name}.GELU": ({"approximate": False}, {"approximate": True}),
    "BOX_WITH_NMS_LIMIT": tuple(
        {
            "scores": (4, 3),
            "rois": (4, 12),
            "batch_indexes": numbers(0, 0, 1, 1),
            "score_threshold": 0.1,
            "max_num_detections": -1,
            "soft_nms_kernel": kernel,
            "iou_threshold": 0.4,
            "sigma": 0.5,
            "nms_score_threshold": 0.1,
        }
        for kernel in range(3)
    ),
    "CHANNEL_SHUFFLE": ({"groups": 2, "axis": -1},),
    "CONCATENATION": ({"input": (2, 3)},),
    "DEPTHWISE_CONV_2D": (
        {"filter": ConstantForm(1, 2, 2, 2)},
        {"filter": ConstantForm(1, 3, 2, 2), "input": (2, 5, 4, 1), "depth_multiplier": 2},
    ),
    "DEPTH_TO_SPACE": ({"input": (1, 2, 2, 4), "block_size": 2},),
    "DETECTION_POSTPROCESSING": tuple(
        {
            "scores": (1, 6, 3),
            "box_encodings": (1, 6, 4),
            "anchors": ConstantForm(6, 4),
            "dy_scale": 10.0,
            "dx_scale": 10.0,
            "dh_scale": 5.0,
            "dw_scale": 5.0,
            "use_regular_nms": regular,
            "max_num_detections": 3,
            "max_classes_per_detection": 1,
            "max_num_detections_per_class": 2,
            "score_threshold": 0.1,
            "iou_threshold": 0.5,
            "is_background_in_labels": False,
        }
        for regular in (True, False)
    ),
    "EMBEDDING_LOOKUP": ({"lookups": numbers(1, 0, 1), "values": (3, 2, 2)},),
    "FILL": ({"dims": numbers(2, 3), "value": 1},),
    "FULLY_CONNECTED": ({"input": (2, 4), "weights": ConstantForm(2, 4)},),
    "GATHER": ({"axis": -1, "indices": numbers([0, 1], [1, 0])},),
    "GENERATE_PROPOSALS": (
        {
            "scores": (1, 2, 2, 2),
            "deltas": (1, 2, 2, 8),
            "anchors": numbers([0.0, 1.0, 4.0, 3.0], [1.0, 0.0, 3.0, 4.0]),
            "image_info": numbers([32.0, 32.0]),
            "height_stride": 4.0,
            "width_stride": 4.0,
            "pre_nms_top_n": -1,
            "post_nms_top_n": 3,
            "iou_threshold": 0.7,
            "min_size": 1.0,
        },
    ),
    "GROUPED_CONV_2D": (
        {"filter": ConstantForm(2, 2, 2, 1), "groups": 2},
        {"filter": ConstantForm(2, 2, 2, 2), "groups": 2, "input": (1, 4, 3, 3), "is_nchw": True},
    ),
    "CONV_2D": (
        {"filter": ConstantForm(2, 2, 2, 2)},
        {"filter": ConstantForm(2, 2, 2, 2), "input": (1, 2, 4, 4), "is_nchw": True},
        {"filter": ConstantForm(2, 1, 1, 2), "stride_width": 1, **_UNPADDED},
    ),
    "HASHTABLE_LOOKUP": ({"lookups": numbers(5, 7), "keys": numbers(1, 5, 9), "values": (3, 2)},),
    "HEATMAP_MAX_KEYPOINT": (
        {"heatmaps": (2, 4, 4, 3), "boxes": numbers(*[[0.0, 1.0, 4.0, 6.0]] * 2)},
    ),
    "INSTANCE_NORMALIZATION": ({"gamma": 1.5, "epsilon": 0.1, "layout": False},),
    "LOCAL_RESPONSE_NORMALIZATION": ({"radius": 2, "bias": 1.0, "axis": 3},),
    "LOG_SOFTMAX": ({"logits": (2, 3)},),
    "SOFTMAX": ({"input": (2, 3)},),
    "LSH_PROJECTION": tuple(
        {"hash": ConstantForm(3, 2), "input": (4, columns), "weight": weight, "type": type}
        for columns, weight, type in (
            (2, ConstantForm(4), 2),
            (6, None, 1),
            (12, None, 3),
            (70, None, 1),
        )
    ),
    "LSTM": (_LSTM, _NORMALIZED, _COUPLED),
    "UNIDIRECTIONAL_SEQUENCE_LSTM": _sequences(_LSTM, _NORMALIZED, _COUPLED),
    "QUANTIZED_LSTM": (_LSTM, _NORMALIZED, _COUPLED),
    "QUANTIZED_16BIT_LSTM": (_LSTM | {"output_in": (2, 4)},),
    "PAD": ({"input": (2, 3), "paddings": numbers([1, 0], [0, 2])},),
    "PAD_V2": ({"input": (2, 3), "paddings": numbers([1, 0], [0, 2]), "value": 1},),
    "POW": ({"base": (2, 3), "exponent": (3,)},),
    "PRELU": ({"alpha": ConstantForm(1, 1, 2)},),
    "RANDOM_MULTINOMIAL": ({"logits": (2, 4), "sample_count": 3, "seeds": numbers(3, 4)},),
    "RESHAPE": ({"shape": numbers(2, -1)},),
    "RESIZE_BILINEAR": (
        {"width": 3, "height": 5},
        {"width": 0.6, "height": 1.5},
    ),
    "RESIZE_NEAREST_NEIGHBOR": ({"width": 3, "height": 5}, {"width": 0.6, "height": 1.5}),
    "RNN": (_RNN | {"input": (2, 3)},),
    "ROI_ALIGN": (_ROI,),
    "ROI_POOLING": (_ROI,),
    "SELECT": ({"condition": (2, 3), "a": (2, 3), "b": (2, 3)},),
    "SLICE": ({"input": (3, 4), "begin": numbers(1, 0), "size": numbers(2, -1)},),
    "SPACE_TO_BATCH_ND": ({"block_shape": numbers(2, 2), "paddings": numbers([0, 0], [0, 0])},),
    "SPACE_TO_DEPTH": ({"block_size": 2},),
    "SPLIT": ({"num_splits": 2},),
    "SQUEEZE": ({"input": (1, 2, 1), "dims": numbers(0)}, {"input": (1, 2, 1), "dims": None}),
    "STRIDED_SLICE": (
        {
            "input": (4, 5),
            "begin": numbers(0, -1),
            "end": numbers(3, 0),
            "strides": numbers(2, -1),
            "begin_mask": 0,
            "end_mask": 2,
            "shrink_axis_mask": 0,
        },
    ),
    "SVDF": (_SVDF, _SVDF | {"bias": None}),
    "TILE": ({"input": (2, 3), "multiples": numbers(2, 1)},),
    "TOPK_V2": ({"input": (2, 5), "k": 3},),
    "TRANSPOSE": ({"perm": numbers(0, 3, 1, 2)}, {"perm": None}),
    "TRANSPOSE_CONV_2D": (
        {"filter": ConstantForm(2, 2, 2, 2), "output_shape": numbers(1, 4, 7, 2)},
    ),
    "UNIDIRECTIONAL_SEQUENCE_RNN": (_RNN,),
}
for _name in ("MEAN", "REDUCE_ALL", "REDUCE_ANY", "REDUCE_MAX", "REDUCE_MIN"):
    _FORMS[_name] = (_REDUCTION,)
_FORMS["REDUCE_PROD"] = _FORMS["REDUCE_SUM"] = (_REDUCTION,)


def random_array(source: random.Random, type: int, shape: Sequence[int]) -> Array:
    """Ordinary values of a type: floats around 0, small integers, steps of all sizes."""
    dtype = hal.dtype_of(type)
    generator = np.random.default_rng(source.getrandbits(32))
    if dtype.kind == "f":
        return generator.standard_normal(shape).astype(dtype)
    if dtype.kind == "b":
        return generator.random(shape) < 0.5
    if dtype.itemsize == 4:
        return generator.integers(0, 3, shape).astype(dtype)
    limits = np.iinfo(dtype)
    return generator.integers(limits.min, limits.max, shape, dtype, endpoint=True)


_QUANTIZATION: dict[tuple[str, str], tuple[float, int]] = {
    ("QUANTIZED_16BIT_LSTM", "input"): (1 / 128, 128),
    ("QUANTIZED_16BIT_LSTM", "output_in"): (1 / 128, 128),
    ("QUANTIZED_16BIT_LSTM", "cell_state_in"): (2**-11, 0),
    ("QUANTIZED_LSTM", "cell_state_in"): (2**-11, 0),
    ("org.nnasync.tflite.UNIDIRECTIONAL_SEQUENCE_LSTM", "cell_state_in"): (2**-11, 0),
}
"""Quantization of operands where the operation takes only one."""


_RESULTS: dict[tuple[str, int], float] = {
    (f"{TFLITE.name}.SOFTMAX", T.TENSOR_QUANT16_ASYMM): 2**-16,
    (f"{TFLITE.name}.SOFTMAX", T.TENSOR_QUANT16_SYMM): 2**-15,
}
"""Scales of results where the operation gives only one."""
_CONVERSIONS = (f"{TFLITE.name}.QUANTIZE", f"{TFLITE.name}.DEQUANTIZE")


class _Writer:
    """Writes the model of one operation."""

    def __init__(self, operation: Operation, source: random.Random) -> None:
        self._operation = operation
        self._name = operation.name
        self._source = source
        self._builder = ModelBuilder(operation.name)
        self._feeds: dict[int, Array] = {}
        self._scales: dict[str, float] = {}

    def sample(self, signature: Signature, form: Form) -> FuzzSample:
        """A model of one operation; raises CallerError where types and form do not go together."""
        builder, operation = self._builder, self._operation
        values = [self._value(parameter, form) for parameter in signature.inputs]
        if operation.name == "CONCATENATION":
            values.insert(1, values[0])
        outputs = self._outputs(signature, [None if v is None else v.tensor for v in values])
        type = operation.type
        extension = _extension(operation)
        if extension:
            type = builder.extension_type(extension, type)
        results = builder.operation_outputs(type, *values, outputs=outputs)
        for index, result in enumerate(results):
            builder.output(f"output {index}", result)
        return FuzzSample(builder.build(), self._feeds)

    def _outputs(self, signature: Signature, inputs: Sequence[Tensor | None]) -> list[Tensor]:
        types = [parameter.type for parameter in signature.outputs]
        if self._name == "SPLIT":
            types *= 2
        found = []
        for type, rule in zip(types, self._operation.infer(inputs, types), strict=True):
            scale, zero_point = rule.scale, rule.zero_point
            if hal.zero_points(type) is None:
                scale, zero_point = 0.5 if self._takes_scaled_integers(type) else 0.0, 0
            elif not scale:
                usual = 0.125 if type == T.TENSOR_QUANT16_ASYMM else 0.5
                scale, zero_point = _RESULTS.get((self._name, type), usual), 0
            found.append(Tensor(type=type, scale=scale, zero_point=zero_point))
        return found

    def _takes_scaled_integers(self, type: int) -> bool:
        return type == T.TENSOR_INT32 and self._name in _CONVERSIONS

    def _value(self, parameter: Parameter, form: Form) -> Value | None:
        part = _part(parameter.name, form)
        type = T(parameter.type)
        if part is None:
            return None
        if hal.is_scalar(type):
            return self._builder.constant(np.asarray(part, hal.dtype_of(type)), type=type)
        if part is False:
            raise InvalidArgument(f"no form says what the tensor {parameter.name!r} is")
        if isinstance(part, ConstantForm) and part.values is not None:
            array = part.values.astype(hal.dtype_of(type))
        else:
            shape = part.shape if isinstance(part, ConstantForm) else part
            array = random_array(self._source, type, shape)
        quant = self._quantization(parameter, array.shape)
        if isinstance(part, ConstantForm) or "channel_quant" in quant:
            value = self._builder.constant(array, type=type, **quant)
        else:
            value = self._builder.input(parameter.name, array.shape, type=type, **quant)
        self._feeds[value.index] = array
        self._scales[parameter.name] = value.scale
        return value

    def _quantization(self, parameter: Parameter, shape: Sequence[int]) -> dict[str, Any]:
        type, name = parameter.type, parameter.name
        if type == T.TENSOR_QUANT8_SYMM_PER_CHANNEL:
            channel = len(shape) - 1 if self._name == "DEPTHWISE_CONV_2D" else 0
            scales = tuple(0.25 + 0.25 * index for index in range(shape[channel]))
            return {"channel_quant": ChannelQuant(scales, channel)}
        if self._name == "QUANTIZED_16BIT_LSTM" and name.endswith("_bias"):
            return {"scale": 0.5 / 128}
        if name == "bias":
            weights = self._scales.get("filter", self._scales.get("weights", 0.0))
            return {"scale": self._scales["input"] * weights if type == T.TENSOR_INT32 else 0.0}
        if hal.zero_points(type) is None:
            return {"scale": 0.5} if self._takes_scaled_integers(type) else {}
        boxes = type == T.TENSOR_QUANT16_ASYMM or name == "anchors"
        usual = 0.125 if boxes else 0.5, 0
        scale, zero_point = _QUANTIZATION.get((self._name, name), usual)
        return {"scale": scale, "zero_point": zero_point}


def _part(name: str, form: Form) -> Any:
    """Returns a parameter's form: by its name, by that without the direction, or by a pattern."""
    bare = re.sub("^[fb]w_", "", name)
    for given in (form, _COMMON):
        if bare in given:
            return given[bare]
    for pattern, part in form.items():
        if re.fullmatch(pattern, bare):
            return part
    return False


def _extension(operation: Operation) -> str:
    """The name of the extension of an operation, which its own begins with; or nothing."""
    return operation.name.rpartition(".")[0]


def _forms(operation: Operation) -> tuple[Form, ...]:
    """The forms under its whole name, or those of the HAL's operation of the same name."""
    name = operation.name.removeprefix(_extension(operation) + ".")
    if operation.type == O.BIDIRECTIONAL_SEQUENCE_LSTM and not _extension(operation):
        name = "BIDIRECTIONAL_SEQUENCE_LSTM"
    return _FORMS.get(operation.name) or _FORMS.get(name, ({},))


def _of_operation(
    operation: Operation, source: random.Random
) -> Iterator[FuzzSample | CallerError]:
    """Samples of an operation, and why types and forms that do not go together do not."""
    for signature in operation.signatures:
        for form in _forms(operation):
            try:
                yield _Writer(operation, source).sample(signature, form)
            except CallerError as error:
                yield error


def samples_of(operation: Operation) -> list[FuzzSample]:
    """The samples of one operation, the same each time."""
    made = _of_operation(operation, random.Random(7))
    return [sample for sample in made if isinstance(sample, FuzzSample)]


def without_samples(operations: Iterable[Operation]) -> list[str]:
    """Returns which operations have no sample, why, and what to do about it."""
    found = []
    for operation in operations:
        made = list(_of_operation(operation, random.Random(7)))
        if not any(isinstance(each, FuzzSample) for each in made):
            why = made[0] if made else "it has no signatures"
            todo = f"add a form {operation.name!r} to _FORMS in nnasync/suites/fuzz/samples.py"
            found.append(f"no sample of {operation.name}: {why}; {todo}")
    return found


@functools.cache
def own_samples() -> tuple[FuzzSample, ...]:
    """Models of each operation by its signatures, with control flow, states and a small network."""
    source = random.Random(7)
    found = [FuzzSample(model, {}) for model in (example(), branching(), looping(), _network())]
    for operation in (*OPERATIONS.values(), *EXTENSION_OPERATIONS.values()):
        made = _of_operation(operation, source)
        found += [sample for sample in made if isinstance(sample, FuzzSample)]
    return tuple(found)


def _network() -> Model:
    """A quantized network of several layers, with constants in a pool."""
    m = ModelBuilder("network")
    x = m.input("x", (1, 8, 8, 3), type=T.TENSOR_QUANT8_ASYMM, scale=0.5, zero_point=3)
    weights = np.arange(8 * 3 * 3 * 3, dtype=np.uint8).reshape(8, 3, 3, 3)
    filters = m.constant(weights, scale=0.25, zero_point=9)
    y = m.conv_2d(x, filters, stride=2, activation="relu", scale=2.0, zero_point=4)
    y = m.average_pool_2d(y, 2)
    y = m.reshape(y, (1, -1))
    square = m.constant(np.arange(10 * 32, dtype=np.uint8).reshape(10, 32), scale=0.5)
    y = m.fully_connected(y, square, scale=4.0)
    m.output("y", m.softmax(m.dequantize(y)))
    return m.build()
