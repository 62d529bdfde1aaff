"""Devices on two simulated nodes: calls over TCP, and the death of a process and of a node."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import anyio
import anyio.to_thread
import pytest

import nnasync as nn
from nnasync.errors import DeviceDied, DeviceUnavailable, InvalidArgument
from nnasync.ray import device
from tests import rigs

ray = pytest.importorskip("ray", reason="needs the extra ray")

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.one_loop("Each needs a cluster of its own processes."),
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # Ray's own, of which there are many.
]

MEMORY = 100 << 20
PATIENCE_S = 120
OPTIONS = nn.Options(cores=1, competition_budget_ms=0, revive=True)


@pytest.fixture
def nodes() -> Iterator[Any]:
    """A head, and two nodes that have what a device asks for."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": MEMORY}
    )
    places = [
        cluster.add_node(num_cpus=1, object_store_memory=MEMORY, resources={"device": 1})
        for _ in range(2)
    ]
    ray.init(address=cluster.address, logging_level="ERROR", log_to_driver=False)
    yield cluster, places
    ray.shutdown()
    cluster.shutdown()


async def answered(net: nn.Net) -> None:
    """Call until there is an answer."""
    with anyio.fail_after(PATIENCE_S):
        while True:
            try:
                assert (await net(rigs.ROW)).tolist() == (2 * rigs.ROW).tolist()
            except nn.errors.DeviceError:
                await anyio.sleep(0.01)
            else:
                return


async def test_a_device_that_dies_and_a_node_that_dies(nodes: Any) -> None:
    cluster, places = nodes
    placed = device(rigs.REFERENCE, resources={"device": 1})
    async with nn.open_runtime(devices=[placed], options=OPTIONS) as runtime:
        net = await runtime.compile(rigs.doubler())
        await answered(net)
        actor = placed._source._actor
        process = await asked(actor.pid)
        assert process != os.getpid()
        os.kill(process, signal.SIGKILL)
        assert isinstance(await lost(net), DeviceDied)
        await answered(net)
        home = await asked(actor.node)
        gone = next(each for each in places if each.node_id == home)
        await anyio.to_thread.run_sync(lambda: cluster.remove_node(gone, False))
        assert isinstance(await lost(net), DeviceDied)
        await answered(net)
        assert await asked(actor.node) != home


async def lost(net: nn.Net) -> Exception:
    """Call until there is no answer; the first error."""
    with anyio.fail_after(PATIENCE_S):
        while True:
            try:
                await net(rigs.ROW)
            except nn.errors.DeviceError as error:
                return error


async def asked(method: Any) -> Any:
    """What an actor answers."""
    return await anyio.to_thread.run_sync(lambda: ray.get(method.remote(), timeout=PATIENCE_S))


async def test_what_no_node_has(nodes: Any) -> None:
    placed = device("no such device", resources={"device": 1})
    with pytest.raises(DeviceUnavailable, match="no such device"):
        async with nn.open_runtime(devices=[placed]):
            pass


def test_cores() -> None:
    with pytest.raises(InvalidArgument, match="at least 1"):
        device(rigs.REFERENCE, cores=0)
