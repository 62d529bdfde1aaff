"""What pages send is one of the commands, or a clear error."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnasync.cli.live import messages
from nnasync.cli.live.messages import KillDriver, SetLoad, SetStream, read_command
from nnasync.errors import InvalidArgument


def test_commands_are_read() -> None:
    text = '{"type": "stream", "stream": "video", "priority": "LOW", "deadline_ms": 50}'
    assert read_command(text) == SetStream(stream="video", priority="LOW", deadline_ms=50)
    assert read_command('{"type": "load", "clients": 4}') == SetLoad(clients=4)
    assert read_command(b'{"type": "kill"}') == KillDriver()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "kill",
        "null",
        "[]",
        '{"type": "reboot"}',
        '{"type": "kill", "pid": 1}',
        '{"type": "load"}',
        '{"type": "load", "clients": 5}',
        '{"type": "load", "clients": -1}',
        '{"type": "load", "clients": 2.5}',
        '{"type": "stream", "stream": "smell", "priority": "LOW", "deadline_ms": 50}',
        '{"type": "stream", "stream": "video", "priority": "HIGHEST", "deadline_ms": 50}',
        '{"type": "stream", "stream": "video", "priority": "LOW", "deadline_ms": 0}',
        '{"type": "stream", "stream": "video", "priority": "LOW", "deadline_ms": 1e400}',
        '{"type": "offer", "sdp": ""}',
        "[" * 20_000,
        b"\xff\xfe",
        "x" * (messages.MAX_COMMAND_BYTES + 1),
    ],
)
def test_what_is_no_command_is_refused(text: str | bytes) -> None:
    with pytest.raises(InvalidArgument):
        read_command(text)


@given(st.one_of(st.text(), st.binary()))
def test_anything_else_is_refused_as_well(text: str | bytes) -> None:
    with pytest.raises(InvalidArgument, match="not a command of this page"):
        read_command(text)


def test_a_picture_carries_what_was_found_in_it() -> None:
    box = messages.Box(0.1, 0.2, 0.3, 0.4, "7", 0.9)
    sent = messages.encode_picture(messages.Seen(3, (box,), 1.5), b"\xff\xd8picture")
    length = int.from_bytes(sent[:4], "big")
    told = msgspec.json.decode(sent[4 : 4 + length])
    assert (told["type"], told["index"], told["boxes"][0]["label"]) == ("seen", 3, "7")
    assert sent[4 + length :] == b"\xff\xd8picture"
