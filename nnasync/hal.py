"""The words of the Neural Networks HAL 1.3: enums with its values, frozen structs, type queries.

Every layer speaks these words and none of them acts: a struct here has no behaviour, a function
here only asks a question about types or shapes. Two rules of the HAL are easy to trip over: a
dimension of 0 means "unknown", and an empty dimension list on a tensor type means "unknown rank".
Our additions to the HAL's structs are names (`Operand.name`, `Model.name`) and the state pairs of
a streaming model (`Model.state`); durations are nanoseconds, where HAL 1.3 has microseconds.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from typing import Any, Protocol, dataclass_transform

import msgspec
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Shape = tuple[int, ...]

NOT_AVAILABLE = 2**64 - 1
"""Value of a duration that was not measured."""
BYTE_SIZE_OF_CACHE_TOKEN = 32
MAX_NUMBER_OF_CACHE_FILES = 32
MAX_TENSOR_BYTES = 2**32 - 1
DEFAULT_LOOP_TIMEOUT_NS = 2_000_000_000
MAXIMUM_LOOP_TIMEOUT_NS = 15_000_000_000
EXTENSION_PREFIX_SHIFT = 16


class ErrorStatus(enum.IntEnum):
    """Outcome of a HAL call."""

    NONE = 0
    DEVICE_UNAVAILABLE = 1
    GENERAL_FAILURE = 2
    OUTPUT_INSUFFICIENT_SIZE = 3
    INVALID_ARGUMENT = 4
    MISSED_DEADLINE_TRANSIENT = 5
    MISSED_DEADLINE_PERSISTENT = 6
    RESOURCE_EXHAUSTED_TRANSIENT = 7
    RESOURCE_EXHAUSTED_PERSISTENT = 8


class OperandType(enum.IntEnum):
    """Type of an operand; the names beginning with TENSOR_ have dimensions."""

    FLOAT32 = 0
    INT32 = 1
    UINT32 = 2
    TENSOR_FLOAT32 = 3
    TENSOR_INT32 = 4
    TENSOR_QUANT8_ASYMM = 5
    BOOL = 6
    TENSOR_QUANT16_SYMM = 7
    TENSOR_FLOAT16 = 8
    TENSOR_BOOL8 = 9
    FLOAT16 = 10
    TENSOR_QUANT8_SYMM_PER_CHANNEL = 11
    TENSOR_QUANT16_ASYMM = 12
    TENSOR_QUANT8_SYMM = 13
    TENSOR_QUANT8_ASYMM_SIGNED = 14
    SUBGRAPH = 15
    OEM = 10000
    TENSOR_OEM_BYTE = 10001


class OperandLifeTime(enum.IntEnum):
    """Where an operand's value comes from."""

    TEMPORARY_VARIABLE = 0
    SUBGRAPH_INPUT = 1
    SUBGRAPH_OUTPUT = 2
    CONSTANT_COPY = 3
    CONSTANT_REFERENCE = 4
    NO_VALUE = 5
    SUBGRAPH = 6


