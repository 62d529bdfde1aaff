"""Inputs of a network from what the user names: files of arrays, sound or pictures, random, zeros.

Pictures are scaled to the height and width of the input, or keep their own where it leaves these
open; channels are last, or first as in most ONNX files. A quantized input takes their bytes as they
are (shifted by 128 if it is signed); a float input takes them between 0 and 1, or in a range that
is asked for. Sound is given as samples, cut or filled with zeros to the size of the input: the
first hop of it. An input that clearly takes something else (features that are computed of sound)
gets samples only if they are asked for.
"""

from __future__ import annotations

import io
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np

from nnasync import Port
from nnasync.cli.daemon_thread import in_daemon_thread
from nnasync.errors import InvalidArgument, NNError
from nnasync.hal import Array
from nnasync.streaming import audio_file, video_file
from nnasync.vision import PictureInput, prepare

_PICTURES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".webp", ".gif", ".tif", ".tiff"})
_SOUNDS = frozenset({".wav", ".flac", ".ogg", ".mp3"})
_ARRAYS = frozenset({".npy", ".npz", ".bin", ".raw"})


async def read_input(
    value: str,
    port: Port,
    *,
    seed: int = 0,
    rate_hz: int = 16000,
    span: tuple[float, float] = (0.0, 1.0),
    raw_samples: bool = False,
    tell: Callable[[str], object] = lambda text: None,
) -> Array:
    """The array for one input; `value` is "random", "zeros" or the name of a file.

    `tell` is called with what was left out of a file, or added. `raw_samples` gives samples of
    sound to any input of their number. Raises InvalidArgument for what cannot be read or does not
    fit.
    """
    if value == "zeros":
        return np.full(_shape(port), port.zero, port.dtype)
    if value == "random":
        return _random(port, np.random.default_rng(seed))
    path = Path(value)
    suffix = path.suffix.lower()
    _check_file(value, suffix, port)
    if suffix in _PICTURES:
        return await _picture(path, port, span)
    if suffix in _SOUNDS:
        return await _sound(path, port, rate_hz, tell, raw_samples=raw_samples)
    return _fitting(await _array(path, port), path, port)


def _check_file(value: str, suffix: str, port: Port) -> None:
    if suffix not in _PICTURES | _SOUNDS | _ARRAYS:
        raise InvalidArgument(
            f"input {port.name}: {value!r} is neither random, zeros, a file of an array "
            f"({', '.join(sorted(_ARRAYS))}), a picture ({', '.join(sorted(_PICTURES))}) nor sound "
            f"({', '.join(sorted(_SOUNDS))})"
        )
    if not os.path.exists(value):
        raise InvalidArgument(f"input {port.name}: cannot read {value}: No such file or directory")


def _shape(port: Port) -> tuple[int, ...]:
    """The shape of made-up values: one example where their number is open."""
    if port.is_settled:
        return port.shape
    if not port.shape or 0 in port.shape[1:]:
        raise InvalidArgument(
            f"input {port.name}: takes values of several shapes, {port}: give it some of a file, "
            f"as --input {port.name}=values.npy does"
        )
    return (1, *port.shape[1:])


def _random(port: Port, generator: np.random.Generator) -> Array:
    shape = _shape(port)
    if port.dtype.kind == "f":
        return generator.random(shape).astype(port.dtype)
    if port.dtype.kind == "b":
        return generator.integers(0, 2, shape).astype(port.dtype)
    limits = np.iinfo(port.dtype)
    high = limits.max if port.dtype.itemsize < 4 else 1
    low = limits.min if port.dtype.itemsize < 4 else 0
    return generator.integers(low, high, shape, port.dtype, endpoint=True)


async def _array(path: Path, port: Port) -> Array:
    try:
        # A pipe may have no writer: what waits for one must not keep the command from ending.
        data = await in_daemon_thread(path.read_bytes)
        if path.suffix.lower() in (".bin", ".raw"):
            return np.frombuffer(data, port.dtype)
        loaded = np.load(io.BytesIO(data), allow_pickle=False)
        return _member(loaded, path, port) if isinstance(loaded, np.lib.npyio.NpzFile) else loaded
    except NNError:
        raise
    except Exception as error:
        reason = getattr(error, "strerror", None) or error
        raise InvalidArgument(f"input {port.name}: cannot read {path}: {reason}") from error


