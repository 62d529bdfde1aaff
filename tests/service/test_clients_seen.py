"""What a service tells of its clients, to its own program and to `nnasync top`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

import nnasync as nn
from nnasync._core.drivers.service import connect
from nnasync._core.service import Limits
from nnasync._core.service.client_account import ClientAccount
from nnasync._core.service.rate_limit import ClientBuckets
from nnasync.cli.top import watch
from nnasync.scheduler import ClientStatistics
from nnasync.tracing.metrics import Clients, render
from tests import rigs
from tests.service.rig import Slot
from tests.service.test_serve import CLIENT, running

pytestmark = [pytest.mark.anyio, pytest.mark.one_loop("What is tested does not know the loop.")]

POOL = nn.Options(inline_budget_us=0)


def clients(runtime: nn.Runtime) -> tuple[ClientStatistics, ...]:
    return runtime.statistics().workers.scheduler.clients


@pytest.mark.parametrize("options", [POOL, nn.Options()], ids=["workers", "either"])
async def test_executions_of_a_client_are_counted_to_its_process(
    tmp_path: Path, options: nn.Options
) -> None:
    path = tmp_path / "s" / "it"
    async with rigs.runtime(options=options) as rt, anyio.create_task_group() as tasks:
        await tasks.start(nn.serve, rt.devices[0], path)
        busy, idle = await connect(path), await connect(path)
        prepared, slot = await busy.prepare_model(rigs.doubler()), Slot()
        for _ in range(7):
            await prepared.execute(slot.request)
        await rigs.free(rt)
        first, second = clients(rt)
        assert first.name == second.name == f"process {os.getpid()}"
        assert first.client != second.client
        assert (first.runs, second.runs) == (7, 0)
        assert first.used_ns > 0
        await busy.close()
        await rigs.until(lambda: len(clients(rt)) == 1)
        await idle.close()
        await rigs.until(lambda: not clients(rt))
        assert render(None, Clients(rt)) == ""
        tasks.cancel_scope.cancel()


async def test_clients_over_tcp_are_told_by_their_address() -> None:
    async with rigs.runtime() as rt, anyio.create_task_group() as tasks:
        address = await tasks.start(nn.serve, rt.devices[0], "tcp://127.0.0.1:0")
        device = await nn.connect(address)
        assert [each.name for each in clients(rt)] == ["127.0.0.1"]
        await device.close()
        await rigs.until(lambda: not clients(rt))
        tasks.cancel_scope.cancel()


async def test_a_thousand_clients_that_went_leave_no_rows() -> None:
    async with rigs.runtime(options=POOL) as rt:
        device, buckets = rt.devices[0], ClientBuckets()
        for _ in range(1000):
            account = ClientAccount(device, Limits(), buckets, "process 5")
            account.paid(1e6)
            account.close()
        assert clients(rt) == ()
        assert render(None, Clients(rt)) == ""


async def test_top_shows_a_service_that_lets_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    path = tmp_path / "s" / "it"
    command = ["-m", "nnasync", "device-service", "--device", rigs.REFERENCE, "--monitor"]
    with (
        running(*command, "--socket", str(path)) as (service, _),
        running("-c", CLIENT, str(path)) as (client, line),
    ):
        assert line == "ready\n"
        seen = watch([], lambda: None)

        async def until_runs_are_of(expected: list[str]) -> None:
            rows: list[str] | None = None
            while rows != expected:
                for title, shown in (await anyio.to_thread.run_sync(next, seen)).items():
                    assert title.startswith(f"process {service.pid}: {sys.executable}")
                    rows = [row.client for row in shown.clients if row.runs or not expected]

        with anyio.fail_after(rigs.GUARD_S):
            await until_runs_are_of([f"process {client.pid}"])
            client.kill()
            await until_runs_are_of([])
