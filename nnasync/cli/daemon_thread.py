"""Work on a thread that keeps no process from ending: reading a pipe that nobody writes to."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from nnasync import Fence

T = TypeVar("T")


async def in_daemon_thread(work: Callable[[], T]) -> T:
    """Returns what `work` returns or raises; who is cancelled meanwhile leaves it behind."""
    ended, results = Fence(), list[T]()

    def run() -> None:
        try:
            results.append(work())
        except Exception as error:
            ended.fail(error)
        else:
            ended.signal()

    threading.Thread(target=run, name="nnasync-cli", daemon=True).start()
    await ended
    return results[0]
