"""Streams by their address: real servers on the loopback interface, which break in all ways."""

from __future__ import annotations

import gc
import logging
import random
import threading
import traceback
from collections.abc import Callable
from typing import Any

import anyio
import anyio.lowlevel
import numpy as np
import pytest

from nnasync.errors import BadState, DeviceUnavailable, InvalidArgument
from nnasync.streaming import Backoff, Graph, Item, Outcome, SourceEvent, network, video_file
from nnasync.streaming.network import connection, outlets
from tests.rigs import until
from tests.streaming.graph_rig import check

av: Any = pytest.importorskip("av", reason="the extra media is not installed")

from tests.streaming.network import servers  # noqa: E402  # It needs PyAV.
from tests.streaming.network.servers import Act, Line, Server, live, transport_stream  # noqa: E402

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("no_leaks", "stall_guard")]
SOON = Backoff(first_s=0.01, longest_s=0.05)
SIZES = [(48, 64), (96, 32), (64, 64)]
ONE_ROUND = servers.motion_jpeg(rounds=1)


@pytest.fixture(scope="module", autouse=True)
def encoded() -> None:
    """What the servers play: encoded before there is a loop that this would hold."""
    transport_stream()
    for count in (50, 75, 100):
        transport_stream(count=count)
    for count in (50, 75):
        transport_stream(count=count, sound=True)
    transport_stream(size=(96, 32))
    transport_stream(size=(96, 32), rate=50, count=50)
    transport_stream(rate=100, count=30)
    for size in SIZES:
        for rate in (25, 50):
            transport_stream(size=size, rate=rate, sound=True)
    servers.jpegs()
    servers.access_units()


async def first_items(stream: Any, count: int) -> list[Item]:
    """So many items of a source, which is closed."""
    found: list[Item] = []
    async with stream:
        with anyio.fail_after(servers.LIMIT_S):
            async for item in stream:
                found.append(item)
                if len(found) == count:
                    break
    return found


def rising(items: list[Item]) -> bool:
    times = [item.captured_ns for item in items]
    return times == sorted(set(times))


