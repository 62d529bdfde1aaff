"""What the four convolutions share: operand types, scalars, and what their scales require."""

from __future__ import annotations

from collections.abc import Sequence

from nnasync.hal import HalVersion, OperandType
from nnasync.kernels.operation import Arguments, Parameter, Requires, Signature, Tensor
from nnasync.kernels.windows.linear import check_quantization, product_scale
from nnasync.kernels.windows.window import EXPLICIT_PADDING, IMPLICIT_PADDING, LAYOUT, STRIDES

_F32, _F16 = OperandType.TENSOR_FLOAT32, OperandType.TENSOR_FLOAT16
_Q8, _Q8S = OperandType.TENSOR_QUANT8_ASYMM, OperandType.TENSOR_QUANT8_ASYMM_SIGNED
_QPC, _I32 = OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL, OperandType.TENSOR_INT32

_TYPES: tuple[tuple[OperandType, OperandType, OperandType, HalVersion], ...] = (
    (_F32, _F32, _F32, HalVersion.V1_0),
    (_Q8, _Q8, _I32, HalVersion.V1_0),
    (_F16, _F16, _F16, HalVersion.V1_2),
    (_Q8, _QPC, _I32, HalVersion.V1_2),
    (_Q8S, _Q8S, _I32, HalVersion.V1_3),
    (_Q8S, _QPC, _I32, HalVersion.V1_3),
)
"""Types of input (and output), filter and bias, and their HAL version."""

_DILATIONS = (
    Parameter("dilation_width", OperandType.INT32),
    Parameter("dilation_height", OperandType.INT32),
)

Form = tuple[HalVersion, tuple[Parameter, ...]]
"""What follows input, filter and bias, and the HAL version that this needs."""


def forms(*middle: str) -> list[Form]:
    """The forms of CONV_2D: both paddings, without and with layout, without and with dilations.

    `middle` names integers between strides and activation.
    """
    end = tuple(Parameter(name, OperandType.INT32) for name in (*middle, "activation"))
    found = []
    for padding in (IMPLICIT_PADDING, EXPLICIT_PADDING):
        scalars = (*padding, *STRIDES, *end)
        found += [
            (HalVersion.V1_0, scalars),
            (HalVersion.V1_2, scalars + LAYOUT),
            (HalVersion.V1_2, scalars + LAYOUT + _DILATIONS),
        ]
    return found


def signatures(forms: Sequence[Form]) -> list[Signature]:
    """Every combination of types in every form."""
    found = []
    for data, filter, bias, since in _TYPES:
        tensors = (
            Parameter("input", data, ranks=(4,)),
            Parameter("filter", filter, ranks=(4,)),
            Parameter("bias", bias, ranks=(1,)),
        )
        for version, scalars in forms:
            outputs = (Parameter("output", data, ranks=(4,)),)
            found.append(Signature(max(since, version), tensors + scalars, outputs))
    return found


def check_filter(arguments: Arguments, channels: int, outputs: int) -> None:
    """Raise ModelError unless filter and bias have elements and fit the numbers of channels.

    `channels` is what the last dimension of the filter must be.
    """
    filter, bias = arguments.tensor(1, 4), arguments.tensor(2, 1)
    if 0 in filter.shape:
        raise arguments.error(1, f"has shape {filter.shape}, which has no elements")
    if filter.shape[3] != channels:
        message = f"has {filter.shape[3]} channels (last dimension), expected {channels}"
        raise arguments.error(1, message)
    if bias.size != outputs:
        raise arguments.error(2, f"has {bias.size} elements, expected {outputs}")


def requires(channel_dim: int) -> Requires:
    """The version that the scales of a convolution need, whose filter has its outputs there.

    HAL 1.0 asks for an output scale above input scale * filter scale, yet its validator has always
    compared the scale of the input; what it lets pass is what 1.0 takes.
    """

    def version(arguments: Arguments, outputs: Sequence[Tensor]) -> HalVersion:
        source, filter = arguments.tensor(0), arguments.tensor(1)
        check_quantization(arguments, channel_dim)
        if source.type == filter.type == _Q8 and source.scale <= product_scale(arguments):
            return HalVersion.V1_2
        return HalVersion.V1_0

    return version
