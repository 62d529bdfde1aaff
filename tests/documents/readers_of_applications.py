"""The readers of pages about servers: they have clients, and Ray where there is none."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

import httpx
import numpy as np
import pytest

from tests.documents.pages import Page
from tests.importers.tflite_files import floats
from tests.serving.test_real_clients import LIMIT_S, Ports

triton: Any = pytest.importorskip("tritonclient.http", reason="a client of the page is of Triton")
fastapi = pytest.importorskip("fastapi", reason="an application of the page is for FastAPI")

IMAGE = [[0.0] * 28] * 28


def of_ray_and_others(page: Page) -> Iterator[None]:
    """Who asks the applications of the page over HTTP, and calls what they give to Ray Serve."""
    page.write_tflite("digits.tflite", floats(1, 28, 28, 1))
    page.write_onnx("embedding.onnx", rows="n")
    page.write_onnx("model.onnx")
    yield
    assert asked(page, "POST", "/digits", IMAGE).json() == 0
    yield
    entered(page)
    page.space["app"] = fastapi.FastAPI()
    yield
    assert asked(page, "GET", "/healthz").status_code == 200
    serve = put_ray_aside(page)
    yield
    (build,) = serve.ingress.call_args.args
    assert build() is page.space["app"]
    assert serve.deployment.call_args.kwargs["ray_actor_options"]["num_cpus"] == 2
    page.space["app"] = fastapi.FastAPI()
    page.run("import asyncio\nimport onnxruntime")
    with ThreadPoolExecutor(1) as pool:
        page.space.update(Body=list[float], pool=pool, prepared=prepared)
        yield
        answer = asked(page, "POST", "/predict", [1.0] * 4)
        assert answer.json() == [pytest.approx(np.tanh(1))] * 4


def prepared(numbers: list[float]) -> Any:
    return np.array([numbers], np.float32)


def asked(page: Page, method: str, path: str, body: object = None) -> Any:
    """What the page's application answers while its networks are there."""
    app = page.space["app"]

    async def ask() -> Any:
        async with (
            page.space["networks"].lifespan(app),
            httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client,
        ):
            return await client.request(method, path, json=body)

    return page.wait(ask())


def entered(page: Page) -> None:
    """The networks of the page compile, and the batcher answers."""
    networks = page.space["networks"]

    async def enter() -> None:
        async with networks.lifespan(fastapi.FastAPI()):
            pass

    page.wait(enter())


def put_ray_aside(page: Page) -> Any:
    """Ray itself takes a cluster: here it only notes what it is given."""
    ray, config = ModuleType("ray"), ModuleType("ray.serve.config")
    serve: Any = ModuleType("ray.serve")
    serve.deployment, serve.ingress, serve.config = MagicMock(), MagicMock(), config
    config.RequestRouterConfig = MagicMock()  # type: ignore[attr-defined]  # It is no real module.
    ray.serve = serve  # type: ignore[attr-defined]  # Nor is this.
    for module in (ray, serve, config):
        page.patch.setitem(sys.modules, module.__name__, module)
    return serve


def with_models_to_serve(page: Page) -> Iterator[None]:
    page.write_onnx("words.onnx")
    places = Ports()
    thread = threading.Thread(target=lambda: asyncio.run(places.serve()))
    thread.start()
    assert places.ready.wait(LIMIT_S)

    class Client(triton.InferenceServerClient):  # type: ignore[misc]  # It has no types.
        """One that knows where the server of this test is, and what its network is called."""

        def __init__(self, url: str) -> None:
            assert url == "localhost:8000"
            super().__init__(f"127.0.0.1:{places.http}")

        def infer(self, name: str, *arguments: Any, **named: Any) -> Any:
            assert name == "mobilenet"
            return super().infer("ident", *arguments, **named)

    x = triton.InferInput("x", [1, 3], "FP32")
    x.set_data_from_numpy(np.ones((1, 3), np.float32))
    page.space["inputs"] = [x]
    page.patch.setattr(triton, "InferenceServerClient", Client)
    try:
        yield
        page.space["client"].close()
    finally:
        places.stop()
        thread.join(LIMIT_S)
    yield
