"""What is written in one turn of the loop goes out together, in order, and nothing is lost."""

from __future__ import annotations

import asyncio
from typing import Any

import anyio.lowlevel
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnasync.serving.joined_writes import JOINED_BYTES, JoinedWrites


class Wire(asyncio.Transport):
    """A transport that keeps each write, and None for its end."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[bytes | None] = []

    def write(self, data: Any) -> None:
        """Keep it."""
        self.sent.append(bytes(data))

    def close(self) -> None:
        """Keep that."""
        self.sent.append(None)

    def abort(self) -> None:
        """The same, here."""
        self.sent.append(None)

    def is_closing(self) -> bool:
        """Whether it has ended."""
        return None in self.sent

    def pause_reading(self) -> None:
        """Nothing is read."""

    def resume_reading(self) -> None:
        """Nothing is read."""

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """There is none."""


@pytest.mark.one_loop("transports are those of asyncio")
@pytest.mark.anyio
async def test_what_is_written_to_who_has_gone_is_dropped() -> None:
    """As the answer to a request that came behind one of which the client did not await the end."""
    wire = Wire()
    joined = JoinedWrites(wire, asyncio.get_running_loop())
    joined.write(b"header")
    wire.abort()
    joined.write(b"body")
    joined.write(bytes(JOINED_BYTES + 1))
    await anyio.lowlevel.checkpoint()
    assert wire.sent == [None]


@pytest.mark.one_loop("transports are those of asyncio")
@pytest.mark.anyio
class TestOnALoop:
    async def test_a_header_and_its_body_are_one_write(self) -> None:
        wire = Wire()
        joined = JoinedWrites(wire, asyncio.get_running_loop())
        joined.write(b"head")
        assert wire.sent == []
        joined.write(memoryview(b"body"))
        assert wire.sent == [b"headbody"]
        await anyio.lowlevel.checkpoint()
        assert wire.sent == [b"headbody"]

    async def test_what_stays_alone_goes_out_with_the_turn(self) -> None:
        wire = Wire()
        joined = JoinedWrites(wire, asyncio.get_running_loop())
        joined.write(b"100")
        await anyio.lowlevel.checkpoint()
        assert wire.sent == [b"100"]

    async def test_a_large_body_is_not_copied(self) -> None:
        wire = Wire()
        joined = JoinedWrites(wire, asyncio.get_running_loop())
        large = bytes(JOINED_BYTES + 1)
        joined.write(b"head")
        joined.write(large)
        assert wire.sent == [b"head", large]

    async def test_the_end_comes_behind_what_waits(self) -> None:
        wire = Wire()
        joined = JoinedWrites(wire, asyncio.get_running_loop())
        joined.write(b"bye")
        joined.close()
        await anyio.lowlevel.checkpoint()
        assert wire.sent == [b"bye", None]

    async def test_what_waits_when_a_connection_is_aborted_is_dropped(self) -> None:
        wire = Wire()
        joined = JoinedWrites(wire, asyncio.get_running_loop())
        joined.write(b"never")
        joined.abort()
        await anyio.lowlevel.checkpoint()
        assert wire.sent == [None]


@given(st.lists(st.one_of(st.none(), st.integers(0, 2 * JOINED_BYTES)), max_size=12))
def test_all_bytes_go_out_in_order(steps: list[int | None]) -> None:
    """A step writes so many bytes, or lets the loop turn (None)."""
    wire = Wire()
    written = b""

    async def run() -> None:
        nonlocal written
        joined = JoinedWrites(wire, asyncio.get_running_loop())
        for number, size in enumerate(steps):
            if size is None:
                await anyio.lowlevel.checkpoint()
            else:
                written += bytes([number]) * size
                joined.write(bytes([number]) * size)
        await anyio.lowlevel.checkpoint()

    asyncio.run(run())
    assert b"".join(each or b"" for each in wire.sent) == written
