"""A device behind a socket, in a process whose death is the driver's and nobody else's."""

from __future__ import annotations

import functools

import anyio
import anyio.to_thread

from nnasync._core.runtime import Options, open_runtime
from nnasync._core.service import serve_at as serve
from nnasync.suites.crash.orders import ChildReport, ServiceOrder
from nnasync.suites.crash.telling import Teller


async def serve_device(order: ServiceOrder, teller: Teller) -> ChildReport:
    """Serve the device of an order until the coordinator asks to end."""
    options = Options(cores=order.cores, competition_budget_ms=0)
    async with (
        open_runtime(devices=[order.device], options=options) as runtime,
        anyio.create_task_group() as tasks,
    ):
        await tasks.start(functools.partial(serve, runtime.devices[0], order.address))
        teller.begun()
        await anyio.to_thread.run_sync(teller.wait)
        tasks.cancel_scope.cancel()
    return ChildReport()
