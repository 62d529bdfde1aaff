"""Tensors of messages in place: the same fields as the library of protocol buffers sees."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("google.protobuf", reason="the extra serve is not installed")

from google.protobuf.message import DecodeError

from nnasync.serving.grpc_front import raw_contents
from nnasync.serving.grpc_front.descriptors import message_class
from nnasync.serving.problems import ServingError

Request = message_class("ModelInferRequest")
Response = message_class("ModelInferResponse")
StreamResponse = message_class("ModelStreamInferResponse")

TENSORS = st.lists(st.binary(max_size=300), max_size=4)


@given(st.text(max_size=5), st.lists(st.text(max_size=3), max_size=3), TENSORS)
def test_a_request_is_split_as_the_library_reads_it(
    model: str, inputs: list[str], tensors: list[bytes]
) -> None:
    message = Request(model_name=model, raw_input_contents=tensors)
    for name in inputs:
        message.inputs.add(name=name, shape=[1, 2])
    others, found = raw_contents.split(message.SerializeToString())
    message.ClearField("raw_input_contents")
    assert Request.FromString(others) == message
    assert [bytes(tensor) for tensor in found] == tensors


def test_tensors_may_stand_anywhere_in_a_request() -> None:
    parts = [
        Request(raw_input_contents=[b"one"]),
        Request(model_name="m", id="7"),
        Request(raw_input_contents=[b"two", b""]),
        Request(model_version="3"),
    ]
    whole = b"".join(part.SerializeToString() for part in parts)
    others, tensors = raw_contents.split(whole)
    assert Request.FromString(others) == Request(model_name="m", id="7", model_version="3")
    assert [bytes(tensor) for tensor in tensors] == [b"one", b"two", b""]


def test_a_tensor_is_not_copied() -> None:
    message = Request(model_name="m", raw_input_contents=[bytes(1000)]).SerializeToString()
    _, (tensor,) = raw_contents.split(message)
    assert tensor.obj is message


@given(st.binary(max_size=60))
def test_any_bytes_are_split_or_refused_with_a_typed_error(message: bytes) -> None:
    try:
        others, tensors = raw_contents.split(message)
        found = Request.FromString(others)
    except (ServingError, DecodeError):
        return
    found.raw_input_contents.extend(bytes(tensor) for tensor in tensors)
    assert found == Request.FromString(message)


@pytest.mark.parametrize(
    "message",
    [
        b"\x3a\x05abc",  # a tensor that ends behind the message
        b"\x3a",  # without a length
        b"\x3a" + b"\xff" * 11,  # with a length that does not end
        b"\x0b\x0c",  # a group
        b"\x09\x00",  # eight bytes of which there is one
    ],
)
def test_broken_messages(message: bytes) -> None:
    with pytest.raises(ServingError, match="failed to parse the request message"):
        raw_contents.split(message)


@given(st.text(max_size=5), TENSORS)
def test_answers_are_what_the_library_would_have_written(model: str, tensors: list[bytes]) -> None:
    head = Response(model_name=model).SerializeToString()
    arrays = [np.frombuffer(tensor, np.uint8).data for tensor in tensors]
    whole = Response(model_name=model, raw_output_contents=tensors)
    assert Response.FromString(raw_contents.joined(head, arrays)) == whole
    streamed = StreamResponse.FromString(raw_contents.of_stream(head, arrays))
    assert streamed == StreamResponse(infer_response=whole)
