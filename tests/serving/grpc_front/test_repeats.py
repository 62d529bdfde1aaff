"""Messages that differ from one before in their tensor alone: the same answers as the long way."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import anyio.from_thread
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("grpc", reason="the extra serve is not installed")

import grpc

import nnasync as nn
from nnasync.hal import Array
from nnasync.serving import ModelServer, ModelSettings, ServeOptions
from nnasync.serving.grpc_front.conversion import repeat_of, request_of
from nnasync.serving.grpc_front.descriptors import message_class
from nnasync.serving.grpc_front.service import InferenceService
from nnasync.serving.repeats import Repeats, may_repeat
from tests.rigs import runtime
from tests.serving.rig import outcomes

HERE = nn.Options(cores=1, inline_budget_us=1e6, stall_budget_us=1e6)
"""Small networks run on the loop, however slow this machine is."""
ROW = np.array([[1, -2, 3]], np.float32)

pytestmark = pytest.mark.one_loop("grpc.aio runs on asyncio")

Request = message_class("ModelInferRequest")
Response = message_class("ModelInferResponse")


def both() -> nn.Model:
    """Two outputs of one input, one of which is shorter."""
    builder = nn.ModelBuilder("both")
    x = builder.input("x", (1, 3))
    builder.output("y", builder.relu(x))
    builder.output("z", builder.fully_connected(x, np.ones((2, 3), np.float32)))
    return builder.build()


def request(
    array: Array = ROW, *, outputs: tuple[str, ...] = (), raw: bytes | None = None, **fields: Any
) -> Any:
    """A request for the network with two outputs."""
    message = Request(**{"model_name": "both", **fields})
    message.inputs.add(name="x", datatype="FP32", shape=array.shape)
    for name in outputs:
        message.outputs.add(name=name)
    message.raw_input_contents.append(array.tobytes() if raw is None else raw)
    return message


def written(message: Any) -> bytes:
    return bytes(message.SerializeToString())


def numbered(name: str, value: int, **fields: Any) -> Any:
    """A request with a parameter."""
    message = request(**fields)
    message.parameters[name].int64_param = value
    return message


class Context:
    """What `grpc.aio` gives a call, and the status that the call ends with."""

    def __init__(self, left_s: float | None = None) -> None:
        self.status: tuple[Any, str] | None = None
        self._left_s = left_s

    def peer(self) -> str:
        return "ipv4:192.0.2.7:9"

    def time_remaining(self) -> float | None:
        return self._left_s

    async def abort(self, code: Any, text: str, metadata: Any = ()) -> None:
        self.status = (code, text)
        raise grpc.aio.AbortError


async def answered(service: InferenceService, message: bytes, left_s: float | None = None) -> Any:
    """The answer, or the status."""
    context = Context(left_s)
    try:
        return await service._infer(message, context)
    except grpc.aio.AbortError:
        return context.status


class Short:
    """A service, how many of its answers came the short way, and another one that has no such."""

    def __init__(self, server: ModelServer) -> None:
        self.server = server
        self.service = InferenceService(server)
        self.taken = 0
        self._again = server.again
        counted: Any = self._counted
        server.again = counted
        self._long = InferenceService(server)
        self._long._repeats = Repeats()

    def _counted(self, *arguments: Any) -> bytes | None:
        answer = self._again(*arguments)
        self.taken += answer is not None
        return answer

    def know(self, message: bytes) -> None:
        """Have a message remembered, as if it had been answered at once, twice."""
        for _ in range(2):
            self.service._note(message, request_of(message))

    async def agrees(self, message: bytes) -> Any:
        """The answer, which is that of the long way."""
        answer = await answered(self.service, message)
        self._long._repeats.clear()
        assert answer == await answered(self._long, message)
        return answer

    async def until_taken(self, message: bytes) -> bytes:
        """Ask until an answer comes the short way: the first run may be elsewhere."""
        with anyio.fail_after(30):
            while True:
                before = self.taken
                answer: bytes = await self.agrees(message)
                if self.taken > before:
                    return answer


@asynccontextmanager
async def shortened(**settings: Any) -> AsyncIterator[Short]:
    """A server of the network."""
    async with (
        runtime("nnasync-reference", options=HERE) as rt,
        ModelServer(rt, options=ServeOptions(poll_s=0)) as server,
    ):
        await add(server, **settings)
        yield Short(server)


async def add(server: ModelServer, **settings: Any) -> None:
    """Serve the network, or another version of it."""
    own = ModelSettings(name="both", **settings)
    await server.add(await server.runtime.compile(both(), priority=own.level), own)


@pytest.fixture(scope="module")
def rig() -> Iterator[tuple[Any, Short]]:
    with (
        anyio.from_thread.start_blocking_portal() as portal,
        portal.wrap_async_context_manager(shortened()) as short,
    ):
        yield portal.call, short


EDITS = st.lists(
    st.tuples(st.sampled_from(["put", "drop", "add"]), st.integers(0, 120), st.integers(0, 255)),
    max_size=3,
)
PARTS = st.lists(
    st.sampled_from(
        [
            Request(raw_input_contents=[ROW.tobytes()]),
            Request(raw_input_contents=[b"short"]),
            Request(raw_input_contents=[b""]),
            Request(model_name="both"),
            Request(model_name="other"),
            Request(id="q"),
            Request(outputs=[{"name": "z"}]),
            request(),
        ]
    ).map(written),
    max_size=3,
)


def edited(message: bytes, edits: list[tuple[str, int, int]]) -> bytes:
    found = bytearray(message)
    for what, place, byte in edits:
        place %= len(found) + 1
        if what == "add":
            found.insert(place, byte)
        else:
            found[place : place + 1] = b"" if what == "drop" else bytes([byte])
    return bytes(found)


@given(edits=EDITS, ahead=PARTS, behind=PARTS)
def test_whatever_comes_after_a_known_message_is_answered_as_the_long_way(
    rig: tuple[Any, Short],
    edits: list[tuple[str, int, int]],
    ahead: list[bytes],
    behind: list[bytes],
) -> None:
    call, short = rig
    for known in (written(request()), written(request(outputs=("y", "z")))):
        call(short.know, known)
        call(short.agrees, edited(b"".join([*ahead, known, *behind]), edits))
        call(short.agrees, known)


@given(raw=st.binary(min_size=12, max_size=12))
def test_other_elements(rig: tuple[Any, Short], raw: bytes) -> None:
    call, short = rig
    call(short.until_taken, written(request(raw=raw)))


@given(parts=st.permutations([0, 1, 2, 3]))
def test_where_the_tensor_is_not_the_last_field_nothing_is_remembered(
    rig: tuple[Any, Short], parts: list[int]
) -> None:
    _, short = rig
    fields = [
        written(Request(model_name="both")),
        written(Request(inputs=[{"name": "x", "datatype": "FP32", "shape": [1, 3]}])),
        written(Request(raw_input_contents=[bytes(12)])),
        written(Request(parameters={"mine": {"bool_param": True}})),
    ]
    message = b"".join(fields[part] for part in parts)
    model = short.server.models.find("both")
    repeat = repeat_of(message, request_of(message), model)
    assert (repeat is not None) == (parts[-1] == 2)
    if repeat is not None:
        assert message[repeat.offset :] == bytes(12)


@pytest.mark.parametrize(
    "message",
    [
        request(id="q"),
        request(outputs=("z",)),
        request(outputs=("z", "y")),
        numbered("priority", 1),
        numbered("sequence_id", 1),
        Request(
            model_name="both",
            inputs=[
                {
                    "name": "x",
                    "datatype": "FP32",
                    "shape": [1, 3],
                    "contents": {"fp32_contents": [1, 2, 3]},
                }
            ],
        ),
    ],
)
def test_what_takes_more_than_a_call_is_not_remembered(
    rig: tuple[Any, Short], message: Any
) -> None:
    _, short = rig
    assert not may_repeat(short.server.models.find("both"), request_of(written(message)))


@pytest.mark.anyio
async def test_those_that_never_come_again_push_nothing_out() -> None:
    async with shortened() as short:
        message, repeats = written(request()), short.service._repeats
        await short.until_taken(message)
        others = [written(numbered("mine", number)) for number in range(500)]
        for other in others:
            short.service._note(other, request_of(other))
        assert [other for other in others if repeats.find(other) is not None] == []
        assert repeats.find(message) is not None


@pytest.mark.anyio
async def test_each_request_is_in_the_account_and_the_statistics() -> None:
    async with shortened() as short:
        await short.until_taken(written(request(outputs=("y", "z"))))
        answer = await short.until_taken(written(request()))
        assert [len(raw) for raw in Response.FromString(answer).raw_output_contents] == [12, 8]
        found = short.server.models.find("both")
        completed = outcomes(short.server, "both")["completed"]
        assert found.statistics.inferences == completed
        assert [each.client for each in short.server.accounts.all()] == ["192.0.2.7"]


@pytest.mark.anyio
async def test_a_deadline_that_has_passed() -> None:
    async with shortened() as short:
        message = written(request())
        await short.until_taken(message)
        status = await answered(short.service, message, 0.0)
        assert status == (grpc.StatusCode.DEADLINE_EXCEEDED, "Request timeout expired")
        assert outcomes(short.server, "both")["missed"] == 1


@pytest.mark.anyio
async def test_a_time_out_counts_from_each_request() -> None:
    async with shortened(timeout_ms=60_000) as short:
        await short.until_taken(written(request()))
        await short.until_taken(written(numbered("timeout", 50_000_000)))
        status = await short.agrees(written(numbered("timeout", 1)))
        assert status == (grpc.StatusCode.UNAVAILABLE, "Request timeout expired")
        short.know(written(numbered("timeout", 1)))
        assert await short.agrees(written(numbered("timeout", 1))) == status


@pytest.mark.anyio
async def test_a_version_that_is_replaced_or_gone_answers_no_more() -> None:
    async with shortened() as short:
        message = written(request())
        assert Response.FromString(await short.until_taken(message)).model_version == "1"
        await add(short.server, version="2")
        assert short.service._repeats.find(message) is None
        assert Response.FromString(await short.until_taken(message)).model_version == "2"
        await short.server.repository.unload("both")
        assert (await short.agrees(message))[0] == grpc.StatusCode.NOT_FOUND


@pytest.mark.anyio
async def test_a_server_that_is_about_to_end_refuses() -> None:
    async with shortened() as short:
        message = written(request())
        await short.until_taken(message)
        assert await short.server.drain()
        assert (await short.agrees(message))[0] == grpc.StatusCode.UNAVAILABLE
