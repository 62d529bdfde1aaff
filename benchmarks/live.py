"""The live page: how long it takes from a browser's camera to the result in the browser.

A peer in this process stands for the browser: it sends pictures by WebRTC, 30 a second, to
`nnasync live` in another process, and reads results from the page's socket. A digit is shown and
taken away twice a second; measured is the time from the first picture without it, as it leaves the
camera, until the first result without it. So encoding, the network of the machine, jitter buffer,
decoding, the detector and the way back are all in it. Contestants: no load, and clients of the
LOW load beside it.

A microphone sends noise beside the camera, in hops of 10 ms that the page's network for words has
at HIGH. A hop may take 10 ms beside the 20 ms that its packet is long: a hop at the beginning of a
packet has waited for so long before it could be sent. A contestant of its own has the sound alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import re
import sys
import time
from collections.abc import AsyncIterator
from fractions import Fraction
from typing import Any

import aiortc
import av
import msgspec
import numpy as np
import websockets
from aiortc.mediastreams import MediaStreamError

from benchmarks._report import arguments, percentile, publish, table
from nnasync.cli import demo_data
from nnasync.cli.live.sources import on_a_wall

RATE_HZ = 30
SHOWN = 8
"""Pictures with the digit, and then without it."""
DEADLINE_MS = 500
LOST = ("missed", "dropped", "failed")
"""What a stream's account calls the items that came to nothing."""
SOUND_RATE_HZ = 48_000
PACKET = 960
"""Samples of a packet of sound: 20 ms."""
SOUND_DEADLINE_MS = 30
"""From capture: the packet itself, and 10 ms for everything else."""
SHOWS_A_DIGIT = 40
"""The number of a frame of the clip."""


class Camera(aiortc.MediaStreamTrack):
    """A video track of a digit that comes and goes; `gone` has the times of its disappearances."""

    kind = "video"

    def __init__(self) -> None:
        super().__init__()
        self.gone: list[float] = []
        self._digit, self._wall = _pictures()
        self._count = 0
        self._begun = time.perf_counter()

    async def recv(self) -> Any:
        """Returns the next picture, at its time."""
        if self.readyState != "live":
            raise MediaStreamError
        number, self._count = self._count, self._count + 1
        await asyncio.sleep(max(0.0, self._begun + number / RATE_HZ - time.perf_counter()))
        is_shown = number // SHOWN % 2 == 0
        frame = av.VideoFrame.from_ndarray(self._digit if is_shown else self._wall, format="gray")
        frame = frame.reformat(format="yuv420p")
        frame.pts, frame.time_base = number * 90_000 // RATE_HZ, Fraction(1, 90_000)
        if number % (2 * SHOWN) == SHOWN:
            self.gone.append(time.perf_counter())
        return frame


class Microphone(aiortc.MediaStreamTrack):
    """An audio track of faint noise, with a packet each 20 ms."""

    kind = "audio"

    def __init__(self) -> None:
        super().__init__()
        noise = np.random.default_rng(1).normal(0, 300, (50, PACKET))
        self._packets = noise.astype(np.int16)
        self._count = 0
        self._begun = time.perf_counter()

    async def recv(self) -> Any:
        """Returns the next packet, at its time."""
        if self.readyState != "live":
            raise MediaStreamError
        number, self._count = self._count, self._count + 1
        due = self._begun + number * PACKET / SOUND_RATE_HZ
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        packet = self._packets[number % len(self._packets)].reshape(1, -1)
        frame = av.AudioFrame.from_ndarray(packet, format="s16", layout="mono")
        frame.sample_rate, frame.time_base = SOUND_RATE_HZ, Fraction(1, SOUND_RATE_HZ)
        frame.pts = number * PACKET
        return frame