class OperationType(enum.IntEnum):
    """The 102 operations of HAL 1.3, and OEM_OPERATION."""

    ADD = 0
    AVERAGE_POOL_2D = 1
    CONCATENATION = 2
    CONV_2D = 3
    DEPTHWISE_CONV_2D = 4
    DEPTH_TO_SPACE = 5
    DEQUANTIZE = 6
    EMBEDDING_LOOKUP = 7
    FLOOR = 8
    FULLY_CONNECTED = 9
    HASHTABLE_LOOKUP = 10
    L2_NORMALIZATION = 11
    L2_POOL_2D = 12
    LOCAL_RESPONSE_NORMALIZATION = 13
    LOGISTIC = 14
    LSH_PROJECTION = 15
    LSTM = 16
    MAX_POOL_2D = 17
    MUL = 18
    RELU = 19
    RELU1 = 20
    RELU6 = 21
    RESHAPE = 22
    RESIZE_BILINEAR = 23
    RNN = 24
    SOFTMAX = 25
    SPACE_TO_DEPTH = 26
    SVDF = 27
    TANH = 28
    BATCH_TO_SPACE_ND = 29
    DIV = 30
    MEAN = 31
    PAD = 32
    SPACE_TO_BATCH_ND = 33
    SQUEEZE = 34
    STRIDED_SLICE = 35
    SUB = 36
    TRANSPOSE = 37
    ABS = 38
    ARGMAX = 39
    ARGMIN = 40
    AXIS_ALIGNED_BBOX_TRANSFORM = 41
    BIDIRECTIONAL_SEQUENCE_LSTM = 42
    BIDIRECTIONAL_SEQUENCE_RNN = 43
    BOX_WITH_NMS_LIMIT = 44
    CAST = 45
    CHANNEL_SHUFFLE = 46
    DETECTION_POSTPROCESSING = 47
    EQUAL = 48
    EXP = 49
    EXPAND_DIMS = 50
    GATHER = 51
    GENERATE_PROPOSALS = 52
    GREATER = 53
    GREATER_EQUAL = 54
    GROUPED_CONV_2D = 55
    HEATMAP_MAX_KEYPOINT = 56
    INSTANCE_NORMALIZATION = 57
    LESS = 58
    LESS_EQUAL = 59
    LOG = 60
    LOGICAL_AND = 61
    LOGICAL_NOT = 62
    LOGICAL_OR = 63
    LOG_SOFTMAX = 64
    MAXIMUM = 65
    MINIMUM = 66
    NEG = 67
    NOT_EQUAL = 68
    PAD_V2 = 69
    POW = 70
    PRELU = 71
    QUANTIZE = 72
    QUANTIZED_16BIT_LSTM = 73
    RANDOM_MULTINOMIAL = 74
    REDUCE_ALL = 75
    REDUCE_ANY = 76
    REDUCE_MAX = 77
    REDUCE_MIN = 78
    REDUCE_PROD = 79
    REDUCE_SUM = 80
    ROI_ALIGN = 81
    ROI_POOLING = 82
    RSQRT = 83
    SELECT = 84
    SIN = 85
    SLICE = 86
    SPLIT = 87
    SQRT = 88
    TILE = 89
    TOPK_V2 = 90
    TRANSPOSE_CONV_2D = 91
    UNIDIRECTIONAL_SEQUENCE_LSTM = 92
    UNIDIRECTIONAL_SEQUENCE_RNN = 93
    RESIZE_NEAREST_NEIGHBOR = 94
    QUANTIZED_LSTM = 95
    IF = 96
    WHILE = 97
    ELU = 98
    HARD_SWISH = 99
    FILL = 100
    RANK = 101
    OEM_OPERATION = 10000


class FusedActivationFunc(enum.IntEnum):
    """Activation applied to the result of an operation."""

    NONE = 0
    RELU = 1
    RELU1 = 2
    RELU6 = 3


class PaddingScheme(enum.IntEnum):
    """Implicit padding; NONE is treated as VALID."""

    NONE = 0
    SAME = 1
    VALID = 2


class ExecutionPreference(enum.IntEnum):
    """What a compilation optimises for."""

    LOW_POWER = 0
    FAST_SINGLE_ANSWER = 1
    SUSTAINED_SPEED = 2


class Priority(enum.IntEnum):
    """Priority of a prepared model; higher runs first."""

    LOW = 0
    MEDIUM = 1
    HIGH = 2


class DeviceType(enum.IntEnum):
    """What kind of hardware a device is."""

    OTHER = 1
    CPU = 2
    GPU = 3
    ACCELERATOR = 4


class DeviceStatus(enum.IntEnum):
    """Whether a device can take work now."""

    AVAILABLE = 0
    BUSY = 1
    OFFLINE = 2
    UNKNOWN = 3


class HalVersion(enum.IntEnum):
    """Versions of the HAL, in their order; the value is the NNAPI feature level."""

    V1_0 = 27
    V1_1 = 28
    V1_2 = 29
    V1_3 = 30


@dataclass_transform(frozen_default=True, field_specifiers=(msgspec.field,))
class Struct(msgspec.Struct, frozen=True):
    """Base of all HAL structs: immutable data without behaviour.

    Those of which a model has thousands, and that can be part of no cycle, are kept out of the
    garbage collector's sight (`gc=False`): its full passes stall every thread, the loop's too.
    """


