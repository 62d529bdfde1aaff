"""The LOW load: clients that ask again, also after a refusal."""

from __future__ import annotations

from typing import Any

import anyio
import numpy as np
import pytest

from nnasync.cli.demo.load import LowLoad
from nnasync.errors import ResourceExhaustedTransient
from nnasync.hal import Array

pytestmark = pytest.mark.anyio

INPUTS = [np.full(1, value, np.float32) for value in range(3)]


class Network:
    """Refuses the first call, answers five, then is stuck with two."""

    def __init__(self) -> None:
        self.asked: list[float] = []
        self.stuck = anyio.Event()

    async def __call__(self, array: Array) -> Any:
        self.asked.append(float(array[0]))
        if len(self.asked) == 1:
            raise ResourceExhaustedTransient("the queue is full")
        if len(self.asked) > 6:
            if len(self.asked) > 7:
                self.stuck.set()
            await anyio.sleep_forever()
        return array


async def test_a_client_goes_on_until_it_is_cancelled() -> None:
    network = Network()
    load = LowLoad(network, INPUTS, clients=1)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(load.run)
        await network.stuck.wait()
        tasks.cancel_scope.cancel()
    assert len(network.asked) == 8
    assert set(network.asked) == {0, 1, 2}
    assert (load.answered, load.refused) == (5, 1)


async def test_no_clients_are_no_load() -> None:
    load = LowLoad(Network(), INPUTS, clients=0)
    await load.run()
    assert await load.rate_hz(1.0) == 0.0
