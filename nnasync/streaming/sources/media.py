"""What the sources with PyAV share: importing it, opening with it, and its errors as ours."""

from __future__ import annotations

import errno
import glob
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from nnasync.errors import DeviceUnavailable, InvalidArgument, NNError
from nnasync.streaming.blocking_reader import Reading, readable
from nnasync.streaming.sources.alsa import find_configuration


def import_av() -> Any:
    """Returns the PyAV package.

    Raises InvalidArgument with the install command if it is missing.
    """
    try:
        import av
    except ImportError as error:
        raise InvalidArgument(
            "this medium needs PyAV, which is not installed: pip install 'nnasync[media]'"
        ) from error
    return av


class Scaler:
    """PyAV's scaler on the thread that calls it: in newer versions it has a thread for each core.

    Many streams would have many times as many threads as there are cores, and one is decoded by one
    thread, too.
    """

    def __init__(self) -> None:
        av = import_av()
        self._reformatter = av.video.reformatter.VideoReformatter()
        self._options = {"threads": 1}
        try:
            self._reformatter.reformat(av.VideoFrame(2, 2, "gray"), **self._options)
        except TypeError:
            self._options = {}

    def scaled(self, frame: Any, width: int, height: int, pixels: str) -> Any:
        """Returns the frame in this size and format; the same frame if it has them already."""
        return self._reformatter.reformat(frame, width, height, pixels, **self._options)


def end_of(frame: Any) -> int | None:
    """Returns the media time in nanoseconds at which a frame ends; None if it tells no time."""
    base = frame.time_base
    if frame.pts is None or not base:
        return None
    at_ns: int = (2_000_000_000 * frame.pts * base.numerator // base.denominator + 1) // 2
    samples = getattr(frame, "samples", 0)
    return at_ns + (samples * 1_000_000_000 // frame.sample_rate if samples else 0)


def of_device(message: str, _cause: BaseException | None = None) -> NNError:
    """Returns DeviceUnavailable, since the device may be there again later."""
    return DeviceUnavailable(message)


def _of_file(message: str, _cause: BaseException | None = None) -> NNError:
    return InvalidArgument(message)


@contextmanager
def opened(
    name: str,
    kind: str,
    reading: Reading,
) -> Iterator[tuple[Any, Any]]:
    """The file `name` and its first stream of `kind`, decoded by one thread.

    What cannot be opened or decoded raises InvalidArgument; what sends nothing for longer than
    `reading` allows raises DeviceUnavailable.
    """
    limited = _limited(name, reading)
    with opened_container(name, reading, options=limited, failure=_of_file) as container:
        stream = next((s for s in container.streams if s.type == kind), None)
        if stream is None:
            raise InvalidArgument(f"{reading.name} has no {kind} stream")
        stream.codec_context.thread_count = 1
        reading.progressed(is_open=True)
        yield container, stream


@contextmanager
def opened_container(
    name: str,
    reading: Reading,
    *,
    device: str = "",
    options: dict[str, str],
    failure: Callable[[str, BaseException | None], NNError],
) -> Iterator[Any]:
    """The container `name`, which is called as `reading` is; `device` is its format if it is one.

    Errors of FFmpeg become what `failure` makes of a message and the error; what sends nothing for
    longer than `reading` allows raises DeviceUnavailable. PyAV's own error is their cause, but not
    for an address: it would show the password.
    """
    av = import_av()
    if device == "alsa":
        find_configuration()
    limits = (reading.open_timeout_s, reading.read_timeout_s)
    try:
        with (
            # A second descriptor of a device would keep its number from it when it comes back.
            nullcontext(name) if device else readable(name, reading) as source,
            av.open(
                source,
                format=device or None,
                options=options,
                timeout=None if limits == (None, None) else limits,
            ) as container,
        ):
            yield container
    except (av.FFmpegError, OSError) as error:
        if isinstance(error, av.error.ExitError | av.error.TimeoutError) and reading.has_limit:
            failed: NNError = reading.overdue()
        else:
            reason = getattr(error, "strerror", None) or type(error).__name__
            told = hint(name, device, error.errno)
            failed = failure(f"cannot read {reading.name}: {reason}{told}", error)
        if "://" not in name:
            raise failed from error
    else:
        return
    # Raised behind the handler, it has no context either.
    raise failed


def hint(name: str, device: str, number: int | None) -> str:
    """Returns a hint for an error of the system: which devices there are, or what is missing."""
    if device == "alsa":
        return "; `arecord -L` lists the names of microphones"
    if device and number == errno.ENOTTY:
        return "; it is no camera, and video_file() is for files"
    if device and number == errno.ENOENT:
        cameras = sorted(glob.glob("/dev/video*"))
        return (
            f"; there are {', '.join(cameras)}" if cameras else "; there is no camera (/dev/video*)"
        )
    if "://" in name and number == errno.EIO:
        return "; is there a host of that name?"
    return ""


def _limited(name: str, reading: Reading) -> dict[str, str]:
    """Returns FFmpeg options that limit each read of the network.

    PyAV's own limit excludes probing.
    """
    if "://" not in name or reading.read_timeout_s is None:
        return {}
    return {"rw_timeout": str(round(reading.read_timeout_s * 1e6))}
