"""Requests and answers as HTTP has them: JSON, and behind it tensors as bytes.

A body is JSON alone, or JSON whose length a header tells, with the bytes of those inputs behind it
that have `binary_data_size`, in their order. A length of 0 says that there is no JSON: the body is
the only input. No byte of it is copied here: tensors of a request are views of its body.
"""

from __future__ import annotations

import array as arrays
import functools
import re
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from nnasync.hal import Array
from nnasync.serving.datatypes import DTYPES, from_values, to_raw
from nnasync.serving.limits import Limits
from nnasync.serving.messages import (
    Bytes,
    InferAnswer,
    InferRequest,
    InputTensor,
    OutputTensor,
    RequestedOutput,
)
from nnasync.serving.parameters import region_of, split_parameters, whole
from nnasync.serving.problems import ServingError, invalid, too_large

LENGTH_HEADER = "Inference-Header-Content-Length"
JSON = "application/json"
BINARY = "application/octet-stream"

_Parameters = dict[str, bool | int | float | str]
_TensorHeader = tuple[InputTensor, int]
"""An input, and the bytes that it has behind the JSON; -1 where it has its data elsewhere."""
_NONE: _Parameters = {}
_ONLY_BINARY = ("FP16", "BF16")
_PIECE_BYTES = 1 << 16
_SHORT_BYTES = 2048
"""JSON up to this length is remembered, where tensors follow it: clients send the same again."""
_SINGLE = DTYPES["FP32"]
_NO_DATA, _IN_JSON = -2, -1
"""Instead of a number of bytes: of an output in shared memory, and of one with a list of values."""
_FIELD = re.compile(r"missing required field `(\w+)`")


class _Input(msgspec.Struct, frozen=True, gc=False):
    name: str
    shape: tuple[int, ...]
    datatype: str
    parameters: _Parameters = _NONE
    data: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _Output(msgspec.Struct, frozen=True, gc=False):
    name: str
    parameters: _Parameters = _NONE


class _Request(msgspec.Struct, frozen=True, gc=False):
    inputs: tuple[_Input, ...]
    id: str = ""
    parameters: _Parameters = _NONE
    outputs: tuple[_Output, ...] = ()


_decode = msgspec.json.Decoder(_Request).decode
_floats = msgspec.json.Decoder(list[float]).decode
_values = msgspec.json.Decoder(list[Any]).decode
_encode = msgspec.json.Encoder().encode


def decoded(
    body: Bytes, header: str | None, limits: Limits, model: str, version: str = ""
) -> InferRequest:
    """Returns the request in a body; `header` is `Inference-Header-Content-Length`.

    Raises ServingError and nothing else, whatever the bytes are.
    """
    length = None if header is None else _length(header, len(body))
    if length == 0:
        return InferRequest(model, version, binary_data_output=True, body=body)
    place = len(body) if length is None else length
    if place > limits.json_bytes:
        raise too_large(f"the JSON of a request has at most {limits.json_bytes} bytes")
    if length is None:
        told = _read(body, limits)
    elif length <= _SHORT_BYTES:
        told = _remembered(bytes(memoryview(body)[:length]), limits)
    else:
        told = _read(memoryview(body)[:length], limits)
    inputs, place = _inputs(told.inputs, body, place, model)
    if place != len(body):
        raise invalid(f"unexpected additional input data for model '{model}'")
    return InferRequest(model, version, told.id, inputs, told.outputs, **told.own)


def _length(header: str, size: int) -> int:
    """Returns the length of the JSON that the header states; 0 is for a request without JSON."""
    if not header.isascii() or not header.isdigit() or len(header) > len(str(size)):
        shown = header[:32]
        raise invalid(f"inference header size should be in range (0, {size}), got: {shown}")
    length = int(header)
    if length > size:
        raise invalid(f"inference header size should be in range (0, {size}), got: {header}")
    return length


class _Header(msgspec.Struct, frozen=True, gc=False):
    """The JSON of a request, apart from what depends on the bytes behind it."""

    id: str
    inputs: tuple[_TensorHeader, ...]
    outputs: tuple[RequestedOutput, ...]
    own: dict[str, Any]


def _read(text: Bytes, limits: Limits) -> _Header:
    told = _told(text, limits)
    return _Header(
        told.id,
        tuple(map(_tensor_header, told.inputs)),
        tuple(map(_output, told.outputs)) if told.outputs else (),
        split_parameters(told.parameters) if told.parameters else {},
    )


