"""Files of pictures, video and sound, decoded whole (PyAV, the extra `media`)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from nnasync.errors import InvalidArgument
from nnasync.hal import Array
from nnasync.streaming.sources.media import import_av


def decoded_picture(file: Path) -> Array:
    """The pixels uint8 [height, width, 3] of a picture; raises InvalidArgument for what is none."""
    av = import_av()
    try:
        with av.open(str(file)) as container:
            frame = next(container.decode(video=0))
            pixels: Array = frame.to_ndarray(format="rgb24")
    except (av.FFmpegError, StopIteration, IndexError, OSError, ValueError) as error:
        raise InvalidArgument(f"{file} is no picture that can be decoded: {error}") from error
    return pixels


def gray_frames(file: Path) -> list[Array]:
    """The frames of a video, uint8 [height, width]; raises InvalidArgument for what is none."""
    av = import_av()
    try:
        with av.open(str(file)) as container:
            return [frame.to_ndarray(format="gray") for frame in container.decode(video=0)]
    except (av.FFmpegError, IndexError, OSError, ValueError) as error:
        raise InvalidArgument(f"{file} is no video that can be decoded: {error}") from error


def samples_of(file: Path) -> Array:
    """The samples of the first channel, float32 from -1 to 1, of a file of 16-bit sound."""
    av = import_av()
    try:
        with av.open(str(file)) as container:
            parts = [frame.to_ndarray()[0] for frame in container.decode(audio=0)]
    except (av.FFmpegError, IndexError, OSError, ValueError) as error:
        raise InvalidArgument(f"{file} is no sound that can be decoded: {error}") from error
    samples: Array = np.concatenate(parts).astype(np.float32) / np.float32(32768)
    return samples
