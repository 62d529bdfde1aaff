"""TFLite's operators and types in HAL terms, as tables that importer and driver share.

Names are those of the TFLite schema. An entry says which HAL operation an operator becomes, which
options it has (with the schema's defaults), and which types of its inputs the HAL can take: one
tuple per choice, whose last type stands for all further inputs. Results have the type of the first
input unless `outputs` says otherwise. A second table has the operations of our extension, for types
that the HAL cannot take.
"""

from __future__ import annotations

from collections.abc import Mapping

from nnasync.extensions import TfliteOperation
from nnasync.hal import FusedActivationFunc, OperandType, OperationType, PaddingScheme, Struct

__all__ = [
    "ACTIVATIONS",
    "EXTENSION_OPERATORS",
    "OPERATORS",
    "PADDINGS",
    "RECURRENT_ACTIVATIONS",
    "TENSOR_TYPES",
    "Default",
    "Operator",
]

Default = int | float | bool | tuple[int, ...]


class Operator(Struct, frozen=True):
    """One operator of TFLite."""

    type: OperationType | TfliteOperation
    kinds: tuple[tuple[str, ...], ...]
    options: str = ""
    defaults: Mapping[str, Default] = {}
    outputs: tuple[str, ...] = ()


TENSOR_TYPES: dict[str, OperandType] = {
    "FLOAT32": OperandType.TENSOR_FLOAT32,
    "FLOAT16": OperandType.TENSOR_FLOAT16,
    "INT32": OperandType.TENSOR_INT32,
    "BOOL": OperandType.TENSOR_BOOL8,
    "UINT8": OperandType.TENSOR_QUANT8_ASYMM,
    "INT8": OperandType.TENSOR_QUANT8_ASYMM_SIGNED,
    "INT16": OperandType.TENSOR_QUANT16_SYMM,
}

ACTIVATIONS: dict[int, FusedActivationFunc] = {
    0: FusedActivationFunc.NONE,
    1: FusedActivationFunc.RELU,
    2: FusedActivationFunc.RELU1,
    3: FusedActivationFunc.RELU6,
}
"""TFLite's fused activations that the HAL can fuse too; 4 is tanh, 5 the sign bit."""

RECURRENT_ACTIVATIONS = (0, 1, 3, 4, 6)
"""Activations of recurrent operations, which have TFLite's numbers in the HAL."""

PADDINGS: dict[int, PaddingScheme] = {0: PaddingScheme.SAME, 1: PaddingScheme.VALID}

_FUSED = {"FusedActivationFunction": 0}
_STRIDES = {"Padding": 0, "StrideW": 0, "StrideH": 0, **_FUSED}
_DILATIONS = {"DilationWFactor": 1, "DilationHFactor": 1}
_CLIPS = {"CellClip": 0.0, "ProjClip": 0.0}

_FLOAT = (("FLOAT32",),)
_PLAIN = (("FLOAT32",), ("UINT8",), ("INT8",))
_ARITHMETIC = (*_PLAIN, ("INT32",))
_WEIGHTED = (
    ("FLOAT32",),
    ("UINT8", "UINT8", "INT32"),
    ("INT8", "INT8", "INT32"),
)
_INDEXED = (("FLOAT32", "INT32"), ("UINT8", "INT32"), ("INT8", "INT32"))

