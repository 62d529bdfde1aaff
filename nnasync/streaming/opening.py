"""One way to whatever gives pictures or sound: a device, an address or a file."""

from __future__ import annotations

import os
import re
from urllib.parse import unquote, urlsplit

from nnasync._core.arguments import path_of
from nnasync.errors import InvalidArgument
from nnasync.streaming.devices import camera, microphone
from nnasync.streaming.network import network
from nnasync.streaming.sources import LiveSource, RecordedSource, audio_file, video_file
from nnasync.streaming.sources.pictures import PixelFormat, Size


def open_video(
    where: int | str | os.PathLike[str], *, size: Size | None = None, pixels: PixelFormat = "gray"
) -> LiveSource | RecordedSource:
    """The pictures of a camera (0, "/dev/video0"), of an address ("rtsp://..."), or of a file.

    What lies below /dev/v4l is a camera, too. See `camera`, `network` and `video_file`: they have
    more options, and say what reading raises.
    """
    if isinstance(where, int):
        return camera(where, size=size, pixels=pixels)
    name = path_of("where", where)
    if name.isdecimal():
        return camera(int(name), size=size, pixels=pixels)
    if re.match(r"/dev/(video\d+$|v4l/)", name):
        return camera(name, size=size, pixels=pixels)
    if _is_address(name):
        return network(name).video(size=size, pixels=pixels)
    return video_file(_path(name), size=size, pixels=pixels)


def open_audio(
    where: str | os.PathLike[str] = "default", *, rate_hz: int = 16000, hop: int = 160
) -> LiveSource | RecordedSource:
    """The sound of a microphone ("default", "hw:1"), of an address, or of a file that is there.

    See `microphone`, `network` and `audio_file`: they have more options, and say what reading
    raises. Raises InvalidArgument for the name of a file that is not there.
    """
    name = path_of("where", where)
    if _is_address(name):
        return network(name).audio(rate_hz=rate_hz, hop=hop)
    path = _path(name)
    if os.path.exists(path):
        return audio_file(path, rate_hz=rate_hz, hop=hop)
    # ALSA's names are such as "hw:CARD=C920,DEV=0"; it would only say "Input/output error".
    if path != name or os.sep in name or re.fullmatch(r"[^:,=]+\.\w{1,5}", name):
        raise InvalidArgument(f"{path} is no file, and no name of a microphone")
    return microphone(name, rate_hz=rate_hz, hop=hop)


def _is_address(name: str) -> bool:
    return "://" in name and not name.startswith("file://")


def _path(name: str) -> str:
    """The path of a file, which may be written as "file:///clips/digits.mp4"."""
    return unquote(urlsplit(name).path) if name.startswith("file://") else name
