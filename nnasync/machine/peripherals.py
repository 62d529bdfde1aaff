"""Cameras and microphones that the system tells of, and whether this user may read them."""

from __future__ import annotations

import os
import re
from typing import Literal

from nnasync.hal import Struct
from nnasync.machine.facts import text_of

_CAMERAS = "sys/class/video4linux"
_SOUNDS = "proc/asound/pcm"
_SOUND = re.compile(r"(\d+)-(\d+): ([^:]*)")


class Peripheral(Struct, frozen=True):
    """A camera or a microphone: the name of its maker, and what `open_video` or `open_audio` take.

    `is_readable` says whether this user may open it.
    """

    kind: Literal["camera", "microphone"]
    name: str
    address: str
    is_readable: bool


def cameras(root: str = "/") -> list[Peripheral]:
    """Returns Video4Linux's devices in the order of their numbers; a camera may have several."""
    try:
        names = os.listdir(os.path.join(root, _CAMERAS))
    except OSError:
        return []
    numbers = sorted(int(name[5:]) for name in names if re.fullmatch(r"video\d{1,6}", name))
    return [_camera(root, number) for number in numbers]


def microphones(root: str = "/") -> list[Peripheral]:
    """Returns the devices that ALSA can record from, in the order of their cards."""
    found = []
    for line in text_of(root, _SOUNDS).splitlines():
        named = _SOUND.match(line)
        if named is not None and "capture" in line:
            card, device = int(named[1]), int(named[2])
            path = os.path.join(root, f"dev/snd/pcmC{card}D{device}c")
            address = f"hw:{card},{device}"
            may_read = os.access(path, os.R_OK)
            found.append(Peripheral("microphone", named[3].strip(), address, may_read))
    return found


def _camera(root: str, number: int) -> Peripheral:
    name = text_of(root, _CAMERAS, f"video{number}", "name") or "a camera"
    path = os.path.join(root, f"dev/video{number}")
    return Peripheral("camera", name, f"/dev/video{number}", os.access(path, os.R_OK | os.W_OK))
