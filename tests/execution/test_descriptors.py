"""Calls in flight take no descriptors: the application goes on opening files and taking calls."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import asyncio, os, resource, socket, sys
from collections import Counter

import numpy as np

import nnasync as nn
from nnasync.drivers.null import Gate, NullEngine
from tests import rigs

CALLS = 2000


async def accepts():
    came = asyncio.Event()
    server = await asyncio.start_server(lambda reader, writer: came.set(), "127.0.0.1", 0)
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


def outcomes(queue_limit: int) -> dict[str, str]:
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(queue_limit)],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=Path(__file__).parents[2],
    )
    assert run.returncode == 0, run.stderr
    return dict(line.split() for line in run.stdout.splitlines())


def test_two_thousand_calls_in_flight_are_answered_with_256_descriptors() -> None:
    assert outcomes(4000) == {"pools": "few", "descriptors": "0", "right": "2000"}


def test_calls_that_the_queue_has_no_room_for_are_refused_before_they_take_memory() -> None:
    assert outcomes(1024) == {
        "pools": "few",
        "descriptors": "0",
        "right": "1025",
        "refused": "975",
    }
