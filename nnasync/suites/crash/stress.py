"""Clients of one process that stress a device together until their time is over.

A client is a task; the runtime has a core for each, so that as many executions are in the driver at
once. Every answer is compared with what the device said in quiet. One error is a failure of the
whole: a client that goes quiet after an error would look like one that has nothing to complain of.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread

from nnasync._core.drivers.service import connect
from nnasync._core.execution import Net
from nnasync._core.importers import load
from nnasync._core.runtime import Options, Runtime, open_runtime
from nnasync.device import Device
from nnasync.errors import NNError
from nnasync.hal import Array, Model
from nnasync.suites.crash.networks import answers, difference, load_answers
from nnasync.suites.crash.orders import (
    ChildReport,
    CrashActivity,
    StressedNetwork,
    StressOrder,
    UseSample,
)
from nnasync.suites.crash.telling import CallStopwatch, Teller, error_text
from nnasync.suites.process_use import process_use

MOST_FAILURES = 5
NEVER_HANGS = 0
"""A service that hangs is the coordinator's to find out, within its own limit."""


class _Stress:
    """The clients of an order, and what they have seen."""

    def __init__(self, order: StressOrder, runtime: Runtime, teller: Teller) -> None:
        self._order = order
        self._runtime = runtime
        self._teller = teller
        self._answers = {each.name: load_answers(each.answers) for each in order.networks}
        self._models: dict[str, Model] = {}
        self._began_s = time.monotonic()
        self.watch = CallStopwatch()
        self.counts: Counter[str] = Counter()
        self.failures: list[str] = []
        self.samples: list[UseSample] = []

    @property
    def is_over(self) -> bool:
        """Returns whether the clients are to end."""
        late = time.monotonic() - self._began_s >= self._order.seconds
        return late or self._teller.must_end or len(self.failures) >= MOST_FAILURES

    async def prepare(self) -> None:
        """Load what clients compile from memory."""
        if self._order.activity is CrashActivity.COMPILE:
            for network in self._order.networks:
                self._models[network.name] = await anyio.to_thread.run_sync(load, network.path)

    async def run(self) -> None:
        """Run all clients to their end."""
        self._began_s = time.monotonic()
        async with anyio.create_task_group() as tasks:
            for number in range(self._order.clients):
                tasks.start_soon(self._client, number)

    async def _client(self, number: int) -> None:
        chance = random.Random(f"{self._order.seed}/{number}")
        networks = self._order.networks
        place = 0
        while not self.is_over:
            network = networks[place % len(networks)]
            place += 1
            try:
                await self._visit(network)
            except NNError as error:
                self.failures.append(f"{network.name}: {error_text(error)}")
                return
            await anyio.sleep(chance.uniform(*self._order.pause_s))

    async def _visit(self, network: StressedNetwork) -> None:
        activity = self._order.activity
        self._teller.at(f"{activity.value} {network.name}")
        if activity in (CrashActivity.COMPILE, CrashActivity.COMPILE_MAPPED):
            await self._prepare_and_close(network)
        else:
            infers = activity is CrashActivity.INFER
            async with self._runtime.compile(network.path) as net:
                self.counts["loads"] += 1
                await self._infer(network, net, self._order.visit_s if infers else 0)
        if activity is CrashActivity.LOAD:
            self._sample()

    async def _prepare_and_close(self, network: StressedNetwork) -> None:
        model = self._models.get(network.name)
        if model is None:
            model = await anyio.to_thread.run_sync(load, network.path)
        device: Device = self._runtime.devices[0]
        begin_s = time.perf_counter()
        prepared = await device.prepare_model(model)
        self.watch.add((time.perf_counter() - begin_s) * 1e3)
        self.counts["loads"] += 1
        with anyio.CancelScope(shield=True):
            await prepared.close()

    async def _infer(self, network: StressedNetwork, net: Net[Any], seconds: float) -> None:
        """Infer once, and again for so long."""
        inputs, expected = self._answers[network.name]
        until_s = time.monotonic() + seconds
        while True:
            begin_s = time.perf_counter()
            given = await answers(net, inputs)
            self.watch.add((time.perf_counter() - begin_s) * 1e3)
            self._judge(network, given, expected)
            # Calls that run on this thread await nothing: the others are to have their turn.
            await anyio.lowlevel.checkpoint()
            if self.is_over or time.monotonic() >= until_s:
                return

    def _judge(self, network: StressedNetwork, given: Any, expected: list[Array]) -> None:
        self.counts["calls"] += 1
        fault = difference(given, expected)
        if fault:
            self.counts["wrong"] += 1
            if self.counts["wrong"] == 1:
                self.failures.append(f"{network.name}: wrong under stress: {fault}")

    def _sample(self) -> None:
        use = process_use()
        if use is not None:
            at_s = time.monotonic() - self._began_s
            self.samples.append(UseSample(at_s, use.memory_bytes, use.descriptors, use.threads))


@asynccontextmanager
async def _opened(order: StressOrder) -> AsyncIterator[Runtime]:
    """A runtime with the device of an order, in this process or at its socket."""
    options = Options(cores=order.clients, competition_budget_ms=0)
    if not order.address:
        async with open_runtime(devices=[order.device], options=options) as runtime:
            yield runtime
        return
    device = await connect(order.address, hang_after_s=NEVER_HANGS)
    async with open_runtime(devices=[device], options=options) as runtime:
        yield runtime


async def stress(order: StressOrder, teller: Teller) -> ChildReport:
    """Carry out an order of stress."""
    async with _opened(order) as runtime:
        stress = _Stress(order, runtime, teller)
        await stress.prepare()
        teller.begun()
        if order.dies_after_s is not None:
            _die_after(order.dies_after_s)
        await stress.run()
    failures = stress.failures
    wrong = stress.counts["wrong"]
    if wrong > 1:
        failures.append(f"{wrong} of {stress.counts['calls']} answers were wrong")
    return ChildReport(
        tuple(failures),
        stress.watch.times(),
        dict(stress.counts),
        samples=tuple(stress.samples),
    )


def _die_after(seconds: float) -> None:
    """Have this process killed, however busy its loop is."""
    timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGKILL))
    timer.daemon = True
    timer.start()
