"""A session of one page that fails as none should, beside others."""

from __future__ import annotations

from typing import Any, cast

import anyio
import msgspec
import pytest

from nnasync.cli.live.load_keeper import LoadKeeper
from nnasync.cli.live.messages import WatchClips
from nnasync.cli.live.networks import Networks
from nnasync.cli.live.studio import Studio
from nnasync.cli.live.ticks import Ticker

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


async def test_a_session_that_fails_ends_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nnasync.cli.live.studio._PERIOD_S", 3600)
    parts = Parts()
    studio = Studio(
        cast(Networks, parts),
        cast(Ticker, parts),
        cast(LoadKeeper, parts),
        [],
        {},
        source="",
        open_clips=Broken,
    )
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(studio.run, None)
        await anyio.wait_all_tasks_blocked()
        viewer = studio.admit()
        with anyio.fail_after(20):
            assert await viewer.outbox.next() is not None  # The greeting.
            for _ in range(2):
                studio.obey(viewer, WatchClips())
                ended = msgspec.json.decode(cast(str, await viewer.outbox.next()))
                assert ended == {"type": "ended", "reason": "the server failed: 'a library'"}
        tasks.cancel_scope.cancel()
