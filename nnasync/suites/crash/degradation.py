"""How much slower inference gets while the device compiles something else.

For each network that is compiled: the first network is timed alone and beside compilations, in
turn, a few rounds of each, so that what else the machine does meanwhile meets both. The degradation
is that of the median of the rounds' means. More than half is a failure.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread

from nnasync._core.execution import Net
from nnasync._core.importers import load
from nnasync._core.runtime import Options, open_runtime
from nnasync.device import Device
from nnasync.errors import NNError
from nnasync.hal import Array, Model
from nnasync.suites.crash.networks import answers, load_answers
from nnasync.suites.crash.orders import ChildReport, DegradationOrder
from nnasync.suites.crash.telling import Teller, error_text, quantile

LIMIT_PERCENT = 50.0
ROUNDS = 3
PAUSE_S = 0.02
LEAST_CALLS = 5


def degradation_percent(alone_ms: Sequence[float], beside_ms: Sequence[float]) -> float:
    """Returns by how many percent the median of the second exceeds that of the first."""
    return (statistics.median(beside_ms) / statistics.median(alone_ms) - 1) * 100


async def degrade(order: DegradationOrder, teller: Teller) -> ChildReport:
    """Measure one network beside the compilation of each."""
    figures: dict[str, float] = {}
    failures: list[str] = []
    inputs, _ = load_answers(order.networks[0].answers)
    options = Options(competition_budget_ms=0)
    async with (
        open_runtime(devices=[order.device], options=options) as runtime,
        runtime.compile(order.networks[0].path) as net,
    ):
        teller.begun()
        for network in order.networks:
            teller.at(f"compile {network.name} beside {order.networks[0].name}")
            model = await anyio.to_thread.run_sync(load, network.path)
            beside = _Beside(runtime.devices[0], model, order.compilers)
            try:
                mean, p99 = await _measured(net, inputs, beside, order.seconds)
            except NNError as error:
                failures.append(f"{network.name}: {error_text(error)}")
                continue
            figures[f"degradation by {network.name}, %"] = mean
            figures[f"degradation of the 99 % quantile by {network.name}, %"] = p99
            if mean > LIMIT_PERCENT:
                failures.append(
                    f"inference is {mean:.0f} % slower while {network.name} is compiled; "
                    f"{LIMIT_PERCENT:.0f} % are allowed"
                )
    return ChildReport(tuple(failures), figures=figures)


class _Beside:
    """Compilations of one model, again and again."""

    def __init__(self, device: Device, model: Model, compilers: int) -> None:
        self._device = device
        self._model = model
        self._compilers = compilers
        self._failure: NNError | None = None

    async def once(self) -> None:
        """Compile and close."""
        prepared = await self._device.prepare_model(self._model)
        with anyio.CancelScope(shield=True):
            await prepared.close()

    async def forever(self, *, task_status: Any) -> None:
        """Compile until cancelled, or until it fails."""
        task_status.started()
        try:
            while True:
                await self.once()
                await anyio.sleep(PAUSE_S)
        except NNError as error:
            self._failure = error

    async def timed(self, net: Net[Any], inputs: Sequence[Array], seconds: float) -> list[float]:
        """Time a network meanwhile; raises what a compilation did."""
        async with anyio.create_task_group() as tasks:
            for _ in range(self._compilers):
                await tasks.start(self.forever)
            times = await _timed(net, inputs, seconds)
            tasks.cancel_scope.cancel()
        if self._failure is not None:
            raise self._failure
        return times


async def _measured(
    net: Net[Any], inputs: Sequence[Array], beside: _Beside, seconds: float
) -> tuple[float, float]:
    """The degradation of the mean and of the 99 % quantile, in percent."""
    alone: list[list[float]] = []
    busy: list[list[float]] = []
    await beside.once()
    part_s = seconds / (2 * ROUNDS)
    for _ in range(ROUNDS):
        alone.append(await _timed(net, inputs, part_s))
        busy.append(await beside.timed(net, inputs, part_s))
    means = [[statistics.fmean(each) for each in times] for times in (alone, busy)]
    tails = [[quantile(sorted(each), 0.99) for each in times] for times in (alone, busy)]
    return degradation_percent(*means), degradation_percent(*tails)


async def _timed(net: Net[Any], inputs: Sequence[Array], seconds: float) -> list[float]:
    times: list[float] = []
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s or len(times) < LEAST_CALLS:
        begin_s = time.perf_counter()
        await answers(net, inputs)
        times.append((time.perf_counter() - begin_s) * 1e3)
        await anyio.lowlevel.checkpoint()
    return times
