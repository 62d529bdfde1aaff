"""Inputs of a network from what the user names: files of arrays, sound or pictures, random, zeros.

Pictures are scaled to the input's height and width. A quantised input takes their bytes as they are
(shifted by 128 if it is signed); a float input takes them between 0 and 1, or in a range that is
asked for. Sound is cut, or filled with zeros, to the size of the input.
"""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any, Literal

import anyio
import numpy as np

from nnasync.errors import InvalidArgument, NNError
from nnasync.execution import Port
from nnasync.hal import Array
from nnasync.streaming import audio_file, video_file

__all__ = ["read_input"]

_PICTURES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".webp", ".gif", ".tif", ".tiff"})
_SOUNDS = frozenset({".wav", ".flac", ".ogg", ".mp3"})


async def read_input(
    value: str,
    port: Port,
    *,
    seed: int = 0,
    rate_hz: int = 16000,
    span: tuple[float, float] = (0.0, 1.0),
) -> Array:
    """The array for one input; `value` is "random", "zeros" or the name of a file.

    Raises InvalidArgument for what cannot be read or does not fit.
    """
    if value == "zeros":
        return np.full(port.shape, port.zero_point, port.dtype)
    if value == "random":
        return _random(port, np.random.default_rng(seed))
    path = Path(value)
    suffix = path.suffix.lower()
    if suffix in _PICTURES:
        return await _picture(path, port, span)
    if suffix in _SOUNDS:
        return await _sound(path, port, rate_hz)
    if suffix in (".npy", ".npz", ".bin", ".raw"):
        return _fitting(await _array(path, port), path, port)
    raise InvalidArgument(
        f"input {port.name}: {value!r} is neither random, zeros, a .npy, .npz, .bin or .raw file, "
        f"a picture ({', '.join(sorted(_PICTURES))}) nor sound ({', '.join(sorted(_SOUNDS))})"
    )


def _random(port: Port, generator: np.random.Generator) -> Array:
    if port.dtype.kind == "f":
        return generator.random(port.shape).astype(port.dtype)
    if port.dtype.kind == "b":
        return generator.integers(0, 2, port.shape).astype(port.dtype)
    limits = np.iinfo(port.dtype)
    high = limits.max if port.dtype.itemsize < 4 else 1
    low = limits.min if port.dtype.itemsize < 4 else 0
    return generator.integers(low, high, port.shape, port.dtype, endpoint=True)


async def _array(path: Path, port: Port) -> Array:
    try:
        data = await anyio.Path(path).read_bytes()
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
    same = [n for n in array.shape if n != 1] == [n for n in port.shape if n != 1]
    if array.size != math.prod(port.shape) or not (raw or same):
        raise InvalidArgument(
            f"input {port.name}: {path} has shape {array.shape}, the network takes {port.shape}"
        )
    return array.reshape(port.shape)


async def _picture(path: Path, port: Port, span: tuple[float, float]) -> Array:
    if len(port.shape) != 4 or port.shape[0] != 1 or port.shape[3] not in (1, 3):
        raise InvalidArgument(
            f"input {port.name}: a picture needs an input [1, height, width, 1 or 3], "
            f"the network takes {port.shape}"
        )
    _, height, width, channels = port.shape
    pixels: Literal["gray", "rgb24"] = "gray" if channels == 1 else "rgb24"
    async with video_file(path, size=(height, width), pixels=pixels, pace="fast") as frames:
        frame: Array = (await anext(frames)).data.reshape(port.shape)
    if port.dtype == np.uint8:
        return frame
    if port.dtype == np.int8:
        return (frame ^ 0x80).view(np.int8)
    low, high = span
    scaled: Array = (frame * ((high - low) / 255.0) + low).astype(port.dtype)
    return scaled


async def _sound(path: Path, port: Port, rate_hz: int) -> Array:
    size = math.prod(port.shape)
    if port.dtype.kind not in "fi" or not size:
        raise InvalidArgument(
            f"input {port.name}: sound fits no input of type {port.dtype} and shape {port.shape}"
        )
    async with audio_file(path, rate_hz=rate_hz, hop=size, pace="fast") as hops:
        try:
            samples = (await anext(hops)).data.reshape(port.shape)
        except StopAsyncIteration:
            samples = np.zeros(port.shape, np.float32)
    if port.dtype.kind == "i":
        limits = np.iinfo(port.dtype)
        samples = np.clip(np.rint(samples * limits.max), limits.min, limits.max)
    return np.asarray(samples, port.dtype)
