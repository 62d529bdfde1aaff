"""Devices, addresses and files by one name."""

from __future__ import annotations

from pathlib import Path

import pytest

from nnasync.errors import DeviceUnavailable, InvalidArgument, NNError
from nnasync.streaming import open_audio, open_video

pytest.importorskip("av", reason="the extra media is not installed")

pytestmark = [pytest.mark.anyio, pytest.mark.one_loop("only which source it is matters")]


@pytest.mark.parametrize(
    ("where", "error", "reason"),
    [
        (9, DeviceUnavailable, "/dev/video9"),
        ("/dev/video9", DeviceUnavailable, "/dev/video9"),
        ("nosuch://127.0.0.1:1", InvalidArgument, "Protocol not found"),
        (Path("/missing.mp4"), InvalidArgument, "/missing.mp4"),
        ("file:///is/missing%20too.mp4", InvalidArgument, "cannot read /is/missing too.mp4"),
    ],
)
async def test_video(where: int | str | Path, error: type[NNError], reason: str) -> None:
    async with open_video(where) as source:
        with pytest.raises(error, match=reason):
            await anext(source)


@pytest.mark.parametrize(
    ("where", "error", "reason"),
    [
        ("hw:99", DeviceUnavailable, "hw:99"),
        ("nosuch://127.0.0.1:1", InvalidArgument, "Protocol not found"),
        (Path(__file__), InvalidArgument, "test_opening.py"),
        (Path(__file__).as_uri(), InvalidArgument, "cannot read /.*test_opening.py"),
        ("plughw:CARD=C920.x,DEV=9", DeviceUnavailable, "plughw"),
    ],
)
async def test_audio(where: str | Path, error: type[NNError], reason: str) -> None:
    async with open_audio(where) as source:
        with pytest.raises(error, match=reason):
            await anext(source)


@pytest.mark.parametrize("where", ["typo.wav", "clips/typo", "/missing.flac", "file:///x/typo"])
async def test_a_file_that_is_not_there_is_no_microphone(where: str) -> None:
    with pytest.raises(InvalidArgument, match="is no file, and no name of a microphone"):
        open_audio(where)