def _member(loaded: Any, path: Path, port: Port) -> Array:
    name = port.name if port.name in loaded.files else loaded.files[0]
    if name != port.name and len(loaded.files) > 1:
        raise InvalidArgument(
            f"input {port.name}: {path} has only the arrays {', '.join(loaded.files)}"
        )
    member: Array = loaded[name]
    return member


def _fitting(array: Array, path: Path, port: Port) -> Array:
    """The array in the input's shape, where only dimensions of 1 differ or it had none (raw)."""
    raw = path.suffix.lower() in (".bin", ".raw")
    if not (port.is_settled or raw) and _is_taken(array, port):
        return array
    same = [n for n in array.shape if n != 1] == [n for n in port.shape if n != 1]
    if array.size != math.prod(port.shape) or not (raw or same):
        raise InvalidArgument(
            f"input {port.name}: {path} has shape {array.shape}, the network takes {port.shape}"
        )
    return array.reshape(port.shape)


def _is_taken(array: Array, port: Port) -> bool:
    """Returns whether an array is of a shape that an input of an open one takes."""
    if not port.shape:
        return True
    return len(array.shape) == len(port.shape) and all(
        wanted in (0, size) for size, wanted in zip(array.shape, port.shape, strict=True)
    )


async def _picture(path: Path, port: Port, span: tuple[float, float]) -> Array:
    is_open = 0 in port.shape
    target = PictureInput.of(port, size=(1, 1) if is_open else None)
    pixels: Literal["gray", "rgb24"] = "gray" if target.channels == 1 else "rgb24"
    size = None if is_open else (target.height, target.width)
    try:
        async with video_file(path, size=size, pixels=pixels, pace="fast") as frames:
            frame: Array = (await anext(frames)).data
    except (InvalidArgument, StopAsyncIteration) as error:
        reason = str(error).rpartition(": ")[2] or "there is none in it"
        raise InvalidArgument(
            f"input {port.name}: cannot read a picture from {path}: {reason}"
        ) from error
    height, width = frame.shape[:2]
    values = prepare(frame, port, size=(height, width) if is_open else None).input
    if port.dtype.kind != "f":
        return values
    low, high = span
    scaled: Array = (values * (high - low) + low).astype(port.dtype)
    return scaled


async def _sound(
    path: Path, port: Port, rate_hz: int, tell: Callable[[str], object], *, raw_samples: bool
) -> Array:
    size = math.prod(port.shape)
    if port.dtype.kind not in "fiu" or not size:
        raise InvalidArgument(
            f"input {port.name}: sound fits no input of type {port.dtype} and shape {port.shape}"
        )
    if not (raw_samples or _takes_samples(port)):
        raise InvalidArgument(
            f"input {port.name}: sound is given as its samples, and {list(port.shape)} of "
            f"{port.dtype} looks like features that are computed of them, a spectrogram for "
            "example; give those as .npy, or the samples all the same with --raw-samples"
        )
    async with audio_file(path, rate_hz=rate_hz, hop=size, pace="fast") as hops:
        samples, count = np.zeros(size, np.float32), 0
        async for hop in hops:
            samples = samples if count else hop.data
            count += 1
    tell(f"input {port.name}: hop 1 of the {count} of {path}, with {size} samples each")
    return _typed(samples.reshape(port.shape), port)


def _takes_samples(port: Port) -> bool:
    """Returns whether an input may take samples: one row, of a type that holds them."""
    return sum(n > 1 for n in port.shape) <= 1 and port.dtype.itemsize > 1


def _typed(samples: Array, port: Port) -> Array:
    """Samples between -1 and 1 as the input has them; integers without a scale use all of it."""
    if port.scale or port.dtype.kind == "f":
        return port.quantize(samples)
    limits = np.iinfo(port.dtype)
    clipped = np.clip(np.rint(samples * limits.max), limits.min, limits.max)
    return np.asarray(clipped, port.dtype)
