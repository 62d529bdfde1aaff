"""The first example of docs/asgi.md, as it stands there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import httpx
import pytest

import nnasync as nn

pytest.importorskip("fastapi", reason="the example is for FastAPI")
pytest.importorskip("starlette", reason="the extra asgi is not installed")

pytestmark = pytest.mark.anyio

PAGE = Path(__file__).resolve().parents[2] / "docs" / "asgi.md"


async def network(runtime: nn.Runtime) -> nn.Net:
    """In place of a file: ten sums of pictures."""
    builder = nn.ModelBuilder("digits")
    x = builder.input("x", (1, 28, 28, 1))
    builder.output("y", builder.add(x, x))
    return await runtime.compile(builder.build())


@pytest.mark.parametrize(
    ("image", "status"),
    [([[0.0] * 28] * 28, 200), ([[1.0], [1.0, 2.0]], 400), ([[1.0]], 400), ([], 400)],
)
async def test_an_image_that_is_none_is_the_fault_of_who_asks(image: Any, status: int) -> None:
    found = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    code = found[1].replace(
        '{"digits": "digits.tflite"}',
        '{"digits": network}, runtime=lambda: nn.open_runtime(devices=["nnasync-reference"])',
    )
    names: dict[str, Any] = {"network": network, "__name__": "example"}
    # Without the annotations of this file, which FastAPI could not look up.
    exec(compile(code, str(PAGE), "exec", dont_inherit=True), names)
    app = names["app"]
    transport = httpx.ASGITransport(app)
    async with (
        names["networks"].lifespan(app),
        httpx.AsyncClient(transport=transport, base_url="http://test") as client,
    ):
        answer = await client.post("/digits", json=image)
        assert answer.status_code == status, answer.text
