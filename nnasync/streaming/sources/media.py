"""What the sources with PyAV share: importing it, opening with it, and its errors as ours."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from typing import Any

from nnasync.errors import DeviceUnavailable, InvalidArgument, NNError
from nnasync.streaming.blocking_reader import Reading, readable


def import_av() -> Any:
    """The PyAV package; where it is missing, InvalidArgument with the line that installs it."""
    try:
        import av
    except ImportError as error:
        raise InvalidArgument(
            "reading this medium needs PyAV: python -m pip install 'nnasync[media]'"
        ) from error
    return av


def end_of(frame: Any) -> int | None:
    """The media time in nanoseconds at which a frame of PyAV ends: of sound, its last sample's."""
    if frame.pts is None or frame.time_base is None:
        return None
    at_ns: int = round(frame.pts * Fraction(frame.time_base) * 1_000_000_000)
    samples = getattr(frame, "samples", 0)
    return at_ns + (samples * 1_000_000_000 // frame.sample_rate if samples else 0)


def _of_device(message: str, _cause: BaseException | None = None) -> NNError:
    return DeviceUnavailable(message)


def _of_file(message: str, _cause: BaseException | None = None) -> NNError:
    return InvalidArgument(message)


@contextmanager
def opened(
    name: str,
    kind: str,
    reading: Reading,
    *,
    device: str = "",
    options: dict[str, str] | None = None,
) -> Iterator[tuple[Any, Any]]:
    """The container `name` and its first stream of `kind`, decoded by one thread.

    What cannot be opened or decoded raises InvalidArgument for a file and DeviceUnavailable for a
    `device`, which is the name of the device's format; so does what sends nothing for longer than
    `reading` allows.
    """
    failure = _of_device if device else _of_file
    given = _limited(name, options or {}, reading)
    with opened_container(
        name, reading, device=device, options=given, failure=failure
    ) as container:
        stream = next((s for s in container.streams if s.type == kind), None)
        if stream is None:
            raise failure(f"{reading.name} has no {kind} stream", None)
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
    """The container `name`, which is called as `reading` is.

    Errors of FFmpeg become what `failure` makes of a message and the error; what sends nothing for
    longer than `reading` allows raises DeviceUnavailable. PyAV's own error is their cause, but not
    for an address: it would show the password.
    """
    av = import_av()
    limits = (reading.open_timeout_s, reading.read_timeout_s)
    try:
        with (
            readable(name, reading) as source,
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
            failed = failure(f"cannot read {reading.name}: {reason}", error)
        if "://" not in name:
            raise failed from error
    else:
        return
    # Raised behind the handler, it has no context either.
    raise failed


def _limited(name: str, options: dict[str, str], reading: Reading) -> dict[str, str]:
    """The options with a limit for each read of the network; PyAV's own does not cover probing."""
    if "://" not in name or reading.read_timeout_s is None:
        return options
    return {"rw_timeout": str(round(reading.read_timeout_s * 1e6)), **options}
