"""A WebRTC peer as a source, played by aiortc itself on the loopback interface."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from fractions import Fraction
from typing import Any

import anyio
import numpy as np
import pytest

from nnasync.errors import BadState, DeviceUnavailable, InvalidArgument
from nnasync.streaming import Graph, Item, Outcome, synthetic, webrtc
from nnasync.streaming.webrtc import aiortc_package
from nnasync.streaming.webrtc.tracks import HopsOf, IncomingTrack
from tests.rigs import until

aiortc: Any = pytest.importorskip("aiortc", reason="the extra webrtc is not installed")
av: Any = pytest.importorskip("av", reason="the extra media is not installed")

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.usefixtures("no_leaks", "on_loopback"),
    pytest.mark.one_loop("aiortc runs on asyncio alone"),
]
LIMIT_S = 20
BRIGHT = np.full((48, 64), 200, np.uint8)


@pytest.fixture
def on_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    """ICE leaves the loopback interface out, which is the only one on some machines."""
    monkeypatch.setattr("aioice.ice.get_host_addresses", lambda **_: ["127.0.0.1"])


class Frames(aiortc.VideoStreamTrack):  # type: ignore[misc]  # aiortc has no types.
    """Gray pictures whose brightness is their number."""

    number = 0

    async def recv(self) -> Any:
        pts, time_base = await self.next_timestamp()
        self.number += 1
        picture = np.full((48, 64), 16 * (self.number % 16), np.uint8)
        frame = av.VideoFrame.from_ndarray(picture, format="gray").reformat(format="yuv420p")
        frame.pts, frame.time_base = pts, time_base
        return frame


class Tone(aiortc.AudioStreamTrack):  # type: ignore[misc]  # aiortc has no types.
    """A stereo tone of 400 Hz with half the full amplitude."""

    async def recv(self) -> Any:
        silence = await super().recv()
        wave = np.sin(np.arange(960) * (2 * np.pi * 400 / 48000))
        samples = np.repeat((wave * 16384).astype(np.int16), 2)[None]
        frame = av.AudioFrame.from_ndarray(samples, format="s16", layout="stereo")
        frame.sample_rate, frame.time_base = 48000, Fraction(1, 48000)
        frame.pts = silence.pts * 6
        return frame


class Browser:
    """The other side: it offers, and takes the answer."""

    def __init__(self) -> None:
        self.connection = aiortc.RTCPeerConnection(aiortc.RTCConfiguration(iceServers=[]))
        self.channel = self.connection.createDataChannel("results")
        self.heard: list[str] = []
        self.channel.on("message", self.heard.append)
        self.tracks: list[Any] = []
        self.connection.on("track", self.tracks.append)

    async def offer(self) -> str:
        await self.connection.setLocalDescription(await self.connection.createOffer())
        sdp: str = self.connection.localDescription.sdp
        return sdp

    async def take(self, answer: str) -> None:
        description = aiortc.RTCSessionDescription(answer, "answer")
        await self.connection.setRemoteDescription(description)


@asynccontextmanager
async def browser(*tracks: Any) -> AsyncIterator[Browser]:
    other = Browser()
    for track in tracks:
        other.connection.addTrack(track)
    try:
        with anyio.fail_after(LIMIT_S):
            yield other
    finally:
        await other.connection.close()


async def test_pictures_and_sound_are_sources_and_answers_go_back() -> None:
    pictures: list[Item] = []
    hops: list[Item] = []
    async with (
        browser(Frames(), Tone()) as other,
        webrtc.accept(await other.offer()) as peer,
    ):
        await other.take(peer.answer)
        await peer.connected()
        graph = Graph()
        frames = graph.source(peer.video(size=(24, 32), pixels="rgb24"), name="video")
        frames.sink(pictures.append, name="pictures")
        frames.sink(lambda item: peer.send(f"picture {item.index}"), name="answers")
        graph.source(peer.audio(), name="audio").sink(hops.append, name="hops")
        async with graph:
            await until(lambda: len(pictures) > 3 and len(hops) > 30 and bool(other.heard))
        account = graph.account()
    assert all(item.data.shape == (24, 32, 3) for item in pictures)
    assert [each.captured_ns for each in pictures] == sorted(each.captured_ns for each in pictures)
    assert all(item.data.shape == (160,) for item in hops)
    assert 0.4 < np.abs(hops[-1].data).max() < 0.6
    steps = np.diff([item.captured_ns for item in hops])
    assert (steps > 0).all()
    assert other.heard[0].startswith("picture ")
    assert account.pending == 0
    video = account.stages["video"]
    assert video.submitted == video.passed + video.dropped + video.cancelled
    # Frames that come while the graph is closed are not its own.
    assert 0 <= peer.statistics.video_frames - video.submitted <= 2


async def test_messages_are_taken_up_to_their_limits() -> None:
    limits = webrtc.PeerLimits(message_bytes=10, messages_waiting=2)
    async with browser() as other, webrtc.accept(await other.offer(), limits=limits) as peer:
        await other.take(peer.answer)
        await peer.connected()
        await until(lambda: other.channel.readyState == "open")
        for text in ("one", "x" * 100, "two", "three"):
            other.channel.send(text)
        await until(lambda: peer.statistics.messages_received == 4)
        assert peer.statistics.messages_refused == 2  # One was too long, one gave way.
        async for message in peer.messages():
            assert message == "two"
            break


async def test_a_peer_has_some_channels_and_no_more() -> None:
    async with browser() as other:
        channels = [other.channel, *(other.connection.createDataChannel(str(n)) for n in range(3))]
        limits = webrtc.PeerLimits(channels=2)
        async with webrtc.accept(await other.offer(), limits=limits) as peer:
            await other.take(peer.answer)
            await until(lambda: [c.readyState for c in channels].count("closed") == 2)
            assert [c.readyState for c in channels].count("open") == 2
            assert peer.send("still heard")


async def test_pictures_are_shown_to_the_peer() -> None:
    async with browser() as other:
        other.connection.addTransceiver("video", direction="recvonly")
        async with webrtc.accept(await other.offer(), shows=True) as peer:
            await other.take(peer.answer)
            await peer.connected()
            with pytest.raises(InvalidArgument, match="a picture is a uint8 array"):
                peer.show(Item(0, 0, np.zeros((4, 4), np.float32)))
            graph = Graph()
            graph.source(synthetic(lambda _: BRIGHT, rate_hz=50)).sink(peer.show)
            async with graph:
                frame = await other.tracks[0].recv()
    assert abs(int(frame.to_ndarray(format="gray").mean()) - 200) < 8


async def test_a_peer_that_goes_ends_its_sources() -> None:
    async with browser(Frames()) as other, webrtc.accept(await other.offer()) as peer:
        await other.take(peer.answer)
        source = peer.video()
        assert (await anext(source)).data.shape == (48, 64)
        await other.connection.close()
        with pytest.raises((StopAsyncIteration, DeviceUnavailable)):
            while True:
                await anext(source)
        await peer.closed()


async def test_a_peer_that_never_connects_is_given_up() -> None:
    limits = webrtc.PeerLimits(connect_timeout_s=0.05)
    async with (
        browser(Frames()) as other,
        webrtc.accept(await other.offer(), limits=limits) as peer,
    ):
        with pytest.raises(DeviceUnavailable, match=r"did not connect within 0.05 s"):
            await anext(peer.video())
        with pytest.raises(DeviceUnavailable, match="the peer is gone"):
            await peer.connected()


async def test_silence_is_an_error_in_time() -> None:
    async with browser(Frames()) as other, webrtc.accept(await other.offer()) as peer:
        with pytest.raises(DeviceUnavailable, match=r"no video came from the peer for 0.01 s"):
            await anext(peer.video(read_timeout_s=0.01))


async def test_what_the_peer_does_not_offer_is_an_error() -> None:
    async with browser(Frames()) as other, webrtc.accept(await other.offer()) as peer:
        with pytest.raises(InvalidArgument, match="the peer offers no audio"):
            peer.audio()
        peer.video()
        with pytest.raises(BadState, match="taken already"):
            peer.video()
        with pytest.raises(BadState, match="shown nothing"):
            peer.show(Item(0, 0, None))
        assert not peer.send("nobody hears it")


@pytest.mark.parametrize(
    "offer",
    [
        "",
        "v=0",
        "m=\n" * 1000,
        "x" * 100_000,
        "v=0\r\nm=video 9 UDP/TLS/RTP/SAVPF 96\r\n",
        "v=0\r\nm=video nine UDP/TLS/RTP/SAVPF 96\r\na=mid:0\r\n",
        "\ud800",
    ],
)
async def test_bad_offers_are_refused(offer: str) -> None:
    with pytest.raises(InvalidArgument, match="offer"):
        async with webrtc.accept(offer):
            pass


SECTION = (
    "m=video 9 UDP/TLS/RTP/SAVPF 96\r\nc=IN IP4 0.0.0.0\r\na=mid:0\r\na=sendonly\r\na=rtcp-mux\r\n"
    "a=ice-ufrag:abcd\r\na=ice-pwd:abcdefghijklmnopqrstuv\r\na=setup:actpass\r\n"
    f"a=fingerprint:sha-256 {':'.join(['AA'] * 32)}\r\n"
)
PREFIX = "v=0\r\no=- 1 1 IN IP4 0.0.0.0\r\ns=-\r\nt=0 0\r\na=group:BUNDLE 0\r\n"


@pytest.mark.parametrize(
    ("repeated", "reason"),
    [
        ("a=rtpmap:96 VP8/90000\r\n" * 129, "129 lines of a=rtpmap, 128 are allowed"),
        ("a=rtcp-fb:* n\r\n" * 257, "257 lines of a=rtcp-fb, 256 are allowed"),
        ("a=candidate:1 1 udp 1 10.0.0.1 9 typ host\r\n" * 65, "65 lines of a=candidate"),
        ("a=ssrc:1 x\r\n" * 1024, "1038 lines, 1024 are allowed"),
        ("a=group:BUNDLE" + " 0" * 1000, "1001 words in a line"),
    ],
)
async def test_offers_that_would_hold_the_loop_are_refused(repeated: str, reason: str) -> None:
    with pytest.raises(InvalidArgument, match=reason):
        webrtc.accept(PREFIX + SECTION + repeated)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("message_bytes", -1),
        ("messages_waiting", 0),
        ("picture_pixels", -1),
        ("connect_timeout_s", 0),
        ("connect_timeout_s", float("nan")),
        ("connect_timeout_s", float("inf")),
    ],
)
async def test_limits_that_are_none(name: str, value: float) -> None:
    with pytest.raises(InvalidArgument, match=f"{name} is"):
        webrtc.PeerLimits(**{name: value})  # type: ignore[arg-type]  # Values that are wrong.


async def test_messages_are_measured_in_bytes() -> None:
    limits = webrtc.PeerLimits(message_bytes=4)
    async with browser() as other, webrtc.accept(await other.offer(), limits=limits) as peer:
        for message in ("\u00e4\u00e4", "\u00e4\u00e4\u00e4", b"1234", b"12345"):
            peer._take_message(message)
        assert peer.statistics.messages_refused == 2


async def test_a_peer_that_finishes_no_message_is_given_up() -> None:
    limits = webrtc.PeerLimits(unfinished_bytes=10_000)
    async with (
        browser(Frames()) as other,
        webrtc.accept(await other.offer(), limits=limits) as peer,
    ):
        await other.take(peer.answer)
        await peer.connected()
        await until(lambda: other.channel.readyState == "open")
        other.channel.send("x" * 30_000)
        await peer.closed()
        assert peer.statistics.messages_received == 0
        with pytest.raises(DeviceUnavailable, match=r"than 10000 bytes \(unfinished_bytes\)"):
            source = peer.video()
            while True:
                await anext(source)


@pytest.mark.parametrize("first", [1, 2], ids=["in order", "behind a missing one"])
async def test_pieces_of_messages_are_bounded(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aiortc_package, "_MOST_PIECES", 20)
    async with browser() as other, webrtc.accept(await other.offer()) as peer:
        sctp = peer._connection.sctp
        sctp._last_received_tsn = 0
        for number in range(100):
            chunk = aiortc.rtcsctptransport.DataChunk()
            chunk.tsn, chunk.user_data = number + first, b"x"
            await sctp._receive_data_chunk(chunk)
        assert len(sctp._inbound_streams[0].reassembly) <= 21
        await peer.closed()


async def test_many_messages_are_no_flood(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aiortc_package, "_MOST_PIECES", 20)
    async with browser() as other, webrtc.accept(await other.offer()) as peer:
        await other.take(peer.answer)
        await until(lambda: other.channel.readyState == "open")
        for number in range(100):
            other.channel.send(str(number))
        await until(lambda: peer.statistics.messages_received == 100)
        assert peer.state == "connected"


async def test_a_peer_with_too_large_pictures_is_given_up() -> None:
    limits = webrtc.PeerLimits(picture_pixels=48 * 64 - 1)
    async with (
        browser(Frames()) as other,
        webrtc.accept(await other.offer(), limits=limits) as peer,
    ):
        source = peer.video()
        await other.take(peer.answer)
        with pytest.raises(DeviceUnavailable, match=r"64 x 48 pixels, 3071 .*picture_pixels"):
            await anext(source)
        assert source.take_losses() == {Outcome.FAILED: 1}
        await peer.closed()


async def test_lost_sound_is_counted_in_hops() -> None:
    track = IncomingTrack("audio")
    hops = HopsOf(track, 16000, 160, None)
    frame = av.AudioFrame(format="s16", layout="mono", samples=960)
    frame.sample_rate = 48000
    for number in range(60):
        track.mailbox.put((number * 20_000_000, frame))
    await hops.__anext__()
    assert hops.take_losses() == {Outcome.DROPPED: 20}  # 10 frames of two hops gave way.
    await hops.aclose()
    assert hops.take_losses()[Outcome.DROPPED] in (98, 99)  # The resampler keeps some samples.
    assert hops.take_losses() == {Outcome.DROPPED: 0}


async def test_offers_with_damage_are_refused_or_answered() -> None:
    """Whatever is changed in a good offer: an answer or a typed error, and nothing leaks."""
    async with browser(Frames(), Tone()) as other:
        good = await other.offer()
    random = np.random.default_rng(7)
    lines = good.splitlines(keepends=True)
    for _ in range(20):
        damaged = list(lines)
        place = int(random.integers(len(lines)))
        match int(random.integers(3)):
            case 0:
                del damaged[place]
            case 1:
                damaged[place] = damaged[place].replace(":", "").replace("=", "=9" * 3)
            case _:
                damaged.insert(place, damaged[int(random.integers(len(lines)))])
        try:
            async with webrtc.accept("".join(damaged)) as peer:
                assert peer.answer.startswith("v=0")
        except InvalidArgument:
            pass
