"""Whatever bytes arrive, a burst answers them and goes on."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnasync import burst
from nnasync.errors import (
    GeneralFailure,
    InvalidArgument,
    NNError,
)
from nnasync.hal import (
    ExecutionResult,
)
from tests.burst.halves import (
    Block,
    Rig,
    alone,
    decode_result,
    encode,
    request,
)

HOSTILE = [
    b"",
    b"\xc1",
    b"\x91" * 200_000,
    b"\x96\xa3run\x01\xc4\x00\xc2\x01" + b"\x91" * 200_000,
    b"\x93\xa2\xff\xfe\x01\x02",
    b"\x93\x01\x02\xa2\xff\xfe",
    b"\x95\x01\x02\xa1x\x90" + b"\x91" * 200_000,
    encode(("run", 2**64 - 1, b"")),
    encode(("run", 1.5, b"")),
    encode(("run", 1, b"", False, 0, 0, 3)),
    encode(("run", 1, b"", False, 0, 0, -1)),
    encode(("run", 1, b"", False, 0, 0, "high")),
    encode(("cancel", "one")),
    encode(("stop", 1)),
    b"\xdd\xff\xff\xff\xff",
    b"x" * (burst.packets.MAX_MESSAGE_BYTES + 1),
]


def check_answered(message: bytes) -> None:
    server, results, device = alone()
    server.receive(message)
    if not results.sent:
        packet = msgspec.msgpack.decode(message, type=burst.BurstCancel)
        assert packet.serial not in server._cancels
        return
    assert len(results.sent) == 1
    answer = decode_result(results.sent[0])
    assert answer.status != 0 or len(device.begun) == 1


@pytest.mark.parametrize("message", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_request_gets_an_answer(message: bytes) -> None:
    check_answered(message)


@pytest.mark.parametrize("arguments", HOSTILE[:-1], ids=range(len(HOSTILE) - 1))
def test_hostile_arguments_get_an_answer(arguments: bytes) -> None:
    check_answered(encode(burst.BurstRequest(1, arguments)))


@given(st.binary(max_size=100))
def test_any_bytes_get_an_answer(message: bytes) -> None:
    check_answered(message)
    check_answered(encode(burst.BurstRequest(1, message)))


REAL = encode(
    burst.BurstRequest(3, encode(burst.BurstArguments(request(0).inputs, request(0).outputs, (0,))))
)


@pytest.mark.parametrize("length", range(len(REAL)))
def test_truncated_request_gets_an_error(length: int) -> None:
    server, results, device = alone()
    server.receive(REAL[:length])
    assert decode_result(results.sent[0]).status != 0
    assert device.begun == []


json_like = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(json_like, st.sampled_from(["run", "cancel", "else"]))
def test_any_values_get_an_answer(value: object, tag: str) -> None:
    check_answered(encode(value))
    check_answered(encode([tag, 1, value]))
    check_answered(encode([tag, 1, encode(value)]))
    check_answered(encode(["run", 1, encode([value, value, value])]))


@pytest.mark.parametrize("message", HOSTILE, ids=range(len(HOSTILE)))
def test_client_fails_everything_when_the_device_talks_nonsense(rig: Rig, message: bytes) -> None:
    serials = [rig.send(request(Block())) for _ in range(2)]
    rig.results.send(message)
    for serial in serials:
        assert isinstance(rig.error(serial), GeneralFailure)


@given(st.binary(max_size=60) | json_like.map(encode))
def test_client_survives_any_bytes(message: bytes) -> None:
    rig = Rig()
    serial = rig.send(request(Block()))
    rig.results.send(message)
    assert len(rig.outcomes[serial]) <= 1


@pytest.mark.parametrize("error", [KeyError("x"), RecursionError(), InvalidArgument("no")])
def test_device_that_raises_gets_the_request_answered(rig: Rig, error: BaseException) -> None:
    rig.device.refusal = error
    assert isinstance(rig.error(rig.send(request(Block()))), NNError)
    rig.device.refusal = None
    serial = rig.send(request(Block()))
    assert rig.device.begun[0].may_run
    rig.device.begun[0].end()
    assert rig.outcome(serial) == ExecutionResult()
