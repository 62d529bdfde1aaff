"""Deadlines, priorities, hang-ups and full queues of requests, on a device that a test steers."""

from __future__ import annotations

import json
from typing import Any

import anyio
import pytest

import nnasync as nn
from nnasync.serving import Limits, ServeOptions
from nnasync.serving.metrics import metrics_text
from tests.rigs import free, gated, until
from tests.serving.rig import INFER, RawClient, body, browsing, outcomes, serving

pytest.importorskip("starlette", reason="the extra serve is not installed")

pytestmark = pytest.mark.anyio

ONE_CORE = nn.Options(cores=1, inline_budget_us=0, competition_budget_ms=0, aging_ms=3_600_000)
"""What waits at a gate does not grow old there, however busy this machine is."""
BODY = json.dumps(body()).encode()


async def test_a_timeout_is_answered_while_the_request_runs() -> None:
    engine = gated()
    async with serving(engine) as server, browsing(server) as client:
        answer = await client.post(INFER, json=body(parameters={"timeout": 20_000}))
        assert answer.status_code == 503
        assert answer.json() == {"error": "Request timeout expired"}
        assert outcomes(server) == {"missed": 1}
        late = 'nnasync_serving_late_seconds_count{model="doubler",version="1"} 1'
        assert late in (await client.get("/metrics")).text
        engine.gate.open_wide()
        assert (await client.post(INFER, json=body())).status_code == 200


async def test_a_timeout_is_answered_while_the_request_waits() -> None:
    engine = gated()
    async with (
        serving(engine, runtime_options=ONE_CORE) as server,
        browsing(server) as client,
        anyio.create_task_group() as tasks,
    ):
        first = RawClient(BODY)
        tasks.start_soon(first.run, server)
        await until(lambda: engine.counters.waiting == 1)
        answer = await client.post(INFER, json=body(), headers={"X-Request-Timeout": "0.02"})
        assert answer.json() == {"error": "Request timeout expired"}
        assert not first.done.is_set()
        engine.gate.open_wide()
        await first.done.wait()
        assert first.status == 200
        assert outcomes(server) == {"completed": 1, "missed": 1}


async def test_the_time_of_a_model_holds_for_requests_that_state_none() -> None:
    for setting in ("timeout_ms", "longest_timeout_ms"):
        engine = gated()
        settings: dict[str, Any] = {setting: 20}
        async with serving(engine, **settings) as server, browsing(server) as client:
            assert (await client.post(INFER, json=body())).status_code == 503


async def test_who_hangs_up_has_the_device_freed() -> None:
    engine = gated(steps=2)
    async with serving(engine) as server, anyio.create_task_group() as tasks:
        client = RawClient(BODY)
        tasks.start_soon(client.run, server)
        await until(lambda: engine.counters.waiting == 1)
        client.hang_up()
        await client.done.wait()
        assert client.status == 0
        assert outcomes(server) == {"cancelled": 1}
        engine.gate.open()
        await free(server.runtime)
        assert engine.counters.finished == 0


async def test_who_hangs_up_while_waiting_is_never_run() -> None:
    engine = gated()
    async with (
        serving(engine, runtime_options=ONE_CORE) as server,
        anyio.create_task_group() as tasks,
    ):
        first, second = RawClient(BODY), RawClient(BODY)
        tasks.start_soon(first.run, server)
        await until(lambda: engine.counters.waiting == 1)
        tasks.start_soon(second.run, server)
        await until(lambda: outcomes(server).get("pending") == 2)
        second.hang_up()
        await second.done.wait()
        engine.gate.open_wide()
        await first.done.wait()
        assert outcomes(server) == {"completed": 1, "cancelled": 1}
        assert engine.counters.run == 1


async def test_a_full_queue_answers_at_once_and_says_when_to_come_again() -> None:
    engine = gated()
    async with (
        serving(engine, max_queue_size=2) as server,
        browsing(server) as client,
        anyio.create_task_group() as tasks,
    ):
        waiting = [RawClient(BODY) for _ in range(2)]
        for each in waiting:
            tasks.start_soon(each.run, server)
        await until(lambda: outcomes(server).get("pending") == 2)
        answer = await client.post(INFER, json=body())
        assert answer.status_code == 503
        assert answer.json() == {"error": "Exceeds maximum queue size"}
        assert int(answer.headers["retry-after"]) >= 1
        engine.gate.open_wide()
        for each in waiting:
            await each.done.wait()
        assert outcomes(server) == {"completed": 2, "refused": 1}


async def test_a_queue_full_of_low_priority_takes_requests_of_higher_priority() -> None:
    engine = gated()
    async with (
        serving(engine, max_queue_size=2) as server,
        browsing(server) as client,
        anyio.create_task_group() as tasks,
    ):
        admitted: list[RawClient] = []
        for level, has_place in (
            (3, True), (3, True), (3, False),
            (2, True), (1, True), (2, False), (1, True), (1, False), (3, False),
        ):  # fmt: skip
            asked = body(parameters={"priority": level})
            if not has_place:
                assert (await client.post(INFER, json=asked)).status_code == 503
                continue
            admitted.append(RawClient(json.dumps(asked).encode()))
            tasks.start_soon(admitted[-1].run, server)
            await until(lambda: outcomes(server).get("pending") == len(admitted))
        engine.gate.open_wide()
        for each in admitted:
            await each.done.wait()
        assert outcomes(server) == {"completed": 5, "refused": 4}
        assert server.models.find("doubler").pending == 0


