"""Requests and answers of the Open Inference Protocol, as both fronts hand them to the server.

Where they came from, and how their tensors were written, is known to the fronts only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from nnasync.hal import Array, Struct

Bytes: TypeAlias = bytes | bytearray | memoryview
Parameter: TypeAlias = bool | int | float | str
NO_PARAMETERS: Mapping[str, Parameter] = {}


class RegionSlice(Struct, frozen=True):
    """A piece of a region of shared memory that a client has registered."""

    name: str
    byte_size: int
    offset: int = 0


class InputTensor(Struct, frozen=True):
    """An input of a request; it has one of `raw`, `values` and `region`.

    `raw` are elements one behind the other, little-endian, row-major; of BYTES each has its length
    in four bytes ahead. `values` is a list, flat or nested, or a flat array.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    raw: Bytes | None = None
    values: Any = None
    region: RegionSlice | None = None


class RequestedOutput(Struct, frozen=True):
    """An output that a request asks for.

    `binary` is None where the request says nothing of it. With a `classification` it is given as
    the so many highest values with their places; with a `region`, it is written there.
    """

    name: str
    binary: bool | None = None
    classification: int = 0
    region: RegionSlice | None = None


class InferRequest(Struct, frozen=True):
    """A request for one inference.

    Without `outputs` all are given. `priority` is 1 for the highest, 0 for that of the model;
    `timeout_us` is 0 for none. A `body` is a request without a header: the only input's data.
    `parameters` are those of the user.
    """

    model: str
    version: str = ""
    id: str = ""
    inputs: tuple[InputTensor, ...] = ()
    outputs: tuple[RequestedOutput, ...] = ()
    priority: int = 0
    timeout_us: int = 0
    sequence_id: int | str = 0
    sequence_start: bool = False
    sequence_end: bool = False
    binary_data_output: bool = False
    parameters: Mapping[str, Parameter] = NO_PARAMETERS
    body: Bytes | None = None


class OutputTensor(Struct, frozen=True):
    """An output of an answer; the array is None where it was written to the region.

    BYTES are an array of bytes objects. BF16 has the values as float32.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    array: Array | None
    region: RegionSlice | None = None


class InferAnswer(Struct, frozen=True):
    """The answer to a request."""

    model: str
    version: str
    id: str
    outputs: tuple[OutputTensor, ...]


class TensorMetadata(Struct, frozen=True):
    """The description of an input or output of a model; -1 stands for an open dimension."""

    name: str
    datatype: str
    shape: tuple[int, ...]


class ModelMetadata(Struct, frozen=True):
    """The inputs and outputs of a model, and its versions that are served."""

    name: str
    versions: tuple[str, ...]
    platform: str
    inputs: tuple[TensorMetadata, ...]
    outputs: tuple[TensorMetadata, ...]


class ModelIndexEntry(Struct, frozen=True, omit_defaults=True):
    """A version of a model in the index; `reason` says why it is in this state."""

    name: str
    version: str = ""
    state: str = ""
    reason: str = ""
