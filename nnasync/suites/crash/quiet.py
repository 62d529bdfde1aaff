"""What a device takes, and what it answers while nothing else runs.

Each network is asked once on the reference and once on the device. The device must be near the
reference; what it answers itself is then what it has to answer under stress. A network that it says
it does not take is skipped: to be refused is an answer, any other error is a failure.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nnasync._core.execution import Net
from nnasync._core.runtime import Options, Runtime, open_runtime
from nnasync.devices import REFERENCE
from nnasync.errors import GeneralFailure, NNError
from nnasync.hal import Array
from nnasync.suites.crash.networks import (
    QUANTIZED_TOLERANCE,
    TOLERANCE,
    answers,
    difference,
    drawn_inputs,
    is_quantized,
    save_answers,
)
from nnasync.suites.crash.orders import ChildReport, QuietOrder, StressedNetwork
from nnasync.suites.crash.telling import Teller, error_text

QUIET = Options(competition_budget_ms=0)


class _Quiet:
    """One device and the reference, asked the same."""

    def __init__(self, device: Runtime, reference: Runtime, order: QuietOrder) -> None:
        self._device = device
        self._reference = reference
        self._order = order
        self.taken: list[StressedNetwork] = []
        self.declined: dict[str, str] = {}
        self.failures: list[str] = []

    async def ask(self, network: StressedNetwork, number: int) -> None:
        """Ask about one network."""
        try:
            async with self._device.compile(network.path) as net:
                await self._compare(network, net, number)
        except GeneralFailure as error:
            self.declined[network.name] = error_text(error)
        except NNError as error:
            self.failures.append(f"{network.name}: {error_text(error)}")

    async def _compare(self, network: StressedNetwork, net: Net[Any], number: int) -> None:
        inputs = drawn_inputs(net.inputs, self._order.seed)
        try:
            given = await answers(net, inputs)
            again = await answers(net, inputs)
        except NNError as error:
            self.failures.append(f"{network.name}: {error_text(error)}")
            return
        tolerance = QUANTIZED_TOLERANCE if is_quantized(net.model) else TOLERANCE
        fault = difference(given, await self._expected(network, inputs), tolerance)
        if fault:
            self.failures.append(f"{network.name}: alone and in quiet, {fault}")
        fault = difference(again, given)
        if fault:
            self.failures.append(f"{network.name}: asked twice in quiet, {fault}")
        path = Path(self._order.folder) / f"{number}.npz"
        save_answers(path, inputs, given)
        self.taken.append(StressedNetwork(network.name, network.path, str(path)))

    async def _expected(self, network: StressedNetwork, inputs: list[Array]) -> tuple[Array, ...]:
        async with self._reference.compile(network.path) as net:
            return await answers(net, inputs)


async def answer_in_quiet(order: QuietOrder, teller: Teller) -> ChildReport:
    """Ask the device about all networks of an order."""
    async with (
        open_runtime(devices=[order.device], options=QUIET) as device,
        open_runtime(devices=[REFERENCE], options=QUIET) as reference,
    ):
        quiet = _Quiet(device, reference, order)
        teller.begun()
        for number, network in enumerate(order.networks):
            teller.at(network.name)
            await quiet.ask(network, number)
    return ChildReport(tuple(quiet.failures), networks=tuple(quiet.taken), declined=quiet.declined)
