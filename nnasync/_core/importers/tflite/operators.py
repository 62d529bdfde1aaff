"""All operators that are translated, from the files of their families.

The converters of one operator are for different types; those to the HAL's operations stand first.
"""

from __future__ import annotations

from collections.abc import Mapping

from nnasync._core.importers.tflite import (
    common_operations,
    control_flow,
    custom,
    elementwise,
    extension,
    movement,
    quantization,
    recurrent,
    reduction,
    strided_slice,
    through_floats,
    variables,
    windows,
)
from nnasync._core.importers.tflite.converter import Converter

_FAMILIES = (
    control_flow,
    custom,
    elementwise,
    movement,
    quantization,
    recurrent,
    reduction,
    strided_slice,
    variables,
    windows,
    common_operations,
    through_floats,
    extension,
)

OPERATORS: Mapping[str, tuple[Converter, ...]] = {
    name: tuple(converter for family in _FAMILIES for converter in family.CONVERTERS.get(name, ()))
    for name in sorted({name for family in _FAMILIES for name in family.CONVERTERS})
}
"""The converters of each operator; the first that takes its types is asked."""
