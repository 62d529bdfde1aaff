"""Requests and answers of the core, read from messages of gRPC and written as them.

A client that sends the same again and again sends the same header with other tensors, and gets the
same answer but for these. So both are remembered for a while: to look one up takes a fraction of
what the library takes to read or write it.
"""

from __future__ import annotations

import functools
from typing import Any

import msgspec
from google.protobuf.message import DecodeError

from nnasync.serving.datatypes import to_raw
from nnasync.serving.grpc_front import raw_contents
from nnasync.serving.grpc_front.descriptors import message_class
from nnasync.serving.messages import (
    InferAnswer,
    InferRequest,
    InputTensor,
    RegionSlice,
    RequestedOutput,
)
from nnasync.serving.parameters import region_of, split_parameters, whole
from nnasync.serving.problems import invalid, too_large
from nnasync.serving.repeats import Repeat
from nnasync.serving.served_model import ServedModel

_CONTENTS = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
"""Where values of each datatype stand that are not raw; FP16 and BF16 are raw always."""

_FINAL = "triton_final_response"

_SHORT_BYTES = 1024
"""Longer headers are not remembered."""

_MOST_HEADER_BYTES = 1 << 20
"""What is not raw is read number by number, on the event loop."""

_REQUEST = message_class("ModelInferRequest")
_RESPONSE = message_class("ModelInferResponse")
_STREAM_RESPONSE = message_class("ModelStreamInferResponse")


def parsed(kind: Any, message: bytes) -> Any:
    """Returns the message of this class that the bytes hold.

    Raises ServingError where they do not.
    """
    try:
        return kind.FromString(message)
    except DecodeError as error:
        raise invalid(f"failed to parse the request message: {error}") from error


def request_of(message: bytes) -> InferRequest:
    """Returns the request that a `ModelInferRequest` holds; raises ServingError."""
    header, tensors = raw_contents.split(message)
    if len(header) > _MOST_HEADER_BYTES:
        raise too_large(
            f"a request has at most {_MOST_HEADER_BYTES} bytes besides raw_input_contents, which "
            "is where large tensors belong"
        )
    if not tensors:
        return _read(header, 0)
    is_short = len(header) <= _SHORT_BYTES
    request = (_remembered if is_short else _read)(header, len(tensors))
    raw = iter(tensors)
    inputs = tuple(
        each
        if each.region is not None
        else InputTensor(each.name, each.datatype, each.shape, next(raw))
        for each in request.inputs
    )
    return msgspec.structs.replace(request, inputs=inputs)


def repeat_of(message: bytes, request: InferRequest, model: ServedModel) -> Repeat | None:
    """Returns what all messages share that differ from this one in the elements of the only tensor.

    Returns None where that tensor is not at the end of the message. The request must be one that
    `may_repeat`, and that was answered at once.
    """
    header, tensors = raw_contents.split(message)
    # What is left is how the message begins only if the tensor was its last field.
    if len(tensors) != 1 or not message.startswith(header):
        return None
    outputs = model.signature.outputs
    described = tuple((port.name, port.datatype, port.shape, None) for port in outputs)
    head = _head(model.name, model.version, described, False)
    port = model.signature.inputs[0]
    return Repeat(
        model,
        msgspec.structs.replace(request, inputs=()),
        port.port.dtype,
        port.shape,
        len(message) - len(tensors[0]),
        len(message),
        raw_contents.heads(head, [port.plain_bytes for port in outputs]),
        is_timed=bool(request.timeout_us) or model.has_timeouts,
    )


def _read(header: bytes, tensors: int) -> InferRequest:
    """Builds a request from the message without its raw tensors, and from these `tensors`."""
    request = parsed(_REQUEST, header)
    fields: dict[str, Any] = {}
    if request.parameters:
        fields = split_parameters(parameters_of(request.parameters))
    inputs = tuple(_input(each, request.model_name, is_raw=tensors > 0) for each in request.inputs)
    if tensors and sum(each.region is None for each in inputs) != tensors:
        raise invalid(
            f"raw_input_contents has {tensors} tensors, expecting one for each input that is not "
            f"in shared memory, of {len(inputs)} inputs for model '{request.model_name}'"
        )
    return InferRequest(
        request.model_name,
        request.model_version,
        request.id,
        inputs,
        tuple(_requested(output) for output in request.outputs),
        **fields,
    )


