"""Cameras and microphones of machines that lie in folders."""

from __future__ import annotations

from pathlib import Path

from nnasync.machine.peripherals import Peripheral, cameras, microphones
from tests.machine.rig import machine_in


def test_none_where_the_system_tells_of_none(tmp_path: Path) -> None:
    assert cameras(str(tmp_path)) == []
    assert microphones(str(tmp_path)) == []


def test_cameras_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    files = {f"sys/class/video4linux/video{number}/name": f"c{number}" for number in (10, 2)}
    files |= {"sys/class/video4linux/radio0/name": "no camera", "dev/video2": ""}
    assert cameras(machine_in(tmp_path, files)) == [
        Peripheral("camera", "c2", "/dev/video2", True),
        Peripheral("camera", "c10", "/dev/video10", False),
    ]


def test_microphones_are_what_records(tmp_path: Path) -> None:
    table = "\n".join(
        [
            "00-00: ALC257 Analog : ALC257 Analog : playback 1 : capture 1",
            "00-03: HDMI 0 : HDMI 0 : playback 1",
            "01-00: USB Audio : USB Audio : capture 1",
            "nonsense capture",
        ]
    )
    root = machine_in(tmp_path, {"proc/asound/pcm": table, "dev/snd/pcmC1D0c": ""})
    assert microphones(root) == [
        Peripheral("microphone", "ALC257 Analog", "hw:0,0", False),
        Peripheral("microphone", "USB Audio", "hw:1,0", True),
    ]
