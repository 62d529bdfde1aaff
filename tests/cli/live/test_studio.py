"""Sessions of one page: one that fails as none should, and one that follows another at once."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import anyio
import msgspec
import pytest

from nnasync.cli.live.load_keeper import LoadKeeper
from nnasync.cli.live.messages import Stop, WatchClips
from nnasync.cli.live.networks import Networks
from nnasync.cli.live.studio import Studio, Viewer
from nnasync.cli.live.ticks import Ticker
from nnasync.errors import BadState

pytestmark = pytest.mark.anyio


class Parts:
    """As much of networks, ticks and load as a studio needs."""

    driver = ""
    cores = 1

    def watch(self, *, is_watched: bool) -> None:
        pass

    def advance(self) -> None:
        pass

    def tick(self, *_: object) -> None:
        raise AssertionError("a tick is not waited for")

    async def run(self) -> None:
        await anyio.sleep_forever()


class Broken:
    """A source that fails as none should."""

    async def __aenter__(self) -> Any:
        raise KeyError("a library")

    async def __aexit__(self, *exception: object) -> None:
        raise AssertionError("it was not entered")


class Slow:
    """A source that takes its time to close."""

    def __init__(self) -> None:
        self.opened = 0
        self.may_close = anyio.Event()

    async def __aenter__(self) -> Any:
        self.opened += 1
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.move_on_after(5, shield=True):  # A test that fails has to end.
                await self.may_close.wait()

    async def __aexit__(self, *exception: object) -> None:
        raise AssertionError("it was not entered")


@asynccontextmanager
async def studio_of(open_clips: Callable[[], Any]) -> AsyncIterator[tuple[Studio, Viewer]]:
    """A studio that runs, and its one viewer, who has been greeted."""
    parts = Parts()
    studio = Studio(
        cast(Networks, parts),
        cast(Ticker, parts),
        cast(LoadKeeper, parts),
        [],
        {},
        source="",
        open_clips=open_clips,
    )
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(studio.run, None)
            await anyio.wait_all_tasks_blocked()
            viewer = studio.admit()
            assert await viewer.outbox.next() is not None
            yield studio, viewer
            tasks.cancel_scope.cancel()


async def told(viewer: Viewer) -> Any:
    return msgspec.json.decode(cast(str, await viewer.outbox.next()))


@pytest.fixture(autouse=True)
def _no_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nnasync.cli.live.studio._PERIOD_S", 3600)


async def test_a_session_that_fails_ends_nothing_else() -> None:
    async with studio_of(Broken) as (studio, viewer):
        for _ in range(2):
            studio.obey(viewer, WatchClips())
            ended = {"type": "ended", "reason": "the server failed: 'a library'"}
            assert await told(viewer) == ended


async def test_a_page_may_begin_anew_while_its_session_is_being_stopped() -> None:
    slow = Slow()
    async with studio_of(lambda: slow) as (studio, viewer):
        studio.obey(viewer, WatchClips())
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(BadState, match="stop it first"):
            studio.obey(viewer, WatchClips())
        studio.obey(viewer, Stop())
        for _ in range(3):
            studio.obey(viewer, WatchClips())
        await anyio.wait_all_tasks_blocked()
        assert slow.opened == 1
        slow.may_close.set()
        assert await told(viewer) == {"type": "ended", "reason": ""}
        await anyio.wait_all_tasks_blocked()
        assert slow.opened == 2


@pytest.mark.parametrize("is_gone", [True, False], ids=["gone", "stopped"])
async def test_nothing_begins_for_a_page_that_is_gone_or_stopped_again(is_gone: bool) -> None:
    slow = Slow()
    async with studio_of(lambda: slow) as (studio, viewer):
        for command in (WatchClips(), Stop(), WatchClips()):
            studio.obey(viewer, command)
            await anyio.wait_all_tasks_blocked()
        if is_gone:
            studio.leave(viewer)
        else:
            studio.obey(viewer, Stop())
        slow.may_close.set()
        await anyio.wait_all_tasks_blocked()
        assert slow.opened == 1
