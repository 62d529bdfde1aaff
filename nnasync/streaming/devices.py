"""Cameras and microphones of this machine, which are opened again when they come back.

A device may be taken away while it is read: a cable is pulled, a hub loses power, a headset goes to
sleep. The system tells so by an error of the next read, or by nothing at all. Both end the opening;
the next one is tried after a wait, as for an address in the network, and by the same code.

The system numbers cameras and sound cards as they come. What comes back while its old file is still
open, or after another device, has another number: names that belong to the device itself, below
/dev/v4l/by-id and as "hw:CARD=...", stay.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable

from nnasync._core.arguments import check_kind, check_positive, check_whole, path_of
from nnasync.streaming.blocking_reader import DEVICE_PATIENCE_S, Reading
from nnasync.streaming.network.backoff import Backoff
from nnasync.streaming.network.connection import Address
from nnasync.streaming.network.keeper import SourceEvent
from nnasync.streaming.network.stream import NetworkStream
from nnasync.streaming.sources.pictures import PixelFormat, Size
from nnasync.streaming.sources.source import LiveSource

_RETRY = Backoff()


def camera(
    index: int | str | os.PathLike[str] = 0,
    *,
    size: Size | None = None,
    pixels: PixelFormat = "gray",
    rate_hz: int = 30,
    retry: Backoff | None = _RETRY,
    open_timeout_s: float | None = DEVICE_PATIENCE_S,
    read_timeout_s: float | None = DEVICE_PATIENCE_S,
    on_event: Callable[[SourceEvent], object] | None = None,
    uniform: Callable[[], float] = random.random,
) -> LiveSource:
    """The frames of the camera /dev/video`index`, as `video_file` has them; or of one by its path.

    Reading raises DeviceUnavailable where there is no such camera, or it does not open within
    `open_timeout_s`. One that was open and is taken away, or delivers nothing for `read_timeout_s`,
    is opened again as `retry` says; None raises DeviceUnavailable then. No limit waits for ever.

    `on_event` hears on the loop what becomes of the camera, items have the number of its opening as
    their `epoch`, and `uniform` gives random numbers from 0 to 1 for the waits. In a graph,
    pictures that were not taken in time are dropped in the account of the source, and broken ones
    failed. A camera that comes back may have another number; its path below /dev/v4l/by-id stays.
    """
    path = camera_path(index)
    check_positive("rate_hz", rate_hz)
    address = _device(path, "v4l2", {"framerate": str(rate_hz)}, open_timeout_s, read_timeout_s)
    return NetworkStream(address, retry, on_event, uniform).video(size=size, pixels=pixels)


def microphone(
    name: str = "default",
    *,
    rate_hz: int = 16000,
    hop: int = 160,
    retry: Backoff | None = _RETRY,
    open_timeout_s: float | None = DEVICE_PATIENCE_S,
    read_timeout_s: float | None = DEVICE_PATIENCE_S,
    on_event: Callable[[SourceEvent], object] | None = None,
    uniform: Callable[[], float] = random.random,
) -> LiveSource:
    """The hops of an ALSA capture device; what is taken away comes back as `camera` says.

    A card that comes back may have another number; its name, as in "hw:CARD=C920", stays.

    PyAV's wheels look for ALSA's configuration where no machine has it. So before the device is
    opened, this sets `ALSA_CONFIG_DIR` and `ALSA_CONFIG_PATH`, for the whole process, to
    /usr/share/alsa and its alsa.conf, if they are there and the variables are not set. ALSA itself
    writes to stderr about a device that it cannot open.
    """
    check_kind("name", name, str, 'a str, such as "default"')
    address = _device(name, "alsa", {}, open_timeout_s, read_timeout_s)
    return NetworkStream(address, retry, on_event, uniform).audio(rate_hz=rate_hz, hop=hop)


def camera_path(index: object) -> str:
    """The file of a camera, by its number or its path; raises InvalidArgument for what is none."""
    if isinstance(index, str | os.PathLike):
        return path_of("index", index)
    check_whole("index", index, 0)
    return f"/dev/video{index}"


def _device(
    name: str,
    format: str,
    options: dict[str, str],
    open_timeout_s: float | None,
    read_timeout_s: float | None,
) -> Address:
    # Only checks the limits: each opening has a reading of its own.
    Reading(name, open_timeout_s=open_timeout_s, read_timeout_s=read_timeout_s)
    return Address(
        url=name,
        name=name,
        options=options,
        is_played=False,
        open_timeout_s=open_timeout_s,
        read_timeout_s=read_timeout_s,
        format=format,
    )
