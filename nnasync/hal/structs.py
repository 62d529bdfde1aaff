"""The structs of the HAL, frozen, and its constants."""

from __future__ import annotations

import math
from typing import Any, Protocol, dataclass_transform

import msgspec
import numpy as np

from nnasync._core.notebook import html_table
from nnasync._core.words import counted
from nnasync.hal.enums import OperandLifeTime, OperandType, Priority

Array = np.ndarray[tuple[Any, ...], np.dtype[Any]]
"""A numpy array of any shape and type."""
Shape = tuple[int, ...]
"""Dimensions, outermost first; 0 where one is not known."""

NEVER_NS = 2**63 - 1
"""A deadline that never comes."""
NOT_AVAILABLE = 2**64 - 1
"""Value of a duration that was not measured."""
BYTE_SIZE_OF_CACHE_TOKEN = 32
"""How long the token of a compilation in a cache is."""
MAX_NUMBER_OF_CACHE_FILES = 32
"""As many model files, and as many data files, a device may keep of a compilation."""
MAX_TENSOR_BYTES = 2**32 - 1
"""What an operand may have at most: lengths of the HAL have 32 bits."""
DEFAULT_LOOP_TIMEOUT_NS = 2_000_000_000
"""How long a WHILE loop may run where an execution does not say."""
MAXIMUM_LOOP_TIMEOUT_NS = 15_000_000_000
"""The longest time for a WHILE loop that an execution may ask for."""
EXTENSION_PREFIX_SHIFT = 16
"""A type of an extension has the extension's number above this bit, its own below."""


@dataclass_transform(frozen_default=True, field_specifiers=(msgspec.field,))
class Struct(msgspec.Struct, frozen=True):
    """Base of all HAL structs: immutable data without behavior.

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
    """Performance figures of a device; `operand_performance` is sorted by type.

    What is not stated is infinite: the device does not compute it.
    """

    relaxed_float32_to_float16_performance_scalar: PerformanceInfo = PerformanceInfo()
    relaxed_float32_to_float16_performance_tensor: PerformanceInfo = PerformanceInfo()
    operand_performance: tuple[OperandPerformance, ...] = ()
    if_performance: PerformanceInfo = PerformanceInfo()
    while_performance: PerformanceInfo = PerformanceInfo()


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
    """One value of a subgraph: its type, shape, quantization and where it lives."""

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
    """An operand type of an extension; `byte_size` of a scalar, or of one element.

    `dtype` is numpy's name of an element that is a number, such as "int64" or "bfloat16" (those of
    the package ml_dtypes, where it is installed); otherwise an element is bytes.
    """

    type: int
    is_tensor: bool
    byte_size: int
    dtype: str = ""


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


class Model(Struct, weakref=True):
    """A network: a main subgraph, the subgraphs that IF and WHILE refer to, and their constants.

    `labels` name the classes that an output stands for, in their order; the HAL has no such thing.
    """

    main: Subgraph
    referenced: tuple[Subgraph, ...] = ()
    operand_values: bytes | memoryview = b""
    pools: tuple[Memory, ...] = ()
    relax_computation_float32_to_float16: bool = False
    extension_name_to_prefix: tuple[ExtensionNameAndPrefix, ...] = ()
    state: tuple[StatePair, ...] = ()
    name: str = ""
    labels: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """Say what it takes and gives; `nnasync.dump` tells all of it."""
        operations = counted(len(self.main.operations), "operation")
        return f"<Model {self.name!r}: {operations}, {self._way()}>"

    def _repr_html_(self) -> str:
        """Return a table of what it takes and gives, for notebooks."""
        main, rows = self.main, []
        for way, indexes in (("input", main.input_indexes), ("output", main.output_indexes)):
            rows += [(way, *_named(main.operands[index])) for index in indexes]
        return html_table(("", "name", "type"), rows, repr(self))

    def _way(self) -> str:
        operands = self.main.operands
        sides = (self.main.input_indexes, self.main.output_indexes)
        return " -> ".join(
            ", ".join(" ".join(_named(operands[index])).strip() for index in indexes)
            for indexes in sides
        )


def _named(operand: Operand) -> tuple[str, str]:
    """Name and type of an operand, such as ("image", "tensor_float32 [1, 28, 28, 1]")."""
    try:
        kind = OperandType(operand.type).name.lower()
    except ValueError:
        kind = f"type {operand.type:#x}"
    return operand.name, f"{kind} {list(operand.dimensions)}"


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


class ExecutionConfig(Struct, array_like=True, gc=False):
    """How a request is executed: whether it is timed, and how long it may take.

    The deadline is a point of CLOCK_MONOTONIC (`Deadline.at_ns`). The loop timeout limits each
    WHILE loop, the duration the time after the last fence of a fenced execution. Without a priority
    the execution has that of its prepared model; devices that know nothing of it pay no heed.
    """

    measure: bool = False
    deadline_ns: int = NEVER_NS
    loop_timeout_ns: int = DEFAULT_LOOP_TIMEOUT_NS
    duration_ns: int | None = None
    priority: Priority | None = None


DEFAULT_CONFIG = ExecutionConfig()
"""No timings, and no limits but that of loops."""


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
