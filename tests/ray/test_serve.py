"""Replicas on two simulated nodes: answers, deadlines, hang-ups, and the death of a node."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from nnasync.ray import app
from tests.ray import applications

ray = pytest.importorskip("ray", reason="needs the extra ray")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # Ray's own, of which there are many.
]

PATIENCE_S = 60
MEMORY = 100 << 20


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes in this machine; replicas need the resource of one that has room."""
    from ray import serve
    from ray.cluster_utils import Cluster

    nodes = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 2, "object_store_memory": MEMORY}
    )
    nodes.add_node(num_cpus=1, object_store_memory=MEMORY, resources={"replica": 1})
    nodes.add_node(num_cpus=1, object_store_memory=MEMORY, resources={"replica": 1})
    ray.init(address=nodes.address, logging_level="ERROR", log_to_driver=False)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    nodes.url = f"http://127.0.0.1:{port}"
    yield nodes
    serve.shutdown()
    ray.shutdown()
    nodes.shutdown()


@pytest.fixture(scope="module")
def url(cluster: Any) -> str:
    """Where the application is, with a replica on each of two nodes."""
    from ray import serve

    serve.run(
        app(applications.build, cores=1, replicas=2, resources={"replica": 1}, name="test"),
        name="test",
    )
    refused: list[tuple[int, str]] = []

    def is_answered() -> bool:
        answer = post(cluster.url, "double")
        refused.append((answer.status_code, answer.text))
        return answer.status_code == 200

    # Proxies hear of the route a little after the application is said to be ready.
    until(is_answered)
    assert {status for status, _ in refused[:-1]} <= {404, 503}, refused
    return str(cluster.url)


def post(
    url: str, name: str, timeout_s: float = PATIENCE_S, headers: dict[str, str] | None = None
) -> httpx.Response:
    row = [1, 2, 3, 4]
    path = f"{url}/call/{name}"
    return httpx.post(path, json=row, headers=headers, timeout=timeout_s, trust_env=False)


def about(url: str) -> dict[int, Any]:
    """What the replicas tell of themselves, by their processes."""
    found = {}
    for _ in range(20):
        told = httpx.get(f"{url}/about", timeout=PATIENCE_S, trust_env=False).json()
        found[told["pid"]] = told
    return found


def until(condition: Callable[[], bool]) -> None:
    ends_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < ends_s
        time.sleep(0.05)


class Replica:
    """What the router reads of a replica."""

    def __init__(self, *backlog_s: float) -> None:
        self.routing_stats = {"backlog_s": list(backlog_s)} if backlog_s else {}


class Pending:
    """What the router reads of a request over HTTP."""

    def __init__(self, headers: dict[str, str]) -> None:
        self.created_at = time.time()
        given = [(name.encode(), text.encode()) for name, text in headers.items()]
        self.args = [type("Request", (), {"asgi_scope": {"headers": given}})()]


def test_the_router_offers_a_request_to_who_can_make_it() -> None:
    from nnasync.ray.router import DeadlineRouter

    router = object.__new__(DeadlineRouter)
    busy, idle, unknown = Replica(9.0, 9.0, 0.1), Replica(1.0, 0.0, 0.0), Replica()

    def chosen(headers: dict[str, str]) -> list[Any]:
        pending = Pending(headers)
        return asyncio.run(router.choose_replicas([busy, idle, unknown], pending))

    first, last = chosen({"X-Request-Timeout": "1s"})
    assert ({*first}, last) == ({idle, unknown}, [busy])
    urgent = chosen({"X-Request-Timeout": "1s", "X-Request-Priority": "high"})
    assert [busy] == urgent[-1]
    late = chosen({"X-Request-Timeout": "50ms", "X-Request-Priority": "low"})
    assert late[0] == [unknown]


def test_replicas_have_runtimes_beside_the_main_thread(url: str) -> None:
    answer = post(url, "double")
    assert answer.status_code == 200, answer.text
    assert answer.json()["y"] == [[2, 4, 6, 8]]
    told = about(url)
    assert len(told) == 2
    assert all(each["cores"] == 1 for each in told.values())
    assert not any(each["on_main_thread"] for each in told.values())


def test_a_deadline_holds_behind_the_proxy(url: str) -> None:
    began_s = time.monotonic()
    answer = post(url, "slow", headers={"x-request-timeout": "100ms"})
    assert answer.status_code == 504
    assert time.monotonic() - began_s < 5
    assert post(url, "slow").status_code == 200


def test_requests_use_both_nodes(url: str) -> None:
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: post(url, "slow"), range(8)))
    assert [answer.status_code for answer in answers] == [200] * 8
    assert len({answer.json()["pid"] for answer in answers}) == 2


def test_a_client_that_hangs_up_frees_the_device(url: str) -> None:
    before = sum(each["stopped"] for each in about(url).values())
    with pytest.raises(httpx.ReadTimeout):
        post(url, "slow", timeout_s=0.1)
    until(lambda: sum(each["stopped"] for each in about(url).values()) > before)


def test_the_death_of_a_node_leaves_the_other(cluster: Any, url: str) -> None:
    victim = next(node for node in cluster.list_all_nodes() if not node.head)
    cluster.remove_node(victim, allow_graceful=False)
    began_s = time.monotonic()
    until(lambda: post(url, "double").status_code == 200)
    assert time.monotonic() - began_s < PATIENCE_S
    answers = [post(url, "double") for _ in range(10)]
    assert all(answer.json()["y"] == [[2, 4, 6, 8]] for answer in answers)
