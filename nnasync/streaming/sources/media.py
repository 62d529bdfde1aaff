"""What the sources with PyAV share: importing it, opening with it, and its errors as ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from nnasync.errors import DeviceUnavailable, InvalidArgument, NNError

__all__ = ["import_av", "opened"]


def import_av() -> Any:
    """The PyAV package; where it is missing, InvalidArgument with the line that installs it."""
    try:
        import av
    except ImportError as error:
        raise InvalidArgument(
            "reading this medium needs PyAV: python -m pip install 'nnasync[media]'"
        ) from error
    av.logging.set_level(None)
    return av


@contextmanager
def opened(name: str, kind: str, *, device: str = "", **options: Any) -> Iterator[tuple[Any, Any]]:
    """The container `name` and its first stream of `kind`, decoded by one thread.

    What cannot be opened or decoded raises InvalidArgument for a file and DeviceUnavailable for a
    `device`, which is the name of the device's format.
    """
    av = import_av()
    failure: type[NNError] = DeviceUnavailable if device else InvalidArgument
    try:
        with av.open(name, format=device or None, **options) as container:
            stream = next((s for s in container.streams if s.type == kind), None)
            if stream is None:
                raise failure(f"{name} has no {kind} stream")
            stream.codec_context.thread_count = 1
            yield container, stream
    except (av.FFmpegError, OSError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise failure(f"cannot read {kind} from {name}: {reason}") from error
