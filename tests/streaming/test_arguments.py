"""What is given to graphs and stages is checked where it is given."""

from __future__ import annotations

import errno
import glob
import re
from typing import Any

import pytest

from nnasync.errors import InvalidArgument
from nnasync.streaming import Graph, Stage, camera
from nnasync.streaming.sources import media
from tests.streaming.graph_rig import items, recording


async def answer(data: Any, *, deadline: Any = None) -> Any:
    return data


async def unawaited() -> None:
    pass


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"policy": "newest"}, "policy is 'newest', it must be one of Policy.NEWEST, Policy"),
        ({"budget_ns": 0.02}, "budget_ns is 0.02, it must be a whole number of nanoseconds"),
    ],
)
def test_policies_and_budgets(given: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidArgument, match=re.escape(f"source: {told}")):
        Graph().source(items([]), name="source", **given)
    with pytest.raises(InvalidArgument, match=re.escape(f"answer: {told}")):
        Graph().source(items([])).map(answer, **given)
    with pytest.raises(InvalidArgument, match=re.escape(f"stage: {told}")):
        Stage(answer, **given)


def test_what_is_no_source() -> None:
    given: Any = [1, 2]
    with pytest.raises(InvalidArgument, match=r"source: a source is an async iterable.*not list"):
        Graph().source(given)


@pytest.mark.parametrize("way", ["map", "flat_map", "filter", "split", "sink"])
def test_what_cannot_be_called(way: str) -> None:
    with pytest.raises(InvalidArgument, match="such as a function or a network, not str"):
        getattr(Graph().source(items([])), way)("net")
    coroutine = unawaited()
    with pytest.raises(InvalidArgument, match="not coroutine; await it first"):
        getattr(Graph().source(items([])), way)(coroutine)
    coroutine.close()


def test_a_camera_that_is_not_there_is_told_with_those_that_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(glob, "glob", lambda _: ["/dev/video7", "/dev/video2"])
    assert media.hint("/dev/video9", "v4l2", errno.ENOENT) == "; there are /dev/video2, /dev/video7"
    monkeypatch.setattr(glob, "glob", lambda _: [])
    assert "no camera" in media.hint("/dev/video9", "v4l2", errno.ENOENT)
    assert "video_file" in media.hint("notes.txt", "v4l2", errno.ENOTTY)
    assert "arecord -L" in media.hint("hw:7", "alsa", errno.EIO)
    assert "a host of that name" in media.hint("rtsp://nobody/x", "", errno.EIO)
    assert not media.hint("x.mp4", "", errno.ENOENT)


def test_what_is_no_backoff() -> None:
    retry: Any = 5
    with pytest.raises(InvalidArgument, match=r"retry is 5, it must be a Backoff"):
        camera(retry=retry)


@pytest.mark.parametrize("way", ["filter", "split"])
def test_a_predicate_that_is_awaited_would_always_be_true(way: str) -> None:
    with pytest.raises(InvalidArgument, match=r"coroutine function answer.*stream\.map\(call\)"):
        getattr(Graph().source(items([])), way)(answer)


@pytest.mark.anyio
@pytest.mark.parametrize("way", ["filter", "split"])
async def test_a_predicate_that_returns_an_awaitable_fails_the_item(way: str) -> None:
    graph = Graph()
    getattr(recording(graph, 3), way)(lambda data: answer(data), name="asked")
    await graph.run()
    assert graph.account().stages["asked"].failed == 3
    assert "returns an awaitable" in str(graph.errors()["asked"])


def test_streams_of_a_graph_are_joined_and_nothing_else() -> None:
    stream: Any = items([])
    with pytest.raises(InvalidArgument, match="streams of this graph"):
        Graph().join(stream)
    graph = Graph()
    with pytest.raises(InvalidArgument, match="streams of this graph"):
        graph.merge(stream)
    assert not graph.account().stages
