"""A node of Ray, and a network between that is cut in earnest."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

import nnasync as nn
from nnasync.errors import DeviceDied, DeviceError
from nnasync.ray import device
from tests import rigs
from tests.namespaces import Namespace, namespace

ray = pytest.importorskip("ray", reason="needs the extra ray")

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.one_loop("Each needs a cluster of its own processes."),
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # Ray's own, of which there are many.
]

MEMORY = 100 << 20
HANG_AFTER_S = 1.0
PATIENCE_S = 120
OPTIONS = nn.Options(cores=1, competition_budget_ms=0, revive=True)


@contextmanager
def cluster(there: Namespace) -> Iterator[None]:
    """A head on this side of the cable, and on the other side a node with what a device needs."""
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 1, "object_store_memory": MEMORY, "node_ip_address": there.here}
    made = Cluster(initialize_head=True, head_node_args=head)
    ray_command = str(Path(sys.executable).with_name("ray"))
    node = subprocess.Popen(
        there.command(
            ray_command, "start", f"--address={made.address}", f"--node-ip-address={there.there}",
            "--num-cpus=1", f"--object-store-memory={MEMORY}", '--resources={"device": 1}',
            "--disable-usage-stats", "--block",
        ),
        env=dict(os.environ), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        ray.init(
            address=made.address, _node_ip_address=there.here, logging_level="ERROR",
            log_to_driver=False,
        )  # fmt: skip
        yield
    finally:
        ray.shutdown()
        node.terminate()
        node.wait()
        made.shutdown()


async def test_a_node_behind_a_cable_that_is_cut() -> None:
    """Calls end with DeviceDied after the time of silence, and go on when the network is back."""
    with namespace(1) as there, cluster(there):
        placed = device(rigs.REFERENCE, resources={"device": 1}, hang_after_s=HANG_AFTER_S)
        with anyio.fail_after(PATIENCE_S):
            async with nn.open_runtime(devices=[placed], options=OPTIONS) as runtime:
                net = await runtime.compile(rigs.doubler())
                assert (await net(rigs.ROW)).tolist() == (2 * rigs.ROW).tolist()
                there.cut()
                try:
                    with pytest.raises(DeviceDied, match="no sign of life for 1 s"):
                        await net(rigs.ROW)
                finally:
                    there.mend()
                await answered(net)


async def answered(net: Any) -> None:
    """Call until there is an answer."""
    while True:
        try:
            assert (await net(rigs.ROW)).tolist() == (2 * rigs.ROW).tolist()
        except DeviceError:
            await anyio.sleep(0.01)
        else:
            return
