"""Calls in flight take no descriptors: the application goes on opening files and taking calls."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import nnasync as nn
from tests.conftest import open_descriptors, opened_since
from tests.rigs import ROW, both, counter, doubler, runtime

PROGRAM = """
import asyncio, os, resource, socket, sys
from collections import Counter

import numpy as np

import nnasync as nn
from nnasync._core.drivers.null import Gate, NullEngine
from tests import rigs

CALLS = 2000


async def accepts():
    came = asyncio.Event()

    def accepted(reader, writer):
        # Python 3.12 waits at the end of the server for each connection that is still open.
        writer.close()
        came.set()

    server = await asyncio.start_server(accepted, "127.0.0.1", 0)
    async with server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        await came.wait()
        writer.close()


async def call(net, number):
    row = np.full((1, 4), number, np.float32)
    try:
        return "right" if (await net(row) == 2 * row).all() else "wrong"
    except nn.errors.ResourceExhaustedTransient:
        return "refused"


async def main():
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
    gate = Gate()
    engine = NullEngine(compute=rigs.double, gate=gate)
    options = nn.Options(
        cores=1, inline_budget_us=0, competition_budget_ms=0, queue_limit=int(sys.argv[1])
    )
    async with nn.open_runtime(devices=[engine], options=options) as rt:
        net = await rt.compile(rigs.doubler())
        before = len(os.listdir("/proc/self/fd"))
        calls = [asyncio.ensure_future(call(net, 0))]
        while rt.statistics().workers.running < 1:
            await asyncio.sleep(0)
        calls += [asyncio.ensure_future(call(net, number)) for number in range(1, CALLS)]
        while rt.statistics().workers.scheduler.submitted < min(CALLS, int(sys.argv[1]) + 1):
            await asyncio.sleep(0)
        pools = rt.statistics().memory.pools
        taken = len(os.listdir("/proc/self/fd")) - before
        files = [open("/dev/null") for _ in range(100)]
        await accepts()
        for file in files:
            file.close()
        print("pools", "few" if pools <= min(CALLS, int(sys.argv[1])) + 8 else pools)
        print("descriptors", taken)
        gate.open_wide()
        for outcome, count in sorted(Counter(await asyncio.gather(*calls)).items()):
            print(outcome, count)


asyncio.run(main())
"""


def outcomes(program: str, *arguments: int) -> dict[str, str]:
    run = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=Path(__file__).parents[2],
    )
    assert run.returncode == 0, run.stderr
    return dict(line.split() for line in run.stdout.splitlines())


def test_two_thousand_calls_in_flight_are_answered_with_256_descriptors() -> None:
    assert outcomes(PROGRAM, 4000) == {"pools": "few", "descriptors": "0", "right": "2000"}


def test_calls_that_the_queue_has_no_room_for_are_refused_before_they_take_memory() -> None:
    assert outcomes(PROGRAM, 1024) == {
        "pools": "few",
        "descriptors": "0",
        "right": "1025",
        "refused": "975",
    }


ISOLATED = """
import asyncio, os, resource
from collections import Counter

import numpy as np

import nnasync as nn
from tests import rigs


async def call(net, number):
    row = np.full((1, 4), number, np.float32)
    return "right" if (await net(row) == 2 * row).all() else "wrong"


async def main():
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
    name = rigs.REFERENCE
    async with nn.open_runtime(devices=[name], isolate=[name], options=rigs.POOL) as rt:
        net = await rt.compile(rigs.doubler())
        calls = [asyncio.ensure_future(call(net, number)) for number in range(900)]
        await asyncio.sleep(0)
        files = [open("/dev/null") for _ in range(100)]
        for outcome, count in sorted(Counter(await asyncio.gather(*calls)).items()):
            print(outcome, count)


asyncio.run(main())
"""


def test_900_calls_of_an_isolated_device_are_answered_with_256_descriptors() -> None:
    assert outcomes(ISOLATED) == {"right": "900"}


@pytest.mark.anyio
@both
async def test_a_network_of_this_process_takes_no_descriptor_however_it_is_used(
    options: nn.Options,
) -> None:
    async with runtime(options=options) as rt:
        before = open_descriptors()
        net, stream = await rt.compile(doubler()), await rt.compile(counter())
        await net(ROW)
        first = await net.launch(ROW)
        second = await net.launch(first.outputs, wait_for=[first.fence])
        assert (await second.result()).tolist() == (4 * ROW).tolist()
        async with net.burst() as burst, stream.burst() as counting:
            await burst(ROW)
            assert (await counting(ROW)).tolist() == ROW.tolist()
            async with await rt.allocate(net.input_role(), net.output_role()) as buffer:
                await net(ROW, out=buffer)
                assert (await buffer.read()).tolist() == (2 * ROW).tolist()
                assert opened_since(before) == {}
