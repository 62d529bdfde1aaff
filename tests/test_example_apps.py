"""The example applications do what their pages say."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest

import nnasync as nn
from nnasync.cli import demo_data
from nnasync.hal import Array
from tests.asgi.rigs import Client

av = pytest.importorskip("av", reason="needs the extra media")

from apps.image_service import app as image_service  # noqa: E402  # It needs PyAV.
from apps.spoken_words import app as spoken_words  # noqa: E402

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.one_loop("what they add to nnasync.asgi does not depend on the loop"),
]

GUARD_S = 60


def on_reference() -> nn.Runtime:
    """A runtime that compiles in no time."""
    return nn.open_runtime(devices=["nnasync-reference"])


def image_app() -> Any:
    return image_service.make_app(CLIENTS, on_reference)


def digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


CLIENTS = {
    digest("gold"): image_service.Client("gold", "high"),
    digest("free"): image_service.Client("free", max_concurrent=1),
}


def picture() -> Array:
    """A frame of the scene with several digits."""
    with av.open(str(demo_data.path("scene.mp4"))) as container:
        frame = next(container.decode(video=0))
        pixels: Array = frame.to_ndarray(format="rgb24")
        return pixels


def encoded(pixels: Array, codec: str = "png", format: str = "rgb24") -> bytes:
    file = io.BytesIO()
    context = av.CodecContext.create(codec, "w")
    context.height, context.width = pixels.shape[:2]
    context.pix_fmt, context.time_base = format, Fraction(1)
    frame = av.VideoFrame.from_ndarray(pixels, format="rgb24").reformat(format=format)
    for packet in [*context.encode(frame), *context.encode(None)]:
        file.write(bytes(packet))
    return file.getvalue()


@asynccontextmanager
async def running(app: Any) -> AsyncIterator[Any]:
    with anyio.fail_after(GUARD_S):
        async with app.router.lifespan_context(app):
            yield app


async def posted(app: Any, body: bytes, key: str = "gold", **headers: str) -> Client:
    client = Client("/digits", headers={"x-api-key": key, **headers}, body=body)
    await client.ask(app)
    return client


async def test_digits_of_a_picture() -> None:
    pixels = picture()
    async with running(image_app()) as app:
        for body in (encoded(pixels), encoded(pixels, "mjpeg", "yuvj420p")):
            answer = await posted(app, body)
            assert answer.status == 200, answer.text
            found = {box["name"] for box in answer.json() if box["score"] > 0.5}
            shown = {str(label) for label in demo_data.scene_truth().labels}
            assert found
            assert found <= shown
        assert 'network="digits"' in (await asked(app, "/metrics")).text


async def asked(app: Any, path: str) -> Client:
    client = Client(path)
    await client.ask(app)
    return client


async def test_pictures_that_are_none() -> None:
    async with running(image_app()) as app:
        good = encoded(picture())
        for body, status in (
            (b"GIF89a", 415),
            (b"#EXTM3U\nfile:///etc/passwd", 415),
            (good[:100], 400),
            (b"\x89PNG" + bytes(50), 400),
            (b"\xff\xd8\xff", 400),
            (good + bytes(image_service.MAX_BODY_BYTES), 413),
        ):
            assert (await posted(app, body)).status == status, body[:20]


async def test_a_picture_of_too_many_pixels_is_not_decoded() -> None:
    header = bytearray(encoded(picture()))
    header[16:24] = (50_000).to_bytes(4, "big") * 2
    async with running(image_app()) as app:
        assert (await posted(app, bytes(header))).status == 400


async def test_keys_say_who_may_ask_and_how() -> None:
    body = encoded(picture())
    async with running(image_app()) as app:
        assert (await posted(app, body, key="guess")).status == 401
        urgent = {"x-request-priority": "high"}
        assert (await posted(app, body, key="free", **urgent)).status == 200
        text = (await asked(app, "/metrics")).text
        assert 'nnasync_calls_total{network="digits"' in text
        assert 'priority="low"} 1' in text
        late = {"x-request-timeout": "1us"}
        assert (await posted(app, body, **late)).status == 504


async def test_a_client_has_so_many_places() -> None:
    body = encoded(picture())
    async with running(image_app()) as app:
        statuses = []

        async def ask() -> None:
            statuses.append((await posted(app, body, key="free")).status)

        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(ask)
        assert sorted(statuses) == [200, 429, 429]
        assert (await posted(app, body, key="free")).status == 200


def test_keys_are_read_from_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    file.write_text(json.dumps({digest("k"): {"name": "me", "max_priority": "high"}}))
    monkeypatch.setenv("IMAGE_SERVICE_KEYS", str(file))
    assert image_service.from_environment().title == "Digits in pictures"
    file.write_text(json.dumps({digest("k"): {"name": "me", "max_priority": "urgent"}}))
    with pytest.raises(KeyError):
        image_service.from_environment()


class Socket:
    """A websocket's client that speaks ASGI."""

    def __init__(self, app: Any, headers: dict[str, str] | None = None) -> None:
        self._app = app
        given = [(name.encode(), text.encode()) for name, text in (headers or {}).items()]
        self._scope = {
            "type": "websocket",
            "path": "/listen",
            "headers": given,
            "query_string": b"",
            "server": ("here", 80),
            "subprotocols": [],
        }
        self._send, self._receive = anyio.create_memory_object_stream[Any](100)
        self.told: list[Any] = []
        self.code = 0

    async def run(self, messages: list[bytes | str]) -> None:
        """Connect, say something, and hang up."""
        async with self._send, self._receive:
            await self._send.send({"type": "websocket.connect"})
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._say, messages)
                await self._app(self._scope, self._receive.receive, self._hear)
                tasks.cancel_scope.cancel()

    async def _say(self, messages: list[bytes | str]) -> None:
        for data in messages:
            kind = "bytes" if isinstance(data, bytes) else "text"
            await self._send.send({"type": "websocket.receive", kind: data})
        await self._send.send({"type": "websocket.disconnect", "code": 1000})

    async def _hear(self, message: Any) -> None:
        if message["type"] == "websocket.send":
            self.told.append(json.loads(message["text"]))
        if message["type"] == "websocket.close":
            self.code = message["code"]


