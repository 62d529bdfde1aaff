"""Messages that would keep the loop: given up as soon as they are seen to be too large."""

from __future__ import annotations

from http import HTTPStatus

import pytest

pytest.importorskip("grpc", reason="the extra serve is not installed")

from nnasync.serving.grpc_front import raw_contents
from nnasync.serving.grpc_front.conversion import request_of
from nnasync.serving.grpc_front.descriptors import message_class
from nnasync.serving.problems import ServingError


@pytest.mark.parametrize("field", [b"\x3a\x00", b"\x2a\x00", b"\x18\x01"])
def test_a_message_of_very_many_fields_is_given_up(field: bytes) -> None:
    with pytest.raises(ServingError, match="fields") as caught:
        raw_contents.split(field * 10_000_000)
    assert caught.value.code == HTTPStatus.REQUEST_ENTITY_TOO_LARGE


def test_large_tensors_belong_into_the_raw_contents() -> None:
    request = message_class("ModelInferRequest")(model_name="m")
    request.inputs.add(name="x", datatype="FP32", shape=[400_000])
    request.inputs[0].contents.fp32_contents.extend([1.0] * 400_000)
    with pytest.raises(ServingError, match="raw_input_contents") as caught:
        request_of(request.SerializeToString())
    assert caught.value.code == HTTPStatus.REQUEST_ENTITY_TOO_LARGE
