"""The networks of the live page on one runtime: one hears, one sees, one is the LOW load.

The network that sees runs on a device in a process of its own where an engine is installed, so
that a page can kill that process: the runtime starts it again and compiles the network anew.
"""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio.to_thread
import numpy as np

from nnasync import Net, Options, Runtime, load, now_ns, open_runtime, vision
from nnasync.cli import demo_data
from nnasync.cli.demo.load import LowLoad
from nnasync.cli.demo.streams import HOP, IMAGE, data_file
from nnasync.cli.live.activity import Activity
from nnasync.devices import installed
from nnasync.errors import BadState
from nnasync.hal import Priority

KILLABLE = ("litert-cpu", "openvino-cpu", "onnxruntime-cpu")
"""Devices that may run the network that sees in a process of their own, the first that is there."""

_WARM_UP_RUNS = 3


class Networks:
    """What is compiled, and the process that may be killed."""

    def __init__(
        self,
        runtime: Runtime,
        driver: str,
        words: Net,
        detector: vision.Detector,
        load: LowLoad,
    ) -> None:
        self.driver = driver
        self.words = words
        self.detector = detector
        self.load = load
        self.deaths = 0
        self.killed_ns: int | None = None
        """When the driver was killed, until its network has answered again."""
        self._runtime = runtime

    @property
    def priorities(self) -> dict[str, Priority]:
        """Returns each network's priority, by its name in the records of runs."""
        return {
            "words": Priority.HIGH,
            "detector": Priority.MEDIUM,
            "digits_large": Priority.LOW,
        }

    @property
    def driver_pid(self) -> int:
        """The process of the driver; 0 while there is none."""
        if not self.driver:
            return 0
        return int(getattr(self._runtime.device(self.driver), "pid", 0))

    def kill_driver(self) -> int:
        """Kill the process of the driver; returns its number.

        Raises BadState where no driver has one, or it is being started.
        """
        pid = self.driver_pid
        if not pid:
            what = "is being started" if self.driver else "has no process of its own here"
            raise BadState(f"the driver {what}")
        self.deaths += 1
        self.killed_ns = now_ns()
        os.kill(pid, signal.SIGKILL)
        return pid


@asynccontextmanager
async def open_networks(folder: Path | None, activity: Activity) -> AsyncIterator[Networks]:
    """Open a runtime, compile the networks, and run each a few times."""
    there = [device.name for device in installed() if not device.absence]
    driver = next((name for name in KILLABLE if name in there), "")
    async with open_runtime(
        isolate=[driver] if driver else [],
        options=Options(revive=True),
        instruments=[activity],
    ) as runtime:
        here = [device.name for device in runtime.devices if device.name != driver]
        words = await _compiled(runtime, folder, "words", Priority.HIGH, here)
        behind = [driver] if driver else here
        seeing = await _compiled(runtime, folder, "detector", Priority.MEDIUM, behind)
        detector = demo_data.digit_detector(seeing)
        large = await _compiled(runtime, folder, "digits_large", Priority.LOW, here)
        noise = np.random.default_rng(0).random((8, 1, *IMAGE, 1), np.float32)
        for _ in range(_WARM_UP_RUNS):
            await words(np.zeros((1, HOP), np.float32))
            await detector(np.zeros(IMAGE, np.uint8))
        load = LowLoad(large, list(noise), 0)
        yield Networks(runtime, driver, words, detector, load)


async def _compiled(
    runtime: Runtime, folder: Path | None, name: str, priority: Priority, devices: list[str]
) -> Net:
    path = data_file(folder, f"{name}.nnm")
    model = await anyio.to_thread.run_sync(load, path)
    return await runtime.compile(model, priority=priority, devices=devices, name=name)