def _pictures() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Returns pictures of a digit on a wall, and of the wall alone: uint8 [240, 320]."""
    with av.open(str(demo_data.path("digits.mp4"))) as clip:
        frame = next(itertools.islice(clip.decode(video=0), SHOWS_A_DIGIT, None))
    wall = on_a_wall(frame.to_ndarray(format="gray"))
    large = wall.repeat(2, axis=0).repeat(2, axis=1)[8:-8]
    digit = np.pad(large, ((0, 0), (32, 32)), mode="edge")
    return digit, np.full_like(digit, digit[0, 0])


@contextlib.asynccontextmanager
async def server() -> AsyncIterator[str]:
    """Runs `nnasync live` in a process while the block runs; yields its address."""
    command = ("-m", "nnasync", "live", "--port", "0")
    process = await asyncio.create_subprocess_exec(
        sys.executable, *command, stdout=asyncio.subprocess.PIPE
    )
    try:
        async for line in process.stdout or asyncio.StreamReader():
            if found := re.search(r"http://\S+?(?=/)", line.decode()):
                yield found[0]
                return
        raise RuntimeError("nnasync live ended before it served")
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


class Contestant(msgspec.Struct, frozen=True):
    """A session: with or without pictures, beside so many clients of the LOW load."""

    name: str
    has_camera: bool
    clients: int


class Page:
    """The browser's side: its socket, its peer connection, and when it saw what."""

    def __init__(self, socket: Any, *, has_camera: bool) -> None:
        self._socket = socket
        self._has_camera = has_camera
        self._connection = aiortc.RTCPeerConnection(aiortc.RTCConfiguration(iceServers=[]))
        self.camera = Camera()
        self._microphone = Microphone()
        self.seen: list[tuple[float, bool]] = []
        self.is_seen = asyncio.Event()
        self.accounts: dict[str, Any] = {}

    async def begin(self, clients: int) -> None:
        """Offers the microphone and perhaps the camera, and asks for a load."""
        self._connection.addTrack(self._microphone)
        if self._has_camera:
            self._connection.addTrack(self.camera)
        await self._connection.setLocalDescription(await self._connection.createOffer())
        await self._say(type="stream", stream="video", priority="MEDIUM", deadline_ms=DEADLINE_MS)
        sound = {"priority": "HIGH", "deadline_ms": SOUND_DEADLINE_MS}
        await self._say(type="stream", stream="audio", **sound)
        await self._say(type="load", clients=clients)
        await self._say(type="offer", sdp=self._connection.localDescription.sdp)

    async def read(self) -> None:
        """Reads messages, until cancelled."""
        async for text in self._socket:
            message = msgspec.json.decode(text)
            if message["type"] == "seen":
                self.seen.append((time.perf_counter(), bool(message["boxes"])))
                if message["boxes"]:
                    self.is_seen.set()
            elif message["type"] == "answer":
                answer = aiortc.RTCSessionDescription(message["sdp"], "answer")
                await self._connection.setRemoteDescription(answer)
            elif message["type"] == "tick" and message["streams"]:
                self.accounts = message["streams"]
                if not self._has_camera and self.accounts["audio"]["completed"]:
                    self.is_seen.set()
            elif message["type"] == "ended" and message["reason"]:
                raise RuntimeError(message["reason"])

    async def end(self) -> None:
        """Close the connection."""
        self.camera.stop()
        self._microphone.stop()
        await self._connection.close()

    async def _say(self, **command: Any) -> None:
        await self._socket.send(msgspec.json.encode(command).decode())


def round_trips(camera: Camera, seen: list[tuple[float, bool]]) -> list[float]:
    """Returns the milliseconds from each time the digit goes to the first result without it."""
    found, away_s = [], SHOWN / RATE_HZ
    begun = next((at for at, has_digit in seen if has_digit), float("inf"))
    for gone in camera.gone:
        first = next((at for at, has_digit in seen if at > gone and not has_digit), None)
        if gone > begun and first is not None and first - gone < away_s + 1:
            found.append((first - gone) * 1e3)
    return found


async def measured(url: str, contestant: Contestant, seconds: float) -> dict[str, float]:
    """Measures one contestant in a session of that length, after the first digit was seen."""
    address = url.replace("http", "ws") + "/socket"
    async with websockets.connect(address, origin=websockets.Origin(url)) as socket:
        page = Page(socket, has_camera=contestant.has_camera)
        reading = asyncio.create_task(page.read())
        await page.begin(contestant.clients)
        async with asyncio.timeout(60):
            await page.is_seen.wait()
        begun, before = time.perf_counter(), page.accounts
        await asyncio.wait([reading], timeout=seconds)
        if reading.done():
            reading.result()
        elapsed_s = time.perf_counter() - begun
        reading.cancel()
        await page.end()
    found = _of_sound(before.get("audio", {}), page.accounts["audio"])
    return found | _of_pictures(page, begun, elapsed_s) if contestant.has_camera else found


def _of_sound(before: dict[str, Any], after: dict[str, Any]) -> dict[str, float]:
    """Returns the hops that came since `before`, and the percentage that was heard in time."""
    settled = {name: after[name] - before.get(name, 0) for name in (*LOST, "completed")}
    hops = sum(settled.values())
    return {"hops": hops, "heard in time %": 100 * settled["completed"] / max(hops, 1)}


def _of_pictures(page: Page, begun: float, elapsed_s: float) -> dict[str, float]:
    trips = round_trips(page.camera, page.seen)
    results = sum(at >= begun for at, _ in page.seen)
    account = page.accounts["video"]
    return {
        "round trips": len(trips),
        "p50 ms": percentile(trips, 0.5),
        "p95 ms": percentile(trips, 0.95),
        "worst ms": max(trips),
        "results a second": results / elapsed_s,
        "came": account["submitted"],
        "missed": sum(account[name] for name in LOST),
    }


async def measure(options: Any) -> None:
    contestants = [
        Contestant("sound alone", has_camera=False, clients=0),
        Contestant("no load", has_camera=True, clients=0),
        Contestant(
            f"{options.clients} clients of the LOW load", has_camera=True, clients=options.clients
        ),
    ]
    found: dict[str, list[dict[str, float]]] = {each.name: [] for each in contestants}
    async with server() as url:
        for turn in range(options.rounds):
            for each in contestants[:: -1 if turn % 2 else 1]:
                found[each.name].append(await measured(url, each, options.seconds))
    names = list(found["no load"][0])
    rows = [
        [name, *(_told([each[key] for each in rounds if key in each]) for key in names)]
        for name, rounds in found.items()
    ]
    publish("From the camera to the page", table(["beside", *names], rows), found, options)


def _told(values: list[float]) -> str:
    return f"{percentile(values, 0.5):.1f}" if values else "-"


def main() -> None:
    """Measure and print."""
    parser = arguments(__doc__, rounds=3)
    parser.add_argument("--seconds", type=float, default=15.0, help="of a session (%(default)s)")
    parser.add_argument("--clients", type=int, default=2, help="of the load (%(default)s)")
    asyncio.run(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