async def test_a_request_of_high_priority_goes_first() -> None:
    engine = gated()
    async with (
        serving(engine, runtime_options=ONE_CORE) as server,
        anyio.create_task_group() as tasks,
    ):
        running = RawClient(BODY)
        tasks.start_soon(running.run, server)
        await until(lambda: engine.counters.waiting == 1)
        low, high = (
            RawClient(json.dumps(body(parameters={"priority": level})).encode()) for level in (3, 1)
        )
        tasks.start_soon(low.run, server)
        await until(lambda: outcomes(server).get("pending") == 2)
        tasks.start_soon(high.run, server)
        await until(lambda: outcomes(server).get("pending") == 3)
        engine.gate.open(2)
        await high.done.wait()
        assert not low.done.is_set()
        engine.gate.open_wide()


async def test_draining_waits_for_what_is_in_flight_and_readiness_goes_first() -> None:
    engine = gated()
    options = ServeOptions(poll_s=0, drain_s=10)
    async with serving(engine, options=options) as server, anyio.create_task_group() as tasks:
        client = RawClient(BODY)
        tasks.start_soon(client.run, server)
        await until(lambda: engine.counters.waiting == 1)
        drained = anyio.Event()

        async def drain() -> None:
            assert await server.drain()
            drained.set()

        tasks.start_soon(drain)
        await until(lambda: not server.is_ready)
        assert not drained.is_set()
        late = RawClient(BODY)
        with anyio.fail_after(5):
            await late.run(server)
        assert late.status == 503
        assert late.headers["connection"] == "close"
        assert late.headers["retry-after"] == "1"
        engine.gate.open_wide()
        await drained.wait()
        await client.done.wait()
        assert client.status == 200


async def test_draining_ends_in_time_where_a_device_does_not() -> None:
    engine = gated()
    options = ServeOptions(poll_s=0, drain_s=0.02)
    async with serving(engine, options=options) as server, anyio.create_task_group() as tasks:
        client = RawClient(BODY)
        tasks.start_soon(client.run, server)
        await until(lambda: engine.counters.waiting == 1)
        assert not await server.drain()
        client.hang_up()


async def test_a_client_has_so_many_requests_in_flight_at_most() -> None:
    engine = gated()
    options = ServeOptions(poll_s=0, limits=Limits(requests_per_client=1))
    async with (
        serving(engine, options=options) as server,
        browsing(server) as other,
        anyio.create_task_group() as tasks,
    ):
        first, second = RawClient(BODY), RawClient(BODY)
        tasks.start_soon(first.run, server)
        await until(lambda: outcomes(server).get("pending") == 1)
        await second.run(server)
        assert second.status == 503
        engine.gate.open_wide()
        assert (await other.post(INFER, json=body())).status_code == 200


async def test_what_cannot_be_met_is_refused_on_arrival() -> None:
    engine = gated()
    engine.gate.open_wide()
    engine.latency_ns = 50_000_000
    async with (
        serving(engine, runtime_options=ONE_CORE) as server,
        browsing(server) as client,
    ):
        for _ in range(3):
            assert (await client.post(INFER, json=body())).status_code == 200
        runs = engine.counters.run
        answer = await client.post(INFER, json=body(parameters={"timeout": 5_000}))
        assert (answer.status_code, engine.counters.run) == (503, runs)
        assert ("missed", "admission") in server.accounts.outcomes_of("doubler", "1")


async def test_instances_limit_how_many_run_at_once() -> None:
    engine = gated()
    async with serving(engine, instances=1) as server, anyio.create_task_group() as tasks:
        clients = [RawClient(BODY) for _ in range(3)]
        for each in clients:
            tasks.start_soon(each.run, server)
        await until(lambda: outcomes(server).get("pending") == 3)
        await until(lambda: engine.counters.waiting == 1)
        engine.gate.open()
        await until(lambda: outcomes(server).get("completed") == 1)
        await until(lambda: engine.counters.waiting == 1)
        assert engine.counters.run == 2
        engine.gate.open_wide()
        for each in clients:
            await each.done.wait()
        assert outcomes(server) == {"completed": 3}


def rows() -> nn.Model:
    """Output y = 2 x, for any number of rows."""
    builder = nn.ModelBuilder("doubler")
    x = builder.input("x", (0, 4))
    builder.output("y", builder.add(x, x))
    return builder.build()


async def test_requests_that_wait_are_joined_and_keep_their_own_answers() -> None:
    batching = {"window_us": 60_000_000, "max_size": 4, "when": "always"}
    async with (
        serving(models=(rows(),), batching=batching, max_batch_size=8) as server,
        anyio.create_task_group() as tasks,
    ):
        clients = []
        for number in range(4):  # The last one ends the wait of all.
            row = {"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [number] * 4}
            clients.append(RawClient(json.dumps({"inputs": [row]}).encode()))
            tasks.start_soon(clients[-1].run, server)
        for number, each in enumerate(clients):
            await each.done.wait()
            assert json.loads(each.body)["outputs"][0]["data"] == [2 * number] * 4
        (told,) = server.model_statistics()["model_stats"]
        assert (told["inference_count"], told["execution_count"]) == (4, 1)
        assert 'nnasync_batched_rows_total{network="doubler"} 4' in metrics_text(server)


async def test_a_model_that_cannot_be_joined_is_not_served() -> None:
    with pytest.raises(nn.InvalidArgument, match="first dimension"):
        async with serving(batching={"max_size": 4}):
            pass
