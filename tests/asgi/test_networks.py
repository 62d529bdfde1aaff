"""Networks in applications of FastAPI and Starlette: lifespan, dependencies, errors, paths."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from fastapi import Depends, FastAPI, HTTPException
from starlette.applications import Starlette
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse
from starlette.routing import Route

import nnasync as nn
from nnasync import asgi
from nnasync.asgi.limits import Wishes
from nnasync.errors import BadState, GeneralFailure, InvalidArgument, ModelError
from tests.asgi.rigs import Caller, Client
from tests.rigs import GUARD_S, HOUR, POOL, ROW, ManualWatchdog, doubler, floats, gated, set_free

pytestmark = pytest.mark.anyio

LIMITS = {"guest": asgi.Limits(max_priority=nn.Priority.LOW), "owner": asgi.Limits()}


def limits_of(connection: HTTPConnection) -> asgi.Limits:
    found = LIMITS.get(connection.headers.get("x-api-key", ""))
    if found is None:
        raise HTTPException(401, "unknown key")
    return found


def application(networks: asgi.Networks) -> FastAPI:
    app = FastAPI(lifespan=networks.lifespan)
    networks.install(app)
    call = Depends(networks.call("double"))
    limited_call = Depends(networks.call("double", limits=limits_of))

    @app.post("/double")
    async def double(row: list[float], net: asgi.Call = call) -> list[float]:
        return [float(each) for each in (await net([row]))[0]]

    @app.get("/priority")
    async def priority(net: asgi.Call = limited_call) -> str:
        return "" if net.priority is None else net.priority.name

    return app


def networks_on(engine: Any, options: nn.Options = POOL) -> asgi.Networks:
    return asgi.Networks(
        {"double": doubler()},
        runtime=lambda: nn.open_runtime(devices=[engine], options=options),
    )


@asynccontextmanager
async def client_of(app: Starlette) -> AsyncIterator[Caller]:
    with anyio.fail_after(GUARD_S):
        async with app.router.lifespan_context(app):
            yield Caller(app)


REFERENCE = "nnasync-reference"


async def test_a_request_calls_the_network() -> None:
    async with client_of(application(networks_on(REFERENCE))) as client:
        answer = await client.post("/double", json=[1, 2, 3, 4])
        assert (answer.status, answer.json()) == (200, [2, 4, 6, 8])


async def test_a_wrong_call_is_the_clients_fault() -> None:
    async with client_of(application(networks_on(REFERENCE))) as client:
        answer = await client.post("/double", json=[1, 2])
        assert answer.status == 400
        assert answer.json()["error"] == "InvalidArgument"
        headers = {"X-Request-Timeout": "soon"}
        answer = await client.post("/double", json=[1, 2, 3, 4], headers=headers)
        assert answer.status == 400
        assert "x-request-timeout" in answer.json()["detail"]


async def test_a_deadline_that_passes_is_a_504(monkeypatch: pytest.MonkeyPatch) -> None:
    watchdog = ManualWatchdog()
    monkeypatch.setattr("nnasync._core.runtime.runtime.Watchdog", lambda: watchdog)
    engine, answers = gated(), []
    async with client_of(application(networks_on(engine))) as client:

        async def ask() -> None:
            headers = {"X-Request-Timeout": "30"}
            answers.append(await client.post("/double", json=[1, 2, 3, 4], headers=headers))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            await engine.when(lambda counters: counters.waiting == 1)
            due = max(alarm.at_ns for alarm in watchdog.alarms)
            assert 0 < due - nn.now_ns() <= 30e9
            watchdog.ring(nn.Deadline(due))
            await anyio.wait_all_tasks_blocked()
            set_free(engine)
    assert [answer.status for answer in answers] == [504]
    assert answers[0].json()["reason"] == "running"


async def test_a_request_that_comes_too_late_is_not_executed() -> None:
    engine = gated()
    app = application(networks_on(engine))
    async with client_of(app):
        client = Client("/double", headers={"x-request-timeout": "1us"}, body=b"[1,2,3,4]")
        await client.ask(app)
        assert client.status == 504
        assert engine.counters.run == 0
        set_free(engine)


async def test_a_full_queue_is_a_503_that_says_when_to_come_again() -> None:
    options = nn.Options(cores=1, inline_budget_us=0, competition_budget_ms=0, queue_limit=1)
    engine, statuses = gated(), []
    networks = networks_on(engine, options)
    async with client_of(application(networks)) as client:

        async def ask() -> None:
            answer = await client.post("/double", json=[1, 2, 3, 4])
            statuses.append((answer.status, answer.headers.get("retry-after")))
            if answer.status == 503:
                set_free(engine)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            await engine.when(lambda counters: counters.waiting == 1)
            tasks.start_soon(ask)
            while not networks.runtime.statistics().workers.scheduler.waiting:
                await anyio.lowlevel.checkpoint()
            tasks.start_soon(ask)
    assert statuses == [(503, "1"), (200, None), (200, None)]


async def test_a_device_that_fails_is_a_500_without_its_inside() -> None:
    engine = gated()
    set_free(engine)
    async with client_of(application(networks_on(engine))) as client:
        engine.fail("run", GeneralFailure("what it is like inside"))
        answer = await client.post("/double", json=[1, 2, 3, 4])
        assert answer.status == 500
        assert "inside" not in answer.text


async def test_a_hang_up_frees_the_device_and_is_accounted_for() -> None:
    engine = gated(steps=2)
    networks = networks_on(engine)
    app = application(networks)
    async with client_of(app) as probe:
        client = Client("/double", body=b"[1, 2, 3, 4]")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.ask, app)
            await engine.when(lambda counters: counters.waiting == 1)
            client.hang_up()
        assert client.sent == []
        engine.gate.open()  # Through the first step, behind which it looks at its flag.
        await engine.when(lambda counters: counters.stopped == 1)
        assert engine.counters.step == 1
        text = (await probe.get("/metrics")).text
        assert 'outcome="cancelled",reason=""} 1' in text


async def test_priorities_are_what_a_client_may_have() -> None:
    async with client_of(application(networks_on(REFERENCE))) as client:
        wish = {"x-request-priority": "high"}
        assert (await client.get("/priority", headers=wish)).status == 401
        for key, expected in (("guest", "LOW"), ("owner", "HIGH")):
            answer = await client.get("/priority", headers={**wish, "x-api-key": key})
            assert answer.json() == expected


async def test_metrics_and_health_have_paths() -> None:
    async with client_of(application(networks_on(REFERENCE))) as client:
        await client.post("/double", json=[1, 2, 3, 4])
        metrics = await client.get("/metrics")
        assert metrics.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        assert 'nnasync_calls_total{network="double"' in metrics.text
        assert "nnasync_workers_scheduler_backlog_seconds" in metrics.text
        health = await client.get("/healthz")
        assert health.json() == {"ready": True, "networks": ["double"], "devices": {}}


async def test_before_and_after_nothing_is_open() -> None:
    networks = networks_on(REFERENCE)
    app = application(networks)
    closed = Caller(app)
    for _ in range(2):  # An application may be started again.
        assert (await closed.get("/healthz")).status == 503
        assert (await closed.get("/metrics")).status == 503
        assert (await closed.post("/double", json=[1, 2, 3, 4])).status == 503
        async with client_of(app) as client:
            assert (await client.get("/healthz")).status == 200
            with pytest.raises(BadState):
                async with networks.lifespan():
                    pass


async def test_starlette_without_dependencies() -> None:
    networks = networks_on(REFERENCE)
    call = networks.call("double")

    async def double(request: Request) -> JSONResponse:
        net = await call(request)
        return JSONResponse((await net([await request.json()])).tolist())

    app = Starlette(routes=[Route("/double", double, methods=["POST"])], lifespan=networks.lifespan)
    networks.install(app, metrics="", health="/alive")
    async with client_of(app) as client:
        answer = await client.post("/double", json=[1, 2, 3, 4])
        assert answer.json() == [[2, 4, 6, 8]]
        assert (await client.get("/metrics")).status == 404
        assert (await client.get("/alive")).status == 200


async def test_sources_may_compile_as_they_like() -> None:
    async def compile(runtime: nn.Runtime) -> nn.Net:
        return await runtime.compile(doubler(), priority=nn.Priority.LOW, name="own")

    networks = asgi.Networks({"own": compile})
    with anyio.fail_after(GUARD_S):
        async with networks.lifespan():
            assert networks["own"].priority is nn.Priority.LOW
            assert [*(await networks["own"](ROW))[0]] == [2, 4, 6, 8]


async def test_an_application_without_its_networks_does_not_start() -> None:
    networks = asgi.Networks({"absent": "no such file.nnm"})
    with pytest.raises((ModelError, OSError)):
        async with networks.lifespan():
            pass
    with pytest.raises(BadState, match="lifespan"):
        networks["absent"]


def test_names_that_are_not_there_are_refused_at_once() -> None:
    networks = networks_on(REFERENCE)
    with pytest.raises(InvalidArgument, match="there are: double"):
        networks.call("triple")
    with pytest.raises(InvalidArgument, match="there are: double"):
        networks["triple"]


async def test_calls_on_websockets_have_a_time_each() -> None:
    async def net(*arrays: Any, **options: Any) -> Any:
        return options["deadline"]

    call = asgi.Call(net, Wishes(10**9, nn.Priority.HIGH), None)
    first = await call(floats(1))
    second = await call(floats(1))
    assert first < second
    arrived = asgi.Call(net, Wishes(10**9, None), 5)
    assert await arrived(floats(1)) == nn.Deadline(10**9 + 5)
    assert asgi.Call(net, Wishes(None, None), 5).deadline is None
    assert nn.within(**HOUR) > first
