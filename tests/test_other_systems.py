"""Other systems, in a child that is told it is one: the package is imported, and a network runs.

Taken away is what Linux alone has: eventfd, memfd, affinity, the system calls of time slices.
What another kernel does of its own this cannot show.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

_LINUX_ONLY = (
    "eventfd",
    "eventfd_read",
    "eventfd_write",
    "EFD_CLOEXEC",
    "EFD_NONBLOCK",
    "memfd_create",
    "MFD_ALLOW_SEALING",
    "MFD_CLOEXEC",
    "sched_getaffinity",
    "sched_setaffinity",
    "pidfd_open",
    "O_PATH",
    "O_TMPFILE",
)
_PROGRAM = """
import asyncio, concurrent.futures.thread, ctypes, importlib, multiprocessing, os, pkgutil, platform
import resource, selectors, socket, subprocess, sys, tempfile
import anyio, msgspec, numpy, threadpoolctl, uvloop

system, machine, absent = sys.argv[1], sys.argv[2], sys.argv[3].split(",")
sys.platform = system
platform.machine = lambda: machine
platform.system = lambda: {"darwin": "Darwin", "linux": "Linux"}[system]
for name in absent:
    if hasattr(os, name):
        delattr(os, name)

import nnasync as nn

for found in pkgutil.walk_packages(nn.__path__, "nnasync.", onerror=print):
    if found.name == "nnasync.__main__":
        continue
    try:
        importlib.import_module(found.name)
    except ModuleNotFoundError as error:
        # Extras that this environment does not have.
        if (error.name or "nnasync").startswith("nnasync"):
            raise

from nnasync.machine import find_obstacles, kept_costs, read_facts, read_surroundings
facts = read_facts()
assert facts.time_slices is None or system == "linux", facts
read_surroundings(wait=lambda: None)

async def main():
    builder = nn.ModelBuilder("sum")
    x = builder.input("x", (1, 4))
    builder.output("y", builder.add(x, x))
    async with nn.open_runtime(devices=["nnasync-reference"]) as runtime:
        net = await runtime.compile(builder.build())
        print((await net(numpy.ones((1, 4), numpy.float32))).tolist())
        async with net.burst() as burst:
            print((await burst(numpy.ones((1, 4), numpy.float32))).tolist())

nn.run(main)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="this is another system, for real")
@pytest.mark.parametrize(
    ("system", "machine", "absent"),
    [("darwin", "arm64", _LINUX_ONLY), ("linux", "aarch64", ())],
    ids=["macOS", "Linux on Arm"],
)
def test_the_package_on_another_system(system: str, machine: str, absent: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _PROGRAM, system, machine, ",".join(absent)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.stdout.splitlines() == ["[[2.0, 2.0, 2.0, 2.0]]"] * 2, done.stderr