class Memory(Protocol):
    """What a model or a request refers to as a memory pool (`memory.Pool` is one)."""

    @property
    def name(self) -> str:
        """Kind: ashmem, mmap_fd, hardware_buffer_blob or hardware_buffer."""

    @property
    def size(self) -> int:
        """Size in bytes."""

    @property
    def view(self) -> memoryview:
        """The whole pool as bytes, without a copy."""


class PerformanceInfo(Struct, gc=False):
    """Time and power of a device, as ratios to the reference; lower is better."""

    exec_time: float = math.inf
    power_usage: float = math.inf


class OperandPerformance(Struct, gc=False):
    """Performance for operations whose first input has this type."""

    type: OperandType
    info: PerformanceInfo


class Capabilities(Struct):
    """Performance figures of a device; `operand_performance` is sorted by type."""

    relaxed_float32_to_float16_performance_scalar: PerformanceInfo
    relaxed_float32_to_float16_performance_tensor: PerformanceInfo
    operand_performance: tuple[OperandPerformance, ...]
    if_performance: PerformanceInfo
    while_performance: PerformanceInfo


class DataLocation(Struct, gc=False):
    """A piece of a pool: byte offset and byte length."""

    pool_index: int = 0
    offset: int = 0
    length: int = 0


class ChannelQuant(Struct, gc=False):
    """Scales of a TENSOR_QUANT8_SYMM_PER_CHANNEL operand along one of its dimensions."""

    scales: tuple[float, ...]
    channel_dim: int


class Operand(Struct, gc=False):
    """One value of a subgraph: its type, shape, quantisation and where it lives."""

    type: int
    dimensions: Shape = ()
    number_of_consumers: int = 0
    scale: float = 0.0
    zero_point: int = 0
    lifetime: OperandLifeTime = OperandLifeTime.TEMPORARY_VARIABLE
    location: DataLocation = DataLocation()
    extra_params: ChannelQuant | bytes | None = None
    name: str = ""


class Operation(Struct, gc=False):
    """One operation: its type and the indices of its operands within the subgraph."""

    type: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


class Subgraph(Struct):
    """Operands, and operations in execution order."""

    operands: tuple[Operand, ...]
    operations: tuple[Operation, ...]
    input_indexes: tuple[int, ...]
    output_indexes: tuple[int, ...]


class ExtensionNameAndPrefix(Struct):
    """The prefix that stands for an extension inside one model."""

    name: str
    prefix: int


class ExtensionOperandType(Struct):
    """An operand type of an extension; `byte_size` of a scalar, or of one element."""

    type: int
    is_tensor: bool
    byte_size: int


class Extension(Struct):
    """A vendor extension that a device supports."""

    name: str
    operand_types: tuple[ExtensionOperandType, ...] = ()


class StatePair(Struct, gc=False):
    """A state that a stream carries: output `output` of one run is input `input` of the next.

    Both are positions in the main subgraph's `input_indexes` and `output_indexes`.
    """

    input: int
    output: int


class Model(Struct):
    """A network: a main subgraph, the subgraphs that IF and WHILE refer to, and their constants."""

    main: Subgraph
    referenced: tuple[Subgraph, ...] = ()
    operand_values: bytes | memoryview = b""
    pools: tuple[Memory, ...] = ()
    relax_computation_float32_to_float16: bool = False
    extension_name_to_prefix: tuple[ExtensionNameAndPrefix, ...] = ()
    state: tuple[StatePair, ...] = ()
    name: str = ""


class RequestArgument(Struct, gc=False):
    """One input or output of a request: a piece of a pool, or no value."""

    has_no_value: bool = False
    location: DataLocation = DataLocation()
    dimensions: Shape = ()


class Request(Struct, weakref=True):
    """Where one execution reads its inputs and writes its outputs; a pool may be a token (> 0)."""

    inputs: tuple[RequestArgument, ...]
    outputs: tuple[RequestArgument, ...]
    pools: tuple[Memory | int, ...]


class OutputShape(Struct, gc=False):
    """Actual dimensions of an output, and whether its buffer was large enough."""

    dimensions: Shape
    is_sufficient: bool = True


