"""Signatures of operations whose tensors all have one type, and the types by version."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from nnasync.hal import HalVersion, OperandType
from nnasync.kernels.operation import Arguments, Parameter, Signature, Tensor

UP_TO_4 = (1, 2, 3, 4)
"""Ranks of the operations that HAL 1.0 began with."""

_LATER = {
    OperandType.TENSOR_FLOAT16: HalVersion.V1_2,
    OperandType.TENSOR_QUANT8_ASYMM_SIGNED: HalVersion.V1_3,
}
FROM_1_0: Mapping[OperandType, HalVersion] = {
    OperandType.TENSOR_FLOAT32: HalVersion.V1_0,
    OperandType.TENSOR_QUANT8_ASYMM: HalVersion.V1_0,
    **_LATER,
}
"""The types of operations of HAL 1.0, with the version that introduced each."""
FROM_1_1: Mapping[OperandType, HalVersion] = {
    OperandType.TENSOR_FLOAT32: HalVersion.V1_1,
    OperandType.TENSOR_QUANT8_ASYMM: HalVersion.V1_1,
    **_LATER,
}
"""The types of operations of HAL 1.1."""
FLOATS: Mapping[OperandType, HalVersion] = {
    OperandType.TENSOR_FLOAT32: HalVersion.V1_2,
    OperandType.TENSOR_FLOAT16: HalVersion.V1_2,
}
LATEST: Mapping[OperandType, HalVersion] = {
    **FLOATS,
    OperandType.TENSOR_QUANT8_ASYMM: HalVersion.V1_2,
    OperandType.TENSOR_QUANT8_ASYMM_SIGNED: HalVersion.V1_3,
}
NUMBERS: Mapping[OperandType, HalVersion] = {**LATEST, OperandType.TENSOR_INT32: HalVersion.V1_2}
"""The types of most operations since HAL 1.2, with the version that introduced each."""


def signatures(
    types: Mapping[OperandType, HalVersion],
    names: Sequence[str],
    *options: Parameter,
    ranks: tuple[int, ...] = (),
    output: OperandType | None = None,
) -> list[Signature]:
    """Tensors of one type, then options; the result has the same type or that of `output`."""
    return [
        Signature(
            since,
            (*(Parameter(name, type, ranks=ranks) for name in names), *options),
            (Parameter("output", type if output is None else output),),
        )
        for type, since in types.items()
    ]


def same_shape(arguments: Arguments) -> list[Tensor]:
    """The rule of an output with the shape of input 0."""
    type = arguments.signature.outputs[0].type
    return [Tensor(type=type, shape=arguments.tensor(0).shape)]


def require_scales(arguments: Arguments, *indices: int) -> None:
    """Raises ModelError for a quantized input without a scale."""
    for index in indices:
        scale = arguments.tensor(index).scale
        if not 0 < scale < math.inf:
            raise arguments.error(index, f"has scale {scale}, expected a positive one")
