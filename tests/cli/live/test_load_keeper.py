"""The LOW load has as many clients as were asked for last, and none while nobody watches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import numpy as np
import pytest

from nnasync.cli.demo.load import LowLoad
from nnasync.cli.live.load_keeper import LoadKeeper
from nnasync.hal import Array
from tests.rigs import until

pytestmark = pytest.mark.anyio


class Network:
    """Answers nobody; `asking` are the calls under way."""

    def __init__(self) -> None:
        self.asking = 0

    def is_asked(self, calls: int) -> Callable[[], bool]:
        return lambda: self.asking == calls

    async def __call__(self, array: Array) -> Any:
        self.asking += 1
        try:
            await anyio.sleep_forever()
        finally:
            self.asking -= 1


async def test_a_load_follows_what_is_asked_for() -> None:
    network = Network()
    keeper = LoadKeeper(LowLoad(network, [np.zeros(1, np.float32)], 0), 1)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(keeper.run)
        for step, calls in (
            (lambda: keeper.watch(is_watched=True), 2),
            (lambda: keeper.set(3), 6),
            (lambda: keeper.set(0), 0),
            (lambda: keeper.set(2), 4),
            (lambda: keeper.watch(is_watched=False), 0),
        ):
            step()
            await until(network.is_asked(calls))
        tasks.cancel_scope.cancel()
    assert network.asking == 0