def sound(seconds: float) -> bytes:
    """The beginning of the spoken words."""
    with av.open(str(demo_data.path("words.flac"))) as container:
        resampler = av.AudioResampler("s16", "mono", 16_000)
        parts: list[Array] = []
        for frame in container.decode(audio=0):
            parts += [each.to_ndarray().reshape(-1) for each in resampler.resample(frame)]
            if sum(map(len, parts)) > seconds * 16_000:
                break
    return np.concatenate(parts).astype("<i2").tobytes()


def words_app() -> Any:
    return spoken_words.make_app(on_reference)


async def test_words_come_out_as_they_were_said() -> None:
    seconds = 8
    data = sound(seconds)
    async with running(words_app()) as app:
        socket = Socket(app, {"x-request-timeout": "1s"})
        # Odd numbers of samples: messages and hops are cut differently. Silence says it was all.
        await socket.run([data[at : at + 3002] for at in range(0, len(data), 3002)])
    truth = demo_data.words_truth()
    said = [truth.names[word.label] for word in truth.words if word.end < (seconds - 1) * 16_000]
    told = [each["word"] for each in socket.told]
    # The client hangs up behind its last message: what was being heard then is given up.
    right = sum(a == b for a, b in zip(said, told, strict=False))
    assert right >= 3, (said, told)
    times = [each["at_s"] for each in socket.told]
    assert times == sorted(times)


@pytest.mark.parametrize(
    ("message", "code"),
    [(b"odd", 1003), ("text", 1003), (bytes(spoken_words.MAX_MESSAGE_BYTES + 2), 1009)],
)
async def test_what_is_no_sound_ends_the_stream(message: bytes | str, code: int) -> None:
    async with running(words_app()) as app:
        socket = Socket(app)
        await socket.run([message])
        assert socket.code == code


async def test_a_handshake_without_sense_is_refused() -> None:
    async with running(words_app()) as app:
        socket = Socket(app, {"x-request-timeout": "soon"})
        await socket.run([])
        assert (socket.code, socket.told) == (1007, [])


class Deaf(Socket):
    """A client that is gone when it is to be told something."""

    async def _say(self, messages: list[bytes | str]) -> None:
        for data in messages:
            await self._send.send({"type": "websocket.receive", "bytes": data})

    async def _hear(self, message: Any) -> None:
        if message["type"] == "websocket.send":
            self.told.append(message)
            raise OSError("the connection is closed")


async def test_a_client_that_is_gone_while_it_is_told_a_word_is_no_error() -> None:
    async with running(words_app()) as app:
        socket = Deaf(app, {"x-request-timeout": "1s"})
        data = sound(4)
        messages: list[bytes | str] = [data[at : at + 3000] for at in range(0, len(data), 3000)]
        await socket.run(messages[:90])
        assert len(socket.told) == 1
