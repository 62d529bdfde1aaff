"""Random graphs on a device: loaded, or executed and compared with the reference.

The device is asked first what it takes, and graphs are drawn from that. A graph that it declines
all the same counts as unsupported. The graph of a seed is said before it is tried: where the
process dies or hangs, that seed is the finding.
"""

from __future__ import annotations

import time
from collections import Counter

import anyio
import msgspec

from nnasync._core.runtime import Options, open_runtime
from nnasync.conformance.random_graphs import (
    GraphVerdict,
    Menu,
    RandomGraph,
    Size,
    examine,
    generate,
    model_of,
    survey,
)
from nnasync.device import Device
from nnasync.errors import DeviceDied, DeviceUnavailable, GeneralFailure, NNError
from nnasync.suites.crash.orders import ChildReport, GraphOrder
from nnasync.suites.crash.telling import Teller, error_text

MOST_FINDINGS = 5


def seed_arguments(order: GraphOrder, seed: int) -> str:
    """The arguments of `nnasync randomgraph` that repeat one graph."""
    return f"--seeds {seed}:{seed + 1} --size {order.size}"


async def load_graphs(order: GraphOrder, teller: Teller) -> ChildReport:
    """Try the graphs of an order until their number or the time is reached."""
    counts: Counter[str] = Counter()
    findings: list[tuple[str, str]] = []
    async with open_runtime(devices=[order.device], options=Options(cores=1)) as runtime:
        device = runtime.devices[0]
        menu = _menu_in(order.menu) if order.menu else await survey(device)
        teller.begun()
        until_s = time.monotonic() + order.seconds
        for seed in range(order.first_seed, order.first_seed + order.count):
            if time.monotonic() >= until_s or teller.must_end or len(findings) >= MOST_FINDINGS:
                break
            teller.at(seed_arguments(order, seed))
            outcome, reason = await _tried(order, seed, menu, device)
            counts[outcome] += 1
            if reason:
                findings.append((f"seed {seed}: {reason}", seed_arguments(order, seed)))
    failures = tuple(text for text, _ in findings)
    return ChildReport(failures, counts=dict(counts), findings=tuple(findings), menu=_written(menu))


async def _tried(order: GraphOrder, seed: int, menu: Menu, device: Device) -> tuple[str, str]:
    """Returns how a graph ended, and why it failed; the reason is empty otherwise."""
    try:
        graph = generate(Size(order.size), seed, menu=menu)
    except NNError:
        return "not generated", ""
    if not order.executes:
        return await _loaded(graph, device)
    found = await examine(graph, device)
    if found.verdict is GraphVerdict.FAILED:
        return "failed", f"{found.check}: {found.reason}"
    return found.verdict.value, ""


async def _loaded(graph: RandomGraph, device: Device) -> tuple[str, str]:
    try:
        model = model_of(graph)
        if not all(await device.get_supported_operations(model)):
            return "unsupported", ""
        prepared = await device.prepare_model(model)
        with anyio.CancelScope(shield=True):
            await prepared.close()
    except (DeviceDied, DeviceUnavailable) as error:
        return "failed", error_text(error)
    except GeneralFailure:
        return "unsupported", ""
    except Exception as error:  # A device may raise anything, and that is the finding.
        return "failed", error_text(error)
    return "loaded", ""


def _menu_in(data: str) -> Menu:
    return msgspec.json.decode(data, type=Menu)


def _written(menu: Menu) -> str:
    """The menu as the coordinator passes it on, which has no need to know it."""
    return msgspec.json.encode(menu).decode()