_remembered = functools.lru_cache(maxsize=256)(_read)


def parameters_of(messages: Any) -> dict[str, bool | int | float | str | bytes]:
    """Returns the values of a map of parameters; raises ServingError where one has none."""
    values = {}
    for name, parameter in messages.items():
        kind = parameter.WhichOneof("parameter_choice")
        if kind is None:
            raise invalid(f"parameter '{name}' has no value")
        values[name] = getattr(parameter, kind)
    return values


def _input(tensor: Any, model: str, *, is_raw: bool) -> InputTensor:
    """Returns one input of a request; an input that is raw gets its elements later."""
    region = region_of(parameters_of(tensor.parameters)) if tensor.parameters else None
    values = None
    if is_raw or region is not None:
        if tensor.HasField("contents"):
            raise invalid(
                "contents field must not be specified when using raw_input_contents or shared "
                f"memory for '{tensor.name}' for model '{model}'"
            )
    else:
        values = _values(tensor, model)
    return InputTensor(
        tensor.name, tensor.datatype, tuple(tensor.shape), values=values, region=region
    )


def _values(tensor: Any, model: str) -> list[Any]:
    field = _CONTENTS.get(tensor.datatype)
    if field is None:
        raise invalid(
            f"input '{tensor.name}' for model '{model}' has datatype '{tensor.datatype}', which "
            "has to be in raw_input_contents"
        )
    return list(getattr(tensor.contents, field))


def _requested(output: Any) -> RequestedOutput:
    if not output.parameters:
        return RequestedOutput(output.name)
    parameters = parameters_of(output.parameters)
    return RequestedOutput(
        output.name,
        classification=whole("classification", parameters.get("classification", 0)),
        region=region_of(parameters),
    )


def answer_of(answer: InferAnswer, *, is_streamed: bool = False) -> bytes:
    """Returns the bytes of a `ModelInferResponse`, or of the stream's message around it.

    Each output has its place among the raw contents, an empty one if it is in shared memory:
    clients count them.
    """
    outputs = answer.outputs
    described = tuple([(each.name, each.datatype, each.shape, each.region) for each in outputs])
    head = _head(answer.model, answer.version, described, is_streamed)
    if answer.id:
        head += raw_contents.request_id(answer.id)
    tensors = [b"" if out.array is None else to_raw(out.array, out.datatype) for out in outputs]
    if is_streamed:
        return raw_contents.of_stream(head, tensors)
    return raw_contents.joined(head, tensors)


@functools.lru_cache(maxsize=256)
def _head(
    model: str,
    version: str,
    outputs: tuple[tuple[str, str, tuple[int, ...], RegionSlice | None], ...],
    is_streamed: bool,
) -> bytes:
    """Returns the encoded part of an answer that is neither tensor contents nor identifier."""
    response = _RESPONSE(model_name=model, model_version=version)
    for name, datatype, shape, region in outputs:
        described = response.outputs.add(name=name, datatype=datatype, shape=shape)
        if region is not None:
            described.parameters["shared_memory_region"].string_param = region.name
            described.parameters["shared_memory_byte_size"].int64_param = region.byte_size
            if region.offset:
                described.parameters["shared_memory_offset"].int64_param = region.offset
    if is_streamed:
        response.parameters[_FINAL].bool_param = True
    return bytes(response.SerializeToString())


def stream_error(text: str, request_id: str) -> bytes:
    """Returns the message that tells a stream of a request that failed; the stream goes on."""
    response = _STREAM_RESPONSE(error_message=text)
    response.infer_response.id = request_id
    return bytes(response.SerializeToString())
