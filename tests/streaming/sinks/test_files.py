"""Sinks that write files: what is in them, and that they are finished whatever ends the graph."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import threading
import wave
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest

from nnasync.errors import (
    BadState,
    DeviceUnavailable,
    InvalidArgument,
    NNError,
    ResourceExhaustedPersistent,
    ResourceExhaustedTransient,
)
from nnasync.hal import Array
from nnasync.streaming import (
    FileSink,
    Graph,
    Item,
    Policy,
    audio_recorder,
    results_file,
    video_file,
    video_recorder,
)
from nnasync.streaming.sinks import file_sink, sound
from tests.rigs import until
from tests.streaming.graph_rig import check

av: Any = pytest.importorskip("av", reason="the extra media is not installed")

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("no_leaks", "stall_guard")]
MS = 1_000_000
START = 123 * MS


async def items(data: Iterable[Any], period_ns: int) -> AsyncIterator[Item]:
    for index, each in enumerate(data):
        yield Item(index, START + index * period_ns, each, index * period_ns)


async def written(sink: FileSink, data: Iterable[Any], *, period_ns: int = 40 * MS) -> Graph:
    graph = Graph()
    graph.source(items(data, period_ns), policy=Policy.BLOCK).sink(sink, name="sink")
    await graph.run()
    check(graph)
    return graph


def pictures(count: int, shape: tuple[int, ...] = (48, 64, 3)) -> list[Array]:
    return [np.full(shape, 16 + 8 * (index % 25), np.uint8) for index in range(count)]


def frames_of(path: Path) -> list[Any]:
    with av.open(str(path)) as container:
        return list(container.decode(video=0))


class TestVideo:
    @pytest.mark.parametrize("name", ["x.mp4", "x.mkv"])
    async def test_pictures_and_their_times(self, tmp_path: Path, name: str) -> None:
        sink = video_recorder(tmp_path / name)
        await written(sink, pictures(12))
        frames = frames_of(tmp_path / name)
        assert [round(frame.time * 1000) for frame in frames] == [40 * index for index in range(12)]
        brightness = [int(frame.to_ndarray(format="gray").mean()) for frame in frames]
        assert all(abs(found - (16 + 8 * k)) < 4 for k, found in enumerate(brightness))
        assert sink.written == 12

    async def test_a_file_that_is_read_fast_plays_at_its_own_pace(self, tmp_path: Path) -> None:
        await written(video_recorder(tmp_path / "x.mp4"), pictures(6), period_ns=200 * MS)
        graph = Graph()
        again = graph.source(video_file(tmp_path / "x.mp4", pace="fast"), policy=Policy.BLOCK)
        again.sink(video_recorder(tmp_path / "y.mp4"))
        await graph.run()
        times_ms = [round(frame.time * 1000) for frame in frames_of(tmp_path / "y.mp4")]
        assert times_ms == [200 * index for index in range(6)]

    async def test_images_in_shared_memory(self, tmp_path: Path) -> None:
        await written(video_recorder(tmp_path / "x.mp4"), pictures(6))
        graph = Graph()
        images = video_file(tmp_path / "x.mp4", pixels="image", pace="fast")
        graph.source(images, policy=Policy.BLOCK).sink(video_recorder(tmp_path / "y.mp4"))
        await graph.run()
        check(graph)
        brightness = [
            frame.to_ndarray(format="gray").mean() for frame in frames_of(tmp_path / "y.mp4")
        ]
        assert brightness == pytest.approx([16 + 8 * index for index in range(6)], abs=4)

    async def test_what_is_drawn_is_in_it(self, tmp_path: Path) -> None:
        def draw(item: Item) -> Array:
            picture = np.zeros((48, 64), np.uint8)
            picture[:, : item.data] = 255
            return picture

        await written(video_recorder(tmp_path / "x.mp4", draw=draw), [0, 32])
        last = frames_of(tmp_path / "x.mp4")[-1].to_ndarray(format="gray")
        assert last[:, 4:28].min() > 200
        assert last[:, 36:].max() < 50

    async def test_sizes_may_change_and_be_odd(self, tmp_path: Path) -> None:
        await written(
            video_recorder(tmp_path / "x.mp4"), [*pictures(2, (49, 63)), *pictures(2, (20, 90, 3))]
        )
        assert {(f.height, f.width) for f in frames_of(tmp_path / "x.mp4")} == {(48, 62)}

    async def test_a_graph_that_is_cancelled_leaves_a_file_that_plays(self, tmp_path: Path) -> None:
        path = tmp_path / "x.mp4"
        sink = video_recorder(path)
        graph = Graph()
        enough = anyio.Event()

        async def endless() -> AsyncIterator[Item]:
            index = 0
            while True:
                yield Item(index, index * 40 * MS, np.full((48, 64), index % 256, np.uint8))
                index += 1
                if sink.written > 5:
                    enough.set()
                await anyio.lowlevel.checkpoint()

        graph.source(endless(), policy=Policy.BLOCK).sink(sink)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(graph.run)
            await enough.wait()
            tasks.cancel_scope.cancel()
        check(graph)
        assert len(frames_of(path)) == sink.written
        with pytest.raises(BadState, match="is closed"):
            await sink(Item(0, 0, pictures(1)[0]))

    async def test_what_is_no_picture_fails_alone(self, tmp_path: Path) -> None:
        good = pictures(1)[0]
        graph = await written(video_recorder(tmp_path / "x.mp4"), [good, "text", good])
        assert graph.account().stages["sink"].failed == 1
        assert len(frames_of(tmp_path / "x.mp4")) == 2

    @pytest.mark.parametrize("name", ["x.nosuch", "missing/x.mp4"])
    async def test_a_file_that_cannot_be(self, tmp_path: Path, name: str) -> None:
        graph = await written(video_recorder(tmp_path / name), pictures(1))
        assert isinstance(graph.errors()["sink"], InvalidArgument)

    @pytest.mark.parametrize(
        ("name", "codec"), [("x.avi", "mjpeg"), ("x.avi", "png"), ("x.gif", "gif")]
    )
    async def test_a_codec_has_pictures_in_a_format_of_its_own(
        self, tmp_path: Path, name: str, codec: str
    ) -> None:
        await written(video_recorder(tmp_path / name, codec=codec), pictures(3))
        assert len(frames_of(tmp_path / name)) == 3

    @pytest.mark.parametrize(
        ("name", "codec", "shape"),
        [
            ("x.mp4", "libx264", (2, 20_000)),
            ("x.mp4", "mpeg2video", (16, 16)),
            ("x.mp4", "aac", (16, 16)),
        ],
    )
    async def test_what_a_codec_cannot_have_is_told(
        self, tmp_path: Path, name: str, codec: str, shape: tuple[int, ...]
    ) -> None:
        sink = video_recorder(tmp_path / name, codec=codec)
        with pytest.raises(InvalidArgument, match="cannot write video to"):
            await sink(Item(0, 0, np.zeros(shape, np.uint8)))
        with contextlib.suppress(InvalidArgument):
            await sink.aclose()

    async def test_a_codec_that_is_none(self, tmp_path: Path) -> None:
        graph = await written(video_recorder(tmp_path / "x.mp4", codec="nosuch"), pictures(1))
        assert "nosuch" in str(graph.errors()["sink"])


class TestSound:
    async def test_hops_one_after_the_other(self, tmp_path: Path) -> None:
        hops = [np.full(160, index / 10, np.float32) for index in range(5)]
        await written(audio_recorder(tmp_path / "x.wav"), hops, period_ns=10 * MS)
        samples = samples_of(tmp_path / "x.wav")
        assert np.abs(samples - np.concatenate(hops)).max() < 1e-4

    async def test_silence_where_some_is_missing(self, tmp_path: Path) -> None:
        sink = audio_recorder(tmp_path / "x.wav", rate_hz=1000)
        for captured_ms in (10, 20, 2520, 2530):
            await sink(Item(0, captured_ms * MS, np.ones(10, np.float32)))
        await sink.aclose()
        await sink.aclose()
        samples = samples_of(tmp_path / "x.wav")
        assert samples.size == 2530
        assert samples[:20].min() > 0.99
        assert not samples[20:2510].any()
        assert samples[2510:].min() > 0.99

    async def test_hops_of_a_file_are_placed_by_its_own_time(self, tmp_path: Path) -> None:
        sink = audio_recorder(tmp_path / "x.wav", rate_hz=1000)
        # Read fast at first, and then waited for: neither is silence, what the file lacks is.
        for captured_ms, media_ms in ((1, 10), (2, 20), (5000, 30), (5001, 130)):
            hop = np.ones(10, np.float32)
            await sink(Item(0, captured_ms * MS, hop, media_ms * MS))
        await sink.aclose()
        samples = samples_of(tmp_path / "x.wav")
        assert samples.size == 130
        assert samples[:30].min() > 0.99
        assert not samples[30:120].any()

    async def test_what_is_no_hop(self, tmp_path: Path) -> None:
        graph = await written(audio_recorder(tmp_path / "x.wav"), pictures(1))
        assert "is no hop" in str(graph.errors()["sink"])

    async def test_a_silence_that_is_too_long_is_cut_once(self, tmp_path: Path) -> None:
        sink = audio_recorder(tmp_path / "x.wav", rate_hz=1000, most_silence_s=1)
        for captured_ms in (0, 10**9, 10**9 + 10, 10**9 + 500):
            await sink(Item(0, captured_ms * MS, np.ones(10, np.float32)))
        await sink.aclose()
        samples = samples_of(tmp_path / "x.wav")
        assert samples.size == 10 + 1000 + 10 + 490 + 10
        assert not samples[10:1010].any()
        assert samples[1010:1030].min() > 0.99

    async def test_a_hop_that_makes_the_file_too_long_is_told(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert 2 * sound._MOST_SAMPLES + 44 < 2**32
        monkeypatch.setattr(sound, "_MOST_SAMPLES", 25)
        hops = [np.ones(size, np.float32) for size in (10, 10, 10, 5)]
        graph = await written(audio_recorder(tmp_path / "x.wav"), hops, period_ns=0)
        assert isinstance(graph.errors()["sink"], ResourceExhaustedPersistent)
        assert "longer than 4 GiB" in str(graph.errors()["sink"])
        assert graph.account().stages["sink"].failed == 1
        assert samples_of(tmp_path / "x.wav").size == 25

    async def test_samples_that_are_no_numbers_are_refused(self, tmp_path: Path) -> None:
        hops = [np.ones(5, np.float32), np.full(5, np.nan, np.float32)]
        graph = await written(audio_recorder(tmp_path / "x.wav"), hops)
        assert "NaN or infinite" in str(graph.errors()["sink"])
        assert samples_of(tmp_path / "x.wav").size == 5

    @pytest.mark.parametrize("seconds", [-1, np.nan, np.inf])
    async def test_a_silence_that_is_none(self, seconds: float) -> None:
        with pytest.raises(InvalidArgument, match="most_silence_s"):
            audio_recorder("x.wav", most_silence_s=seconds)

    async def test_a_rate_that_is_none(self) -> None:
        with pytest.raises(InvalidArgument, match="rate_hz is 0"):
            audio_recorder("x.wav", rate_hz=0)


def samples_of(path: Path) -> Array:
    with wave.open(str(path)) as file:
        return np.frombuffer(file.readframes(file.getnframes()), "<i2") / 32767


class TestRows:
    DATA = [{"label": "one", "boxes": np.arange(2)}, {"label": "a,b", "boxes": np.arange(3)}]

    async def test_json_lines(self, tmp_path: Path) -> None:
        await written(results_file(tmp_path / "x.jsonl"), self.DATA)
        rows = [json.loads(line) for line in (tmp_path / "x.jsonl").read_text().splitlines()]
        assert rows[1] == {
            "index": 1,
            "captured_ns": START + 40 * MS,
            "media_ns": 40 * MS,
            "epoch": 0,
            "data": {"label": "a,b", "boxes": [0, 1, 2]},
        }

    async def test_csv(self, tmp_path: Path) -> None:
        sink = results_file(tmp_path / "x.csv", row=lambda item: item.data)
        await written(sink, self.DATA)
        assert list(csv.DictReader(io.StringIO((tmp_path / "x.csv").read_text()))) == [
            {"label": "one", "boxes": "[0,1]"},
            {"label": "a,b", "boxes": "[0,1,2]"},
        ]

    async def test_other_columns_than_the_first_row_fail_alone(self, tmp_path: Path) -> None:
        sink = results_file(tmp_path / "x.csv", row=lambda item: item.data)
        graph = await written(sink, [{"a": 1}, {"b": 2}, {"a": np.float32(0.5)}])
        assert "item 1 has the columns b, the first one had a" in str(graph.errors()["sink"])
        assert (tmp_path / "x.csv").read_text().split() == ["a", "1", "0.5"]

    @pytest.mark.one_loop("rows are written on a thread")
    async def test_parquet(self, tmp_path: Path) -> None:
        parquet = pytest.importorskip("pyarrow.parquet", reason="the extra parquet is not there")
        sink = results_file(tmp_path / "x.parquet", row=lambda item: {"n": item.index, **item.data})
        await written(sink, self.DATA * 2100)
        # Its threads may keep a file that is given by name open for a while.
        table = parquet.read_table(io.BytesIO((tmp_path / "x.parquet").read_bytes()))
        assert table.num_rows == 4200
        assert table.slice(4199).to_pylist() == [{"n": 4199, "label": "a,b", "boxes": [0, 1, 2]}]

    async def test_text_that_is_no_unicode_fails_alone(self, tmp_path: Path) -> None:
        for name in ("x.csv", "x.jsonl"):
            sink = results_file(tmp_path / name, row=lambda item: {"a": item.data})
            graph = await written(sink, ["\ud800", "word"])
            assert graph.account().stages["sink"].failed == 1
            assert isinstance(graph.errors()["sink"], InvalidArgument)
            assert "word" in (tmp_path / name).read_text()

    @pytest.mark.parametrize("row", [{}, {1: 2}])
    async def test_a_row_without_names_is_refused(self, tmp_path: Path, row: Any) -> None:
        graph = await written(results_file(tmp_path / "x.csv", row=lambda item: row), [1])
        assert "text for its name" in str(graph.errors()["sink"])

    async def test_what_cannot_be_written(self, tmp_path: Path) -> None:
        graph = await written(results_file(tmp_path / "x.jsonl"), [object(), 1])
        assert "a object cannot be written: give `row`" in str(graph.errors()["sink"])
        assert graph.account().stages["sink"].completed == 1

    async def test_a_suffix_that_is_none(self) -> None:
        with pytest.raises(InvalidArgument, match=r"x.txt is none of .jsonl, .csv, .parquet"):
            results_file("x.txt")


@pytest.mark.parametrize(
    ("name", "make", "data"),
    [
        ("x.mkv", video_recorder, pictures(40)),
        ("x.jsonl", results_file, [1] * 3),
        ("x.csv", results_file, [1] * 3),
        ("x.wav", audio_recorder, [np.ones(100_000, np.float32)] * 3),
    ],
)
async def test_a_full_disk_is_told(tmp_path: Path, name: str, make: Any, data: Any) -> None:
    (tmp_path / name).symlink_to("/dev/full")
    graph = await written(make(tmp_path / name), data)
    error = graph.errors()["sink"]
    assert isinstance(error, ResourceExhaustedTransient)
    assert f"the disk is full: {tmp_path / name} has" in str(error)


async def test_a_sink_that_fails_at_its_end_fails_the_graph_if_asked(tmp_path: Path) -> None:
    (tmp_path / "x.mkv").symlink_to("/dev/full")
    graph = Graph()
    source = graph.source(items(pictures(2), 40 * MS), policy=Policy.BLOCK)
    source.sink(video_recorder(tmp_path / "x.mkv"), name="sink", on_error="graph")
    with pytest.raises(NNError, match="the disk is full"):
        await graph.run()


async def test_a_graph_can_be_cancelled_while_a_disk_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    began, answers = threading.Event(), threading.Event()

    class Stuck:
        def write(self, item: Item) -> None:
            began.set()
            assert answers.wait(10)

        def close(self) -> None:
            pass

    monkeypatch.setattr(file_sink, "CLOSE_S", 0.01)
    graph = Graph()
    sink = FileSink("stuck.bin", lambda path, item: Stuck())
    graph.source(items([1], MS), policy=Policy.BLOCK).sink(sink, name="sink")
    try:
        async with graph:
            await until(began.is_set)
    finally:
        answers.set()
    assert isinstance(graph.errors()["sink"], DeviceUnavailable)
    assert "stuck.bin is not finished" in str(graph.errors()["sink"])
    check(graph)
    monkeypatch.setattr(file_sink, "CLOSE_S", 10)
    await sink.aclose()
    with pytest.raises(BadState, match="is closed"):
        await sink(Item(1, 0, 1))
