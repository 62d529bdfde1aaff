"""The demo's clips as the files that Chromium takes for a camera and a microphone."""

from __future__ import annotations

import wave
from pathlib import Path

import av
import numpy as np

from nnasync.cli import demo_data
from nnasync.cli.live.sources import on_a_wall
from nnasync.hal import Array

WIDTH, HEIGHT = 320, 240
RATE_HZ = 48000


def write_camera(path: Path, frames: int) -> None:
    """The first frames of the clip of digits on a gray wall, as a Y4M file of 30 a second."""
    chroma = np.full(WIDTH * HEIGHT // 2, 128, np.uint8).tobytes()
    with av.open(str(demo_data.path("digits.mp4"))) as clip, path.open("wb") as file:
        file.write(f"YUV4MPEG2 W{WIDTH} H{HEIGHT} F30:1 Ip A1:1 C420jpeg\n".encode())
        for frame in clip.decode(video=0):
            file.write(b"FRAME\n" + _picture(frame.to_ndarray(format="gray")).tobytes() + chroma)
            frames -= 1
            if not frames:
                break


def _picture(gray: Array) -> Array:
    """A frame of the clip twice as large, with what is around it."""
    wall = on_a_wall(gray)
    large = wall.repeat(2, axis=0).repeat(2, axis=1)[8:-8]
    picture = np.full((HEIGHT, WIDTH), wall[0, 0], np.uint8)
    picture[:, 32:-32] = large
    return picture


def write_microphone(path: Path, seconds: float) -> None:
    """The beginning of the clip of words as a WAV file."""
    resampler = av.AudioResampler("s16", "mono", RATE_HZ)
    left = round(seconds * RATE_HZ)
    with av.open(str(demo_data.path("words.flac"))) as clip, wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE_HZ)
        for frame in clip.decode(audio=0):
            for resampled in resampler.resample(frame):
                samples = resampled.to_ndarray().reshape(-1)[: max(left, 0)]
                file.writeframes(samples.tobytes())
                left -= len(samples)
            if left <= 0:
                break