def _told(text: Bytes, limits: Limits) -> _Request:
    try:
        told = _decode(text)
    except msgspec.ValidationError as error:
        if missing := _FIELD.search(str(error)):
            raise invalid(
                f"Unable to parse '{missing[1]}': attempt to access non-existing object member "
                f"'{missing[1]}'"
            ) from error
        raise invalid(f"failed to parse the request: {error}") from error
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise invalid(f"failed to parse the request JSON buffer: {error}") from error
    _check(told, limits)
    return told


_remembered = functools.lru_cache(maxsize=256)(_read)


def _check(told: _Request, limits: Limits) -> None:
    if len(told.inputs) > limits.tensors or len(told.outputs) > limits.tensors:
        raise too_large(f"a request has at most {limits.tensors} inputs, and outputs")
    if len(told.id) > limits.text_bytes:
        raise too_large(f"an id has at most {limits.text_bytes} characters")
    if told.parameters:
        check_parameters(told.parameters, limits)
    for tensor in told.inputs:
        if tensor.parameters:
            check_parameters(tensor.parameters, limits)
    for output in told.outputs:
        if output.parameters:
            check_parameters(output.parameters, limits)


def check_parameters(parameters: Mapping[str, object], limits: Limits) -> None:
    """Raises ServingError for too many parameters, or texts that are too long."""
    if len(parameters) > limits.parameters:
        raise too_large(f"there are at most {limits.parameters} parameters")
    for name, value in parameters.items():
        if len(name) > limits.text_bytes:
            raise too_large(f"names of parameters have at most {limits.text_bytes} characters")
        if isinstance(value, str) and len(value) > limits.text_bytes:
            raise too_large(f"parameter '{name}' has at most {limits.text_bytes} characters")


def _tensor_header(told: _Input) -> _TensorHeader:
    """Reads the description of an input from its JSON, without the bytes behind the JSON."""
    size, region, values = -1, None, None
    parameters = told.parameters
    if parameters and "binary_data_size" in parameters:
        size = whole("binary_data_size", parameters["binary_data_size"])
    elif parameters:
        region = region_of(parameters)
    if told.data.__class__ is msgspec.Raw:
        if size >= 0 or region is not None:
            raise invalid(f"input '{told.name}' has 'data', and its data elsewhere as well")
        values = _list(told)
    elif size < 0 and region is None:
        raise invalid("Unable to parse 'data': attempt to access non-existing object member "
                      "'data'")  # fmt: skip
    return InputTensor(told.name, told.datatype, told.shape, None, values, region), size


def _inputs(
    headers: tuple[_TensorHeader, ...], body: Bytes, place: int, model: str
) -> tuple[tuple[InputTensor, ...], int]:
    """Returns the inputs, and where the last of their bytes ends in the body."""
    inputs = []
    for tensor, size in headers:
        if size < 0:
            inputs.append(tensor)
            continue
        if size > len(body) - place:
            raise invalid(
                f"unexpected size for input '{tensor.name}', expecting "
                f"{size - len(body) + place} additional bytes for model '{model}'"
            )
        raw = memoryview(body)[place : place + size]
        inputs.append(InputTensor(tensor.name, tensor.datatype, tensor.shape, raw))
        place += size
    return tuple(inputs), place


def _list(told: _Input) -> list[Any] | Array:
    if told.datatype in _ONLY_BINARY:
        raise invalid(
            f"sending {told.datatype} data via JSON is not supported. Please use the binary data "
            f"format for input {told.name}"
        )
    text = memoryview(told.data)  # type: ignore[arg-type]  # Raw is a buffer.
    if told.datatype == "FP32" and len(text) <= _PIECE_BYTES:
        try:
            return np.frombuffer(arrays.array("f", _floats(text)), _SINGLE)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            pass  # It is no flat list of numbers; what is wrong, if anything, is said below.
    if len(text) > _PIECE_BYTES and told.datatype in DTYPES and told.datatype != "BYTES":
        whole = bytes(text)
        if whole.count(b"[") == 1 and b'"' not in whole:
            return _in_pieces(told.datatype, whole)
    return _parsed(text)


def _parsed(text: Bytes) -> list[Any]:
    try:
        return _values(text)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise invalid(f"Unable to parse 'data': {error}") from error


