"""A live page that is served in the test's own process, and its state folder."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from nnasync.cli.live.server import LiveOptions, serve


@pytest.fixture(scope="session")
def live_state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("live-state")


@pytest.fixture(autouse=True)
def _measured_once(live_state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NNASYNC_STATE_DIR", str(live_state))


@pytest.fixture
async def clips_url(toy_data: Path) -> AsyncIterator[str]:
    """The address of a page that plays the toy clips to everybody."""
    options = LiveOptions(source="demo", port=0, data=toy_data, low_clients=1)
    async with serving(options) as url:
        yield url


@asynccontextmanager
async def serving(options: LiveOptions) -> AsyncIterator[str]:
    """Serve the page meanwhile; gives the address that was told."""
    found: list[str] = []
    ready = anyio.Event()

    def told(url: str) -> None:
        found.append(url)
        ready.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(serve, options, told)
        with anyio.fail_after(60):
            await ready.wait()
        yield found[0]
        tasks.cancel_scope.cancel()