@pytest.fixture
def roomy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is dropped, however late a busy machine lets the loop take it."""
    monkeypatch.setattr(outlets, "_PICTURES_KEPT", 10_000)


class TestWhatArrives:
    @pytest.mark.usefixtures("roomy")
    @pytest.mark.parametrize(
        ("scheme", "act", "path"),
        [
            ("tcp", live(transport_stream(count=50)), ""),
            ("http", servers.motion_jpeg(), "/camera.mjpg"),
            ("rtsp", servers.rtsp(), "/camera"),
        ],
        ids=["mpegts-tcp", "mjpeg-http", "rtsp"],
    )
    async def test_pictures(self, scheme: str, act: Act, path: str) -> None:
        with Server(scheme, act, path=path) as server:
            source = network(server.url).video(size=(24, 32), pixels="rgb24")
            items = await first_items(source, 12)
        assert all(item.data.shape == (24, 32, 3) for item in items)
        assert all(item.data.dtype == np.uint8 and item.epoch == 0 for item in items)
        assert len({int(item.data.mean()) for item in items}) > 5
        assert rising(items)

    @pytest.mark.usefixtures("roomy")
    @pytest.mark.one_loop("UDP is read by FFmpeg; what the loop does is tested by the others")
    async def test_pictures_by_udp(self) -> None:
        port = servers.free_port()
        with servers.datagrams(transport_stream(count=50), port):
            stream = network(f"udp://127.0.0.1:{port}")
            items = await first_items(stream.video(), 60)
        assert rising(items)
        # The sender begins its clip anew, and its times with it.
        assert stream.statistics.times_mended >= 1

    @pytest.mark.usefixtures("roomy")
    @pytest.mark.one_loop("a playlist is read by FFmpeg")
    async def test_a_playlist_is_played_at_its_pace_and_ends(self) -> None:
        events: list[SourceEvent] = []
        act = servers.playlist([transport_stream(rate=100, count=30)], 0.3)
        with Server("http", act, path="/live.m3u8") as server:
            async with network(server.url, on_event=events.append).video() as source:
                items = [item async for item in source]
        assert len(items) == 30
        assert rising(items)
        assert items[-1].media_ns == pytest.approx(290_000_000, abs=1_000_000)
        assert [event.kind for event in events] == ["connected", "ended"]

    @pytest.mark.usefixtures("roomy")
    async def test_picture_and_sound_by_one_connection(self) -> None:
        act = live(transport_stream(count=50, sound=True), then=Line.stall)
        with Server("tcp", act) as server:
            stream = network(server.url)
            graph = Graph()
            pictures: list[Item] = []
            hops: list[Item] = []
            graph.source(stream.video(), name="video").sink(pictures.append, name="pictures")
            graph.source(stream.audio(hop=320), name="audio").sink(hops.append, name="hops")
            async with graph:
                await until(lambda: len(pictures) > 20 and len(hops) > 40)
            assert stream.statistics.connections == 1
        check(graph)
        assert rising(pictures)
        assert rising(hops)
        assert 0.4 < np.abs(np.concatenate([item.data for item in hops[5:]])).max() < 0.6

    @pytest.mark.one_loop("which pictures are decoded is decided in the thread")
    @pytest.mark.parametrize(
        ("scheme", "act", "rate_hz"),
        [
            ("tcp", live(transport_stream(rate=100, count=50), seconds=0.5), 20),
            ("tcp", live(transport_stream(rate=100, count=50), seconds=0.5), 50),
            ("http", servers.motion_jpeg(rounds=5), 20),
        ],
        ids=["key-pictures", "between-them", "mjpeg"],
    )
    async def test_fewer_pictures_are_sorted_out_at_the_source(
        self, scheme: str, act: Act, rate_hz: float
    ) -> None:
        with Server(scheme, act) as server:
            graph = Graph()
            seen: list[Item] = []
            source = network(server.url, retry=None).video()
            # The last part of MJPEG is cut off: an error, but not the graph's.
            camera = graph.source(source, name="camera", on_error="stream")
            camera.rate(rate_hz, name="rate").sink(seen.append, name="seen")
            async with graph:
                await graph.drain()
        check(graph)
        assert graph.account().stages["rate"].filtered == 0
        account = graph.account().stages["camera"]
        # Of MJPEG the times are those of arrival, and its sender may be late.
        expected = rate_hz * seen[-1].media_ns / 1e9
        assert 2 <= len(seen) <= expected + 2
        assert account.submitted == account.passed + account.filtered + account.dropped


class TestWhatBreaks:
    @pytest.mark.parametrize(
        "then",
        [lambda line: None, Line.stall, lambda line: line.send(b"\0" * 100_000)],
        ids=["closed", "stalled", "garbage"],
    )
    async def test_the_next_connection_goes_on(
        self, then: Callable[[Line], None], caplog: pytest.LogCaptureFixture
    ) -> None:
        events: list[SourceEvent] = []
        first = live(transport_stream(), then=then)
        second = live(transport_stream(size=(96, 32), rate=50, count=50), then=Line.stall)
        with Server("tcp", first, second) as server:
            stream = network(server.url, retry=SOON, read_timeout_s=0.3, on_event=events.append)
            source = stream.video()
            seen: list[Item] = []
            graph = Graph()
            graph.source(source, name="camera").sink(seen.append, name="seen")
            async with graph:
                await until(lambda: bool(seen) and seen[-1].epoch >= 1)
                await until(lambda: seen[-1].data.shape == (96, 32))
        check(graph)
        assert {item.data.shape for item in seen if item.epoch == 0} == {(48, 64)}
        assert rising(seen)
        kinds = [event.kind for event in events]
        assert kinds[0] == "connected"
        # A busy machine may have a sender fall silent for longer than is waited for it.
        assert kinds.count("connected") - kinds.count("lost") in (0, 1)
        lost = next(event for event in events if event.kind == "lost")
        assert lost.epoch == 0
        assert lost.retry_s is not None
        assert server.url in lost.reason
        assert any(server.url in record.message for record in caplog.records)

    @pytest.mark.usefixtures("roomy")
    @pytest.mark.parametrize(
        ("scheme", "acts"),
        [
            ("rtsp", [servers.rtsp(rounds=1), servers.rtsp()]),
            ("http", [ONE_ROUND, servers.motion_jpeg()]),
            ("http", [ONE_ROUND, servers.answer("503 Busy"), servers.motion_jpeg()]),
            ("http", [ONE_ROUND, servers.answer("404 None"), servers.motion_jpeg()]),
        ],
        ids=["rtsp", "mjpeg", "mjpeg-busy", "mjpeg-not-there-yet"],
    )
    async def test_a_camera_that_restarts(self, scheme: str, acts: list[Act]) -> None:
        with Server(scheme, *acts, path="/camera") as server:
            stream = network(server.url, retry=SOON)
            async with stream.video() as source, anyio.create_task_group() as tasks:
                tasks.cancel_scope.deadline = anyio.current_time() + servers.LIMIT_S
                epochs = set()
                async for item in source:
                    epochs.add(item.epoch)
                    if len(epochs) == 2:
                        break
        assert epochs == {0, 1}
        assert stream.statistics.attempts == len(acts)

    @pytest.mark.one_loop("UDP is read by FFmpeg; what the loop does is tested by the others")
    async def test_a_sender_of_datagrams_that_falls_silent(self) -> None:
        events: list[SourceEvent] = []
        port = servers.free_port()
        stream = network(
            f"udp://127.0.0.1:{port}", retry=SOON, read_timeout_s=0.2, on_event=events.append
        )
        async with stream.video() as source:
            with servers.datagrams(transport_stream(), port):
                assert (await anext(source)).data.shape == (48, 64)
            async with anyio.create_task_group() as tasks:
                found = anyio.Event()
                tasks.start_soon(take_until_it_is, source, (96, 32), found)
                await until(lambda: "lost" in [event.kind for event in events])
                with servers.datagrams(transport_stream(size=(96, 32)), port):
                    await until(lambda: stream.statistics.connections >= 2)
                    await found.wait()

    async def test_another_format_goes_on(self) -> None:
        with Server(
            "tcp",
            live(transport_stream(size=SIZES[0], rate=25, sound=True)),
            live(transport_stream()),
        ) as server:
            stream = network(server.url, retry=SOON)
            async with stream.video() as source, anyio.create_task_group() as tasks:
                tasks.cancel_scope.deadline = anyio.current_time() + servers.LIMIT_S
                async for item in source:
                    if item.epoch >= 1:
                        break

    @pytest.mark.one_loop("what is broken is found in the thread")
    async def test_broken_packets_are_counted(self) -> None:
        damaged = bytearray(transport_stream(count=100))
        for place in range(6000, len(damaged), 700):
            damaged[place] ^= 0xFF
        with Server("tcp", live(bytes(damaged), then=Line.stall)) as server:
            graph = Graph()
            seen: list[Item] = []
            graph.source(network(server.url).video(), name="camera").sink(seen.append, name="seen")
            async with graph:
                await until(lambda: len(seen) > 20 and graph.account().stages["camera"].failed > 0)
        check(graph)

    @pytest.mark.one_loop("what is too large is found in the thread")
    async def test_pictures_that_are_too_large_are_counted(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(connection, "_MOST_PIXELS", 1000)
        with Server("tcp", live(transport_stream(), then=Line.stall)) as server:
            graph = Graph()
            graph.source(network(server.url).video(), name="camera").sink(lambda item: None)
            async with graph:
                await until(lambda: graph.account().stages["camera"].failed > 5)
        check(graph)
        assert graph.account().stages["camera"].passed == 0

    @pytest.mark.one_loop("the same breaks with the same seed; the loop has no part in them")
    @pytest.mark.parametrize("seed", range(3))
    async def test_breaks_at_random_moments(self, seed: int) -> None:
        """The graph goes on, and every item is in one bucket."""
        with Server("tcp", *random_acts(random.Random(seed), 4)) as server:
            stream = network(
                server.url,
                retry=SOON,
                open_timeout_s=None,
                read_timeout_s=0.15,
                uniform=random.Random(seed).random,
            )
            graph = Graph()
            seen: list[Item] = []
            hops: list[Item] = []
            graph.source(stream.video(), name="video").map(work).sink(seen.append, name="seen")
            graph.source(stream.audio(), name="audio").sink(hops.append, name="hops")
            async with graph:
                await until(lambda: stream.statistics.attempts > 4 and len(seen) > 5)
        check(graph)
        assert rising(seen)
        assert rising(hops)
        assert [item.epoch for item in seen] == sorted(item.epoch for item in seen)
        video = graph.account().stages["video"]
        assert video.submitted == video.passed + video.dropped + video.failed


async def take_until_it_is(source: Any, shape: tuple[int, int], found: anyio.Event) -> None:
    async for item in source:
        if item.data.shape == shape:
            found.set()
            return


async def work(data: Any) -> Any:
    await anyio.lowlevel.checkpoint()
    return data


def random_acts(numbers: random.Random, count: int) -> list[Act]:
    """Servers that are killed, stall, send garbage, or begin anew with other sizes and rates."""

    def act(line: Line) -> None:
        size = numbers.choice(SIZES)
        data = transport_stream(size=size, rate=numbers.choice([25, 50]), sound=True)
        data = data[: numbers.randrange(188, len(data))]
        match numbers.randrange(4):
            case 0:
                live(data)(line)
            case 1:
                live(data, then=Line.stall)(line)
            case 2:
                live(data, then=lambda line: line.send(numbers.randbytes(20_000)))(line)
            case _:
                line.send(numbers.randbytes(2000))

    last = live(transport_stream(count=50, sound=True), then=Line.stall)
    return [*[act] * count, last]


class TestWhatCannotBeRead:
    @pytest.mark.parametrize(
        ("scheme", "act", "reason"),
        [
            ("http", servers.answer("401 Unauthorized"), "401 Unauthorized"),
            ("http", servers.answer("404 Not Found"), "404 Not Found"),
            ("rtsp", servers.rtsp(user="me:secret"), "401 Unauthorized"),
        ],
        ids=["http-401", "http-404", "rtsp-401"],
    )
    async def test_what_no_attempt_will_mend_is_told_at_once(
        self, scheme: str, act: Act, reason: str
    ) -> None:
        with Server(scheme, act, path="/camera") as server:
            source = network(server.url, open_timeout_s=None).video()
            with pytest.raises(InvalidArgument, match=reason):
                await first_items(source, 1)
            with pytest.raises(StopAsyncIteration):
                await anext(source)

    async def test_a_password_opens_and_is_not_shown(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.DEBUG)
        with Server("rtsp", servers.rtsp(user="me:secret"), path="/x") as server:
            right = server.url.replace("://", "://me:secret@")
            mistyped = right.replace("secret", "guess")
            assert await first_items(network(right).video(), 1)
            with pytest.raises(InvalidArgument, match=r"rtsp://127.0.0.1:\d+/x: .*401") as refused:
                await first_items(network(mistyped).video(), 1)
        assert "guess" not in "".join(traceback.format_exception(refused.value))
        assert "guess" not in caplog.text

    @pytest.mark.parametrize("read", [lambda url: network(url, retry=None).video(), video_file])
    async def test_the_log_of_a_graph_shows_no_password(
        self, read: Callable[[str], Any], caplog: pytest.LogCaptureFixture
    ) -> None:
        graph = Graph()
        url = f"http://me:secret@127.0.0.1:{servers.PORT_OF_NOBODY}/x?token=hidden"
        graph.source(read(url), on_error="stream").sink(print)
        await graph.run()
        assert "Connection refused" in caplog.text
        assert "secret" not in caplog.text
        assert "hidden" not in caplog.text

    @pytest.mark.one_loop("nothing is read")
    @pytest.mark.parametrize(
        "url",
        [
            "rtsp://me:secret@camera:99999/x",
            "rtsp://me:secret/2@camera/x",
            "rtsp://me:secret@camera\u2100/x",
            "rtsp://me:secret@camera/\ud800",
            "http://camera:x/?token=secret",
        ],
    )
    async def test_what_is_no_address_shows_no_password(self, url: str) -> None:
        with pytest.raises(InvalidArgument, match="is no address") as refused:
            network(url)
        assert "secret" not in "".join(traceback.format_exception(refused.value))

    @pytest.mark.one_loop("nothing is read")
    async def test_an_address_itself_shows_no_password(self) -> None:
        stream = network("rtsp://me:secret@camera/x")
        assert "secret" not in repr(stream._keeper._address)

    @pytest.mark.parametrize(
        ("url", "reason"),
        [
            (f"tcp://127.0.0.1:{servers.PORT_OF_NOBODY}", "Connection refused"),
            (f"rtsp://127.0.0.1:{servers.PORT_OF_NOBODY}/x", "Connection refused"),
        ],
    )
    async def test_nobody_there(self, url: str, reason: str) -> None:
        with pytest.raises(DeviceUnavailable, match=rf"within 0.1 s.*{reason}"):
            await first_items(network(url, retry=SOON, open_timeout_s=0.1).video(), 1)

    async def test_the_last_reason_is_told_when_an_attempt_is_cut_off(self) -> None:
        acts = [live(b"no medium at all " * 100), Line.stall]
        with Server("tcp", *acts) as server:
            stream = network(server.url, retry=SOON, open_timeout_s=0.3)
            with pytest.raises(DeviceUnavailable, match=r"within 0.3 s .*: cannot read tcp"):
                await first_items(stream.video(), 1)

    async def test_attempts_run_out(self) -> None:
        url = f"tcp://127.0.0.1:{servers.PORT_OF_NOBODY}"
        retry = Backoff(first_s=0.01, attempts=3)
        stream = network(url, retry=retry, open_timeout_s=None)
        with pytest.raises(DeviceUnavailable, match="after 3 attempts"):
            await first_items(stream.video(), 1)
        assert stream.statistics.attempts == 3

    @pytest.mark.parametrize(
        "act",
        [Line.stall, live(b"no medium at all " * 1000), live(transport_stream()[:188])],
        ids=["silent", "garbage", "little"],
    )
    async def test_no_medium_is_an_error_in_time(self, act: Act) -> None:
        with Server("tcp", act) as server:
            stream = network(server.url, retry=SOON, open_timeout_s=0.2)
            with pytest.raises(DeviceUnavailable, match=r"could not be opened within 0.2 s"):
                await first_items(stream.video(), 1)

    async def test_only_the_source_of_what_is_not_there_fails(self) -> None:
        with Server("tcp", live(transport_stream(), then=Line.stall)) as server:
            stream = network(server.url)
            pictures, sound = stream.video(pixels="decoded"), stream.audio()
            async with sound:
                with pytest.raises(InvalidArgument, match="has no audio stream"):
                    await anext(sound)
            found = await first_items(pictures, 3)
        assert {item.data.format.name for item in found} == {"yuv420p"}

    async def test_another_kind_is_told_at_once(self) -> None:
        act = live(transport_stream(), then=Line.stall)
        reason = "has no audio stream"
        with Server("tcp", act) as server, pytest.raises(InvalidArgument, match=reason):
            await first_items(network(server.url, open_timeout_s=None).audio(), 1)

    @pytest.mark.one_loop("nothing is read")
    @pytest.mark.parametrize(
        "url", ["", "camera", "/dev/video0", "rtsp://", "http://[::1", "tcp://host:port/", "a:b"]
    )
    async def test_no_address(self, url: str) -> None:
        with pytest.raises(InvalidArgument, match="no address"):
            network(url)

    async def test_a_protocol_that_this_ffmpeg_lacks(self) -> None:
        with pytest.raises(InvalidArgument, match="Protocol not found"):
            await first_items(network("nosuch://127.0.0.1:1").video(), 1)

    @pytest.mark.one_loop("nothing is read")
    async def test_limits_that_are_none(self) -> None:
        with pytest.raises(InvalidArgument, match="read_timeout_s is 0"):
            network("tcp://127.0.0.1:1", read_timeout_s=0)
        with pytest.raises(InvalidArgument, match="rate_hz"):
            network("tcp://127.0.0.1:1").video(rate_hz=0)
        with pytest.raises(InvalidArgument, match='frames that are "decoded" keep their own'):
            network("tcp://127.0.0.1:1").video(pixels="decoded", size=(24, 32))

    async def test_a_playlist_leads_to_no_file(self, tmp_path: Any) -> None:
        secret = tmp_path / "secret.ts"
        secret.write_bytes(transport_stream())
        playlist = (
            f"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nfile://{secret}\n#EXT-X-ENDLIST\n"
        )
        act = servers.answer("200 OK", playlist.encode())
        with Server("http", act, path="/x.m3u8") as server:
            source = network(server.url, retry=SOON, open_timeout_s=0.3).video()
            with pytest.raises((DeviceUnavailable, InvalidArgument)):
                await first_items(source, 1)


class TestItsEnd:
    async def test_without_retry_the_end_is_the_end(self) -> None:
        with Server("tcp", live(transport_stream())) as server:
            async with network(server.url, retry=None).video() as source:
                items = [item async for item in source]
                lost = source.take_losses().get(Outcome.DROPPED, 0)
        assert len(items) + lost == 25

    async def test_cancelling_ends_a_wait_at_once(self) -> None:
        with Server("tcp", Line.stall) as server:
            with anyio.move_on_after(0.05) as scope:
                await first_items(network(server.url).video(), 1)
        assert scope.cancelled_caught

    async def test_one_of_two_sources_may_be_closed(self) -> None:
        with Server("tcp", live(transport_stream(count=75, sound=True), then=Line.stall)) as server:
            stream = network(server.url)
            pictures, sound = stream.video(), stream.audio()
            await anext(pictures)
            await sound.aclose()
            assert len(await first_items(pictures, 10)) == 10
        with pytest.raises(StopAsyncIteration):
            await anext(sound)
        with pytest.raises(BadState, match="before the first of them is read"):
            stream.audio()

    async def test_what_is_dropped_without_being_closed_ends_its_thread(self) -> None:
        with Server("tcp", live(transport_stream(), then=Line.stall)) as server:
            source = network(server.url, read_timeout_s=0.2).video()
            await anext(source)
            del source
            gc.collect()
            await until(lambda: all(t.name != "nnasync-network" for t in threading.enumerate()))

    async def test_a_callback_that_raises_disturbs_nothing(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        def complain(event: SourceEvent) -> None:
            raise ValueError(event.kind)

        with Server("tcp", live(transport_stream(), then=Line.stall)) as server:
            items = await first_items(network(server.url, on_event=complain).video(), 3)
        assert len(items) == 3
        assert "on_event raised" in caplog.text