def _in_pieces(datatype: str, text: bytes) -> Array:
    """Parses a long list of numbers into an array piece by piece, so that other threads can run."""
    parts, place = [], 1
    while True:
        end = text.find(b",", place + _PIECE_BYTES)
        values = _parsed(b"[%b]" % text[place:end])
        if not values:
            raise invalid("Unable to parse 'data': a comma has no number behind it")
        parts.append(from_values(datatype, (len(values),), values))
        if end < 0:
            return np.concatenate(parts)
        place = end + 1


def _output(told: _Output) -> RequestedOutput:
    parameters = told.parameters
    if not parameters:
        return RequestedOutput(told.name)
    binary = parameters.get("binary_data")
    if not isinstance(binary, (bool, type(None))):
        raise invalid("parameter 'binary_data' must be a boolean")
    return RequestedOutput(
        told.name,
        binary,
        whole("classification", parameters.get("classification", 0), 2**31 - 1),
        region_of(parameters),
    )


def encoded(answer: InferAnswer, request: InferRequest) -> tuple[bytes, list[Bytes]]:
    """Returns the JSON of an answer, and the bytes of the tensors that follow it.

    An output is given as bytes where the request asks for that, by output or in general. FP16 and
    BF16, and values that are infinite or no numbers, for which JSON has no words, raise
    ServingError otherwise.
    """
    wanted: Mapping[str, bool | None] = {}
    if request.outputs:
        wanted = {output.name: output.binary for output in request.outputs}
    described: list[tuple[str, str, tuple[int, ...], int]] = []
    lists: list[bytes] = []
    pieces: list[Bytes] = []
    for tensor in answer.outputs:
        size, name = _NO_DATA, tensor.name
        if tensor.array is not None:
            is_binary = wanted.get(name) if wanted else None
            if request.binary_data_output if is_binary is None else is_binary:
                piece = to_raw(tensor.array, tensor.datatype)
                pieces.append(piece)
                size = len(piece)
            else:
                values = _encode(_json_values(tensor))
                if b"null" in values:
                    _check_finite(tensor)
                lists.append(values)
                size = _IN_JSON
        described.append((name, tensor.datatype, tensor.shape, size))
    around = _around(answer.model, answer.version, tuple(described))
    text = around[0]
    if lists:
        parts = [text]
        for values, behind in zip(lists, around[1:], strict=True):
            parts += (values, behind)
        text = b"".join(parts)
    if answer.id:
        text = b'{"id":%b,%b' % (_encode(answer.id), text[1:])
    return text, pieces


@functools.lru_cache(maxsize=256)
def _around(
    model: str, version: str, outputs: tuple[tuple[str, str, tuple[int, ...], int], ...]
) -> tuple[bytes, ...]:
    """Returns the pieces of an answer's JSON between which the lists of values go; it is cached.

    An output is its name, datatype and shape, and how many bytes behind the JSON are its data.
    """
    told: list[dict[str, Any]] = []
    for name, datatype, shape, size in outputs:
        fields: dict[str, Any] = {"name": name, "datatype": datatype, "shape": shape}
        if size >= 0:
            fields["parameters"] = {"binary_data_size": size}
        elif size == _IN_JSON:
            fields["data"] = None
        told.append(fields)
    text = _encode({"model_name": model, "model_version": version, "outputs": told})
    # No name can have this in it: quotes inside of a text have a backslash ahead.
    *before, last = text.split(b'"data":null')
    return (*(part + b'"data":' for part in before), last)


def _check_finite(tensor: OutputTensor) -> None:
    """Raises ServingError for values that are infinite or no numbers: JSON has null for them."""
    array = tensor.array
    if array is not None and array.dtype.kind == "f" and not np.isfinite(array).all():
        raise invalid(
            f"output '{tensor.name}' has values that are infinite or no numbers, for which "
            "JSON has no words; ask for it as binary"
        )


def _json_values(tensor: OutputTensor) -> list[Any]:
    if tensor.datatype in _ONLY_BINARY:
        raise invalid(
            f"sending {tensor.datatype} data via JSON is not supported. Please use the binary data "
            f"format for output {tensor.name}"
        )
    array = tensor.array
    values: list[Any] = [] if array is None else array.ravel().tolist()
    if tensor.datatype == "BYTES":
        try:
            return [value.decode() for value in values]
        except UnicodeDecodeError as error:
            raise invalid(f"output '{tensor.name}' is no text; ask for it as binary") from error
    return values


def error_body(error: ServingError) -> bytes:
    """Returns the body of a response that tells a client of an error."""
    return _encode({"error": error.text})
