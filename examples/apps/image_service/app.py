"""An image service: pictures in, digits with their boxes out; keys say who may ask how urgently.

IMAGE_SERVICE_KEYS=keys.json uvicorn --factory app:from_environment
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import anyio.to_thread
import av
import msgspec
from fastapi import Depends, FastAPI, HTTPException
from starlette.requests import HTTPConnection, Request

import nnasync as nn
from nnasync import asgi
from nnasync.cli import demo_data
from nnasync.hal import Array

MAX_BODY_BYTES = 4 << 20
MAX_PIXELS = 4096 * 4096
CODECS = {b"\x89PNG": "png", b"\xff\xd8\xff": "mjpeg"}
"""Decoders by the first bytes; the content type of a request is not trusted."""

Priorities = {"high": nn.Priority.HIGH, "medium": nn.Priority.MEDIUM, "low": nn.Priority.LOW}


class Client(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who has a key, and what that allows."""

    name: str
    max_priority: str = "low"
    timeout_s: float = 2.0
    max_concurrent: int = 4

    @property
    def limits(self) -> asgi.Limits:
        """Its limits of deadlines and priorities; without a header it has what it may have."""
        most = Priorities[self.max_priority]
        return asgi.Limits(
            timeout_s=self.timeout_s,
            max_timeout_s=self.timeout_s,
            priority=most,
            max_priority=most,
        )


Clients = Mapping[str, Client]
"""Clients by the SHA-256 of their keys, in hexadecimal: who reads the file learns no key."""


def from_environment() -> FastAPI:
    """The application, with the clients of the file that IMAGE_SERVICE_KEYS names."""
    file = Path(os.environ["IMAGE_SERVICE_KEYS"])
    return make_app(msgspec.json.decode(file.read_bytes(), type=dict[str, Client]))


def make_app(clients: Clients, runtime: Any = nn.open_runtime) -> FastAPI:
    """The application for these clients; raises KeyError for a priority that there is not."""
    allowed = {digest: client.limits for digest, client in clients.items()}
    busy: Counter[str] = Counter()
    networks = asgi.Networks({"digits": detector}, runtime=runtime)
    app = FastAPI(title="Digits in pictures", lifespan=networks.lifespan)
    networks.install(app)

    def limits_of(connection: HTTPConnection) -> asgi.Limits:
        return allowed[digest_of(connection, clients)]

    async def place(request: Request) -> AsyncIterator[None]:
        """One of the places that a client has for requests at the same time."""
        client = clients[digest_of(request, clients)]
        if busy[client.name] >= client.max_concurrent:
            raise HTTPException(429, "too many requests at once", {"retry-after": "1"})
        busy[client.name] += 1
        try:
            yield
        finally:
            busy[client.name] -= 1

    call = Depends(networks.call("digits", limits=limits_of))

    @app.post("/digits", dependencies=[Depends(place)])
    async def digits(request: Request, detect: asgi.Call = call) -> list[dict[str, Any]]:
        picture = await anyio.to_thread.run_sync(decoded, await body_of(request))
        return [msgspec.to_builtins(box) for box in await detect(picture)]

    return app


async def detector(runtime: nn.Runtime) -> Any:
    """What is called with a picture: it prepares it, runs the network and reads its boxes."""
    net = await runtime.compile(demo_data.path("detector.nnm"), name="digits")
    return demo_data.digit_detector(net)


def digest_of(connection: HTTPConnection, clients: Clients) -> str:
    """Whose key it is; raises HTTPException for nobody's."""
    key = connection.headers.get("x-api-key", "")
    digest = hashlib.sha256(key.encode()).hexdigest()
    if digest not in clients:
        raise HTTPException(401, "the header X-API-Key has no key that is known here")
    return digest


async def body_of(request: Request) -> bytes:
    """The body, as far as it is not too long."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MAX_BODY_BYTES:
            raise HTTPException(413, f"a picture may have {MAX_BODY_BYTES} bytes")
    return bytes(body)


def decoded(body: bytes) -> Array:
    """The pixels [height, width, 3] of a PNG or JPEG file."""
    name = next((name for start, name in CODECS.items() if body.startswith(start)), "")
    if not name:
        raise HTTPException(415, "a picture has to be a PNG or a JPEG file")
    codec: Any = av.CodecContext.create(name, "r")
    codec.options = {"max_pixels": str(MAX_PIXELS)}
    try:
        frames = [*codec.decode(av.Packet(body)), *codec.decode(None)]
    except (av.FFmpegError, ValueError) as error:
        raise HTTPException(400, f"the picture cannot be decoded: {error}") from error
    if not frames:
        raise HTTPException(400, "the file holds no picture")
    pixels: Array = frames[0].to_ndarray(format="rgb24")
    return pixels
