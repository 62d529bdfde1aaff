"""Signals end a block and nothing else."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator

import anyio
import pytest

from nnasync.cli.interruption import interruptible

pytestmark = pytest.mark.anyio

TWICE = """
import signal
import sys
import anyio
from nnasync import run
from nnasync.cli import interruption as module
from nnasync.cli.interruption import interruptible

second = signal.Signals[sys.argv[1]]
module._SAME_S = float(sys.argv[2])

async def turns():
    for _ in range(100):
        await anyio.lowlevel.checkpoint()

async def main():
    async with interruptible() as interruption:
        signal.raise_signal(signal.SIGTERM)
        with anyio.CancelScope(shield=True):
            await turns()
            signal.raise_signal(second)
            await turns()
            print("wound up", flush=True)
    signal.raise_signal(second)
    print("told", flush=True)
    return interruption.exit_code

raise SystemExit(run(main))
"""


@pytest.fixture(autouse=True)
def sigterm() -> Iterator[None]:
    """Leaves the handler as it was."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def signaled_twice(
    second: signal.Signals, same_s: float = 1e9
) -> subprocess.CompletedProcess[bytes]:
    """A process that SIGTERM tells to end, and then this, which is soon in so many seconds."""
    arguments = [sys.executable, "-c", TWICE, second.name, str(same_s)]
    return subprocess.run(arguments, capture_output=True, check=False)


def test_a_sigterm_that_comes_again_is_the_same() -> None:
    """`timeout` signals its process and then the whole group, in which that is, too."""
    ended = signaled_twice(signal.SIGTERM)
    assert (ended.returncode, ended.stdout) == (143, b"wound up\ntold\n")


def test_a_later_sigterm_ends_what_does_not_come_to_an_end() -> None:
    ended = signaled_twice(signal.SIGTERM, same_s=-1.0)
    assert (ended.returncode, ended.stdout) == (-signal.SIGTERM, b"")


def test_who_is_impatient_ends_it_all() -> None:
    ended = signaled_twice(signal.SIGINT)
    assert (ended.returncode, ended.stdout) == (-signal.SIGINT, b"")


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