class Timing(Struct, gc=False):
    """Durations of one execution in nanoseconds; NOT_AVAILABLE where not measured."""

    time_on_device_ns: int = NOT_AVAILABLE
    time_in_driver_ns: int = NOT_AVAILABLE


class ExecutionResult(Struct):
    """What an execution returns besides its outputs' data."""

    output_shapes: tuple[OutputShape, ...] = ()
    timing: Timing = Timing()


class BufferDesc(Struct):
    """Shape of a driver-managed buffer; 0 is an unknown dimension, empty an unknown rank."""

    dimensions: Shape = ()


class BufferRole(Struct):
    """One use of a driver-managed buffer: input or output `io_index` of a prepared model."""

    model_index: int
    io_index: int
    frequency: float = 1.0


_NUMPY_TYPES: dict[int, np.dtype[Any]] = {
    OperandType.FLOAT32: np.dtype(np.float32),
    OperandType.INT32: np.dtype(np.int32),
    OperandType.UINT32: np.dtype(np.uint32),
    OperandType.TENSOR_FLOAT32: np.dtype(np.float32),
    OperandType.TENSOR_INT32: np.dtype(np.int32),
    OperandType.TENSOR_QUANT8_ASYMM: np.dtype(np.uint8),
    OperandType.BOOL: np.dtype(np.bool_),
    OperandType.TENSOR_QUANT16_SYMM: np.dtype(np.int16),
    OperandType.TENSOR_FLOAT16: np.dtype(np.float16),
    OperandType.TENSOR_BOOL8: np.dtype(np.bool_),
    OperandType.FLOAT16: np.dtype(np.float16),
    OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL: np.dtype(np.int8),
    OperandType.TENSOR_QUANT16_ASYMM: np.dtype(np.uint16),
    OperandType.TENSOR_QUANT8_SYMM: np.dtype(np.int8),
    OperandType.TENSOR_QUANT8_ASYMM_SIGNED: np.dtype(np.int8),
    OperandType.TENSOR_OEM_BYTE: np.dtype(np.uint8),
}

_SCALARS = frozenset(
    {
        OperandType.FLOAT32,
        OperandType.INT32,
        OperandType.UINT32,
        OperandType.BOOL,
        OperandType.FLOAT16,
        OperandType.SUBGRAPH,
        OperandType.OEM,
    }
)


def is_extension(type: int) -> bool:
    """Whether an operand or operation type belongs to a vendor extension."""
    return type > 0xFFFF


def is_scalar(type: int) -> bool:
    """Whether an operand type has no dimensions by its nature."""
    return type in _SCALARS


def is_constant(operand: Operand) -> bool:
    """Whether the model itself holds the operand's value."""
    return operand.lifetime in (
        OperandLifeTime.CONSTANT_COPY,
        OperandLifeTime.CONSTANT_REFERENCE,
    )


def dtype_of(type: int) -> np.dtype[Any]:
    """Numpy type of one element; raises KeyError for SUBGRAPH, OEM and extension types."""
    return _NUMPY_TYPES[type]


def has_dtype(type: int) -> bool:
    """Whether an element of this operand type has a numpy type."""
    return type in _NUMPY_TYPES


def is_fully_specified(type: int, dimensions: Sequence[int]) -> bool:
    """Whether every dimension is known, so that the size in bytes is."""
    return is_scalar(type) or (len(dimensions) > 0 and 0 not in dimensions)


def byte_size(type: int, dimensions: Sequence[int]) -> int:
    """Size in bytes of a value; 0 where a dimension or the rank is unknown."""
    if is_scalar(type):
        return _NUMPY_TYPES[type].itemsize if type in _NUMPY_TYPES else 0
    if not dimensions:
        return 0
    return _NUMPY_TYPES[type].itemsize * math.prod(dimensions)


def type_name(type: int) -> str:
    """Name of an operand type for messages."""
    try:
        return OperandType(type).name
    except ValueError:
        return f"operand type {type:#x}"


def operation_name(type: int) -> str:
    """Name of an operation type for messages."""
    try:
        return OperationType(type).name
    except ValueError:
        return f"operation type {type:#x}"
