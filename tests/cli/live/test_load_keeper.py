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
        keeper.watch(is_watched=True)
        await until(network.is_asked(2))
        for clients in (3, 0, 2):
            keeper.set(clients)
            await until(network.is_asked(2 * clients))
        keeper.watch(is_watched=False)
        await until(network.is_asked(0))
        tasks.cancel_scope.cancel()
    assert network.asking == 0