OPERATORS: dict[str, Operator] = {
    "ADD": Operator(OperationType.ADD, _ARITHMETIC, "AddOptions", _FUSED),
    "SUB": Operator(OperationType.SUB, _ARITHMETIC, "SubOptions", _FUSED),
    "MUL": Operator(OperationType.MUL, _ARITHMETIC, "MulOptions", _FUSED),
    "RELU": Operator(OperationType.RELU, _PLAIN),
    "RELU_N1_TO_1": Operator(OperationType.RELU1, _PLAIN),
    "RELU6": Operator(OperationType.RELU6, _PLAIN),
    "LOGISTIC": Operator(OperationType.LOGISTIC, _PLAIN),
    "TANH": Operator(OperationType.TANH, _PLAIN),
    "HARD_SWISH": Operator(OperationType.HARD_SWISH, _PLAIN),
    "LOG": Operator(OperationType.LOG, _FLOAT),
    "CONV_2D": Operator(
        OperationType.CONV_2D, _WEIGHTED, "Conv2DOptions", {**_STRIDES, **_DILATIONS}
    ),
    "DEPTHWISE_CONV_2D": Operator(
        OperationType.DEPTHWISE_CONV_2D,
        _WEIGHTED,
        "DepthwiseConv2DOptions",
        {**_STRIDES, **_DILATIONS, "DepthMultiplier": 0},
    ),
    "FULLY_CONNECTED": Operator(
        OperationType.FULLY_CONNECTED,
        _WEIGHTED,
        "FullyConnectedOptions",
        {**_FUSED, "WeightsFormat": 0, "KeepNumDims": False},
    ),
    "AVERAGE_POOL_2D": Operator(
        OperationType.AVERAGE_POOL_2D,
        _PLAIN,
        "Pool2DOptions",
        {**_STRIDES, "FilterWidth": 0, "FilterHeight": 0},
    ),
    "MAX_POOL_2D": Operator(
        OperationType.MAX_POOL_2D,
        _PLAIN,
        "Pool2DOptions",
        {**_STRIDES, "FilterWidth": 0, "FilterHeight": 0},
    ),
    "SOFTMAX": Operator(OperationType.SOFTMAX, _PLAIN, "SoftmaxOptions", {"Beta": 0.0}),
    "RESHAPE": Operator(OperationType.RESHAPE, _INDEXED, "ReshapeOptions", {"NewShape": ()}),
    "CONCATENATION": Operator(
        OperationType.CONCATENATION, _PLAIN, "ConcatenationOptions", {"Axis": 0, **_FUSED}
    ),
    "MEAN": Operator(OperationType.MEAN, _INDEXED, "ReducerOptions", {"KeepDims": False}),
    "PAD": Operator(OperationType.PAD, _INDEXED, "PadOptions"),
    "SLICE": Operator(OperationType.SLICE, _INDEXED, "SliceOptions"),
    "QUANTIZE": Operator(
        OperationType.QUANTIZE, _PLAIN, "QuantizeOptions", outputs=("UINT8", "INT8")
    ),
    "DEQUANTIZE": Operator(
        OperationType.DEQUANTIZE,
        (("UINT8",), ("INT8",), ("FLOAT16",)),
        "DequantizeOptions",
        outputs=("FLOAT32",),
    ),
    "LSTM": Operator(
        OperationType.LSTM, _FLOAT, "LSTMOptions", {**_FUSED, **_CLIPS, "KernelType": 0}
    ),
    "RNN": Operator(OperationType.RNN, _FLOAT, "RNNOptions", _FUSED),
    "SVDF": Operator(OperationType.SVDF, _FLOAT, "SVDFOptions", {"Rank": 0, **_FUSED}),
    "UNIDIRECTIONAL_SEQUENCE_LSTM": Operator(
        OperationType.UNIDIRECTIONAL_SEQUENCE_LSTM,
        _FLOAT,
        "UnidirectionalSequenceLSTMOptions",
        {**_FUSED, **_CLIPS, "TimeMajor": False, "DiagonalRecurrentTensors": False},
    ),
}

_LSTM_KIND = (
    "INT8",
    *("INT8",) * 8,
    *("INT16",) * 3,
    *("INT32",) * 4,
    "INT8",
    "INT32",
    "INT8",
    "INT16",
    *("INT16",) * 4,
)

EXTENSION_OPERATORS: dict[str, tuple[Operator, ...]] = {
    "QUANTIZE": (
        Operator(TfliteOperation.QUANTIZE, _FLOAT, outputs=("INT16",)),
        Operator(
            TfliteOperation.QUANTIZE,
            (("UINT8",), ("INT8",), ("INT16",), ("INT32",)),
            outputs=("UINT8", "INT8", "INT16", "INT32"),
        ),
    ),
    "DEQUANTIZE": (Operator(TfliteOperation.DEQUANTIZE, (("INT16",),), outputs=("FLOAT32",)),),
    "SOFTMAX": (
        Operator(TfliteOperation.SOFTMAX, (("UINT8",), ("INT8",), ("INT16",)), outputs=("INT16",)),
    ),
    "SVDF": (
        Operator(
            TfliteOperation.SVDF,
            (
                ("INT8", "INT8", "INT8", "INT32", "INT8"),
                ("INT8", "INT8", "INT16", "INT32", "INT16"),
            ),
        ),
    ),
    "UNIDIRECTIONAL_SEQUENCE_LSTM": (
        Operator(TfliteOperation.UNIDIRECTIONAL_SEQUENCE_LSTM, (_LSTM_KIND,)),
    ),
}
"""What operations of `extensions.TFLITE` take; options are those of the operator above."""
