"""The words of the Neural Networks HAL 1.3: enums with its values, frozen structs, type queries.

Every layer speaks these words and none of them acts: a struct here has no behaviour, a function
here only asks a question about types, shapes, requests or performance figures. Two rules of the HAL
are easy to trip over: a dimension of 0 means "unknown", and an empty dimension list on a tensor
type means "unknown rank". Our additions to the HAL's structs are names (`Operand.name`,
`Model.name`) and the state pairs of a streaming model (`Model.state`); durations are nanoseconds,
where HAL 1.3 has microseconds; a performance figure that nobody stated is infinity, where HAL 1.3
has FLT_MAX.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nnasync.deferred import names
from nnasync.hal.enums import (
    DeviceStatus,
    DeviceType,
    ErrorStatus,
    ExecutionPreference,
    HalVersion,
    OperandLifeTime,
    OperandType,
    Priority,
)
from nnasync.hal.performance import (
    Capabilities10,
    Capabilities11,
    Capabilities12,
    lookup,
    operation_performance,
    subgraph_performance,
    type_performance,
    uniform_performance,
    update,
)
from nnasync.hal.queries import (
    SizedType,
    byte_size,
    combine_dimensions,
    dtype_of,
    has_dtype,
    is_constant,
    is_extension,
    is_fully_specified,
    is_quantized,
    is_scalar,
    operand_type_since,
    operation_name,
    operation_since,
    shares_memory,
    type_name,
    version_name,
    zero_points,
)
from nnasync.hal.structs import (
    BYTE_SIZE_OF_CACHE_TOKEN,
    DEFAULT_LOOP_TIMEOUT_NS,
    EXTENSION_PREFIX_SHIFT,
    MAX_NUMBER_OF_CACHE_FILES,
    MAX_TENSOR_BYTES,
    MAXIMUM_LOOP_TIMEOUT_NS,
    NOT_AVAILABLE,
    Array,
    BufferDesc,
    BufferRole,
    Capabilities,
    ChannelQuant,
    DataLocation,
    ExecutionResult,
    Extension,
    ExtensionNameAndPrefix,
    ExtensionOperandType,
    Memory,
    Model,
    Operand,
    OperandPerformance,
    Operation,
    OutputShape,
    PerformanceInfo,
    Request,
    RequestArgument,
    Shape,
    StatePair,
    Struct,
    Subgraph,
    Timing,
)

if TYPE_CHECKING:
    from nnasync.hal.operations import FusedActivationFunc as FusedActivationFunc
    from nnasync.hal.operations import OperationType as OperationType
    from nnasync.hal.operations import PaddingScheme as PaddingScheme

__all__ = [
    "ErrorStatus",
    "OperandType",
    "OperandLifeTime",
    "OperationType",
    "FusedActivationFunc",
    "PaddingScheme",
    "ExecutionPreference",
    "Priority",
    "DeviceType",
    "DeviceStatus",
    "HalVersion",
    "NOT_AVAILABLE",
    "BYTE_SIZE_OF_CACHE_TOKEN",
    "MAX_NUMBER_OF_CACHE_FILES",
    "MAX_TENSOR_BYTES",
    "DEFAULT_LOOP_TIMEOUT_NS",
    "MAXIMUM_LOOP_TIMEOUT_NS",
    "EXTENSION_PREFIX_SHIFT",
    "Array",
    "Shape",
    "Struct",
    "Memory",
    "PerformanceInfo",
    "OperandPerformance",
    "Capabilities",
    "DataLocation",
    "ChannelQuant",
    "Operand",
    "Operation",
    "Subgraph",
    "ExtensionNameAndPrefix",
    "ExtensionOperandType",
    "Extension",
    "StatePair",
    "Model",
    "RequestArgument",
    "Request",
    "OutputShape",
    "Timing",
    "ExecutionResult",
    "BufferDesc",
    "BufferRole",
    "SizedType",
    "is_extension",
    "is_scalar",
    "is_constant",
    "combine_dimensions",
    "dtype_of",
    "has_dtype",
    "is_fully_specified",
    "is_quantized",
    "byte_size",
    "type_name",
    "operation_name",
    "operand_type_since",
    "operation_since",
    "shares_memory",
    "version_name",
    "zero_points",
    "Capabilities10",
    "Capabilities11",
    "Capabilities12",
    "lookup",
    "operation_performance",
    "subgraph_performance",
    "type_performance",
    "uniform_performance",
    "update",
]

__getattr__ = names(
    __name__,
    {
        "FusedActivationFunc": "operations",
        "OperationType": "operations",
        "PaddingScheme": "operations",
    },
)
