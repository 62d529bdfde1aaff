"""Signals end a block and nothing else."""

from __future__ import annotations

import signal

import anyio
import pytest

from nnasync.cli.interruption import interruptible

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(("which", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
async def test_a_signal_cancels_the_block(which: signal.Signals, code: int) -> None:
    cleaned = []
    async with interruptible() as interruption:
        try:
            signal.raise_signal(which)
            await anyio.sleep_forever()
        finally:
            cleaned.append(which)
    assert cleaned == [which]
    assert (interruption.signal, interruption.exit_code) == (which, code)


async def test_without_a_signal() -> None:
    async with interruptible() as interruption:
        await anyio.lowlevel.checkpoint()
    assert (interruption.signal, interruption.exit_code) == (None, 0)


async def test_an_error_comes_out_bare() -> None:
    async def use() -> None:
        async with interruptible():
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        await use()


async def test_handlers_are_restored() -> None:
    before = signal.getsignal(signal.SIGTERM)
    async with interruptible():
        await anyio.lowlevel.checkpoint()
    assert signal.getsignal(signal.SIGTERM) == before
