"""Hostile messages: whatever comes is answered, or refused as the client's mistake."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anyio.from_thread
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("grpc", reason="the extra serve is not installed")

from nnasync.serving import Limits, ModelServer, ServeOptions
from nnasync.serving.grpc_front.administration import ANSWERS, answered
from nnasync.serving.grpc_front.conversion import answer_of, request_of
from nnasync.serving.grpc_front.descriptors import message_class
from nnasync.serving.problems import ServingError
from tests.fuzz import fuzz_grpc, fuzz_protocol
from tests.serving.small_models import accumulator, ident, served

Request = message_class("ModelInferRequest")
Response = message_class("ModelInferResponse")

NAMES = st.sampled_from(["x", "y", "total", "ident", "acc", "", "\0", "ä" * 300])
NUMBERS = st.one_of(st.integers(-3, 5), st.sampled_from([2**31, 2**62, 2**63 - 1, -(2**63)]))
DATATYPES = st.sampled_from(["FP32", "INT8", "BYTES", "BF16", "FP16", "BOOL", "UINT64", "", "?"])
KEYS = st.sampled_from(
    [
        *("priority", "timeout", "sequence_id", "sequence_start", "sequence_end", "export_state"),
        *("binary_data_output", "classification", "triton_x", "mine", "", "binary_data_size"),
        *("shared_memory_region", "shared_memory_byte_size", "shared_memory_offset"),
    ]
)
CONTENTS = {
    "bool_contents": st.booleans(),
    "int_contents": st.integers(-(2**31), 2**31 - 1),
    "int64_contents": st.integers(-(2**63), 2**63 - 1),
    "uint_contents": st.integers(0, 2**32 - 1),
    "fp32_contents": st.floats(width=32),
    "fp64_contents": st.floats(),
    "bytes_contents": st.binary(max_size=5),
}


def parameters(draw: Any, into: Any) -> None:
    for key in draw(st.lists(KEYS, max_size=4)):
        value = draw(st.one_of(st.none(), st.booleans(), NUMBERS, NAMES, st.floats()))
        parameter = into[key]
        if isinstance(value, bool):
            parameter.bool_param = value
        elif isinstance(value, int):
            parameter.int64_param = value
        elif isinstance(value, float):
            parameter.double_param = value
        elif value is not None:
            parameter.string_param = value


@st.composite
def requests(draw: Any) -> bytes:
    """Requests that are almost right, with bytes that are wrong now and then."""
    request = Request(model_name=draw(NAMES), model_version=draw(st.sampled_from(["", "1", "x"])))
    request.id = draw(NAMES)
    parameters(draw, request.parameters)
    for _ in range(draw(st.integers(0, 3))):
        tensor = request.inputs.add(name=draw(NAMES), datatype=draw(DATATYPES))
        tensor.shape.extend(draw(st.lists(NUMBERS, max_size=4)))
        parameters(draw, tensor.parameters)
        if draw(st.booleans()):
            field = draw(st.sampled_from(sorted(CONTENTS)))
            values = draw(st.lists(CONTENTS[field], max_size=5))
            getattr(tensor.contents, field).extend(values)
    for _ in range(draw(st.integers(0, 2))):
        parameters(draw, request.outputs.add(name=draw(NAMES)).parameters)
    request.raw_input_contents.extend(draw(st.lists(st.binary(max_size=20), max_size=3)))
    message = bytearray(request.SerializeToString())
    for place, byte in draw(
        st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=3)
    ):
        if message:
            message[place % len(message)] = byte
    return bytes(message[: draw(st.sampled_from([None, None, -1, -3]))])


class Rig:
    """A server, and the thread of its loop."""

    def __init__(self, portal: anyio.from_thread.BlockingPortal, server: ModelServer) -> None:
        self.call = portal.call
        self.server = server

    def refused(self, work: Any, *arguments: Any) -> Any:
        """What some work gives; None where it is refused as it should be."""
        try:
            return self.call(work, *arguments)
        except ServingError as error:
            assert error.code < 500 or error.code == 503, error
            assert error.text
            return None

    async def infer(self, message: bytes) -> bytes:
        return answer_of(await self.server.infer(request_of(message), client="me"))

    async def answered(self, name: str, message: bytes) -> bytes:
        return await answered(self.server, name, message, "me")


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    options = ServeOptions(poll_s=0, limits=Limits(sequences_per_client=4))
    with anyio.from_thread.start_blocking_portal() as portal:
        server = served(ident(), accumulator(), options=options)
        with portal.wrap_async_context_manager(server) as opened:
            yield Rig(portal, opened)


@given(message=requests())
def test_inferences(rig: Rig, message: bytes) -> None:
    answer = rig.refused(rig.infer, message)
    if answer is not None:
        assert Response.FromString(answer).outputs
    for account in rig.server.accounts.all():
        assert account.pending == 0


def test_damaged_messages() -> None:
    counts = fuzz_protocol.fuzz(1000, seed=1, one=fuzz_grpc.one)
    assert counts.total() == 1000
    assert counts["answered"] > 30
    assert counts["400"] > 100


@given(message=st.binary(max_size=80))
def test_inferences_of_any_bytes(rig: Rig, message: bytes) -> None:
    rig.refused(rig.infer, message)


@pytest.mark.parametrize("name", sorted(ANSWERS))
@given(data=st.data())
def test_the_other_calls(rig: Rig, name: str, data: st.DataObject) -> None:
    kind = message_class(f"{name}Request")
    message = kind()
    for field in kind.DESCRIPTOR.fields:
        if field.name in ("name", "model_name", "key"):
            setattr(message, field.name, data.draw(NAMES))
        elif field.name in ("offset", "byte_size", "device_id"):
            setattr(message, field.name, data.draw(st.integers(0, 2**63 - 1)))
    raw = bytearray(message.SerializeToString() + data.draw(st.binary(max_size=12)))
    if name == "SystemSharedMemoryRegister":
        _check_register(rig, bytes(raw))
    else:
        rig.refused(rig.answered, name, bytes(raw))


def _check_register(rig: Rig, raw: bytes) -> None:
    """A file that is not there is an error of the server, as Triton has it."""
    try:
        rig.call(rig.answered, "SystemSharedMemoryRegister", raw)
    except ServingError as error:
        assert error.code < 500 or "Unable to open shared memory region" in error.text
    rig.server.shared_memory.of("").unregister()
