"""What around a program stands in the way, and what is merely worth knowing."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from nnasync.machine import (
    BusyProcess,
    FolderFacts,
    Installation,
    Listener,
    Obstacle,
    PackageFacts,
    Peripheral,
    Surroundings,
    find_obstacles_around,
)

NUMPY = PackageFacts("numpy", ">=2.0", (), "2.1", True)
INSTALLED = Installation((3, 11), "cpython", (NUMPY,))
CAMERA = Peripheral("camera", "a webcam", "/dev/video0", True)
MICROPHONE = Peripheral("microphone", "a headset", "hw:0,0", True)
FOLDER = FolderFacts("cache", "/var/cache/app", True, free_bytes=1 << 30)
WELL = Surroundings(INSTALLED, "uvloop", (FOLDER,), (), (), (CAMERA,), (MICROPHONE,))


def with_folder(**changed: Any) -> dict[str, Any]:
    return {"folders": (msgspec.structs.replace(FOLDER, **changed),)}


def found(changed: dict[str, Any]) -> tuple[Obstacle, ...]:
    return find_obstacles_around(msgspec.structs.replace(WELL, **changed))


def test_where_all_is_well() -> None:
    assert found({}) == ()


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"installation": Installation((3, 10), "cpython", (NUMPY,))}, "this is Python 3.10"),
        ({"installation": Installation((3, 11), "pypy", (NUMPY,))}, "the interpreter is pypy"),
        (
            {
                "installation": Installation(
                    (3, 11), "cpython", (PackageFacts("a", ">=2", (), "", False),)
                )
            },
            "of a nothing is there, and >=2 is wanted",
        ),
        (with_folder(problem="Read-only file system"), "cannot be written: Read-only"),
        (with_folder(is_ours=False), "belongs to another user"),
        (with_folder(free_bytes=1 << 20), "has 1 MiB left"),
        ({"busy": (BusyProcess(7, "a", 0.2), BusyProcess(8, "b", 0.1))}, "0.30 cores: a (7): 0.20"),
        ({"busy": (BusyProcess(7, "a", 1.0),) * 5}, "and 2 more"),
        ({"cameras": (msgspec.structs.replace(CAMERA, is_readable=False),)}, "camera /dev/video0"),
    ],
)
def test_what_hinders(changed: dict[str, Any], told: str) -> None:
    (obstacle,) = found(changed)
    assert told in obstacle.what
    assert obstacle.hinders
    assert obstacle.effect
    assert obstacle.mend


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"installation": Installation((3, 99), "cpython", (NUMPY,))}, "3.99, which is newer"),
        ({"installation": Installation((3, 11), "cpython", ())}, "is not installed"),
        ({"cameras": ()}, "no camera"),
        ({"microphones": ()}, "no microphone"),
        ({"reads_media": False}, "nothing is there to read cameras"),
        (
            {"listeners": (Listener("port", "0.0.0.0:8000", is_open=True, pid=7),)},
            "at 0.0.0.0:8000",
        ),
        (
            {"listeners": (Listener("device service", "/a.socket", is_alive=False),)},
            "nobody listens",
        ),
    ],
)
def test_what_is_worth_knowing(changed: dict[str, Any], told: str) -> None:
    (obstacle,) = found(changed)
    assert told in obstacle.what
    assert not obstacle.hinders


@pytest.mark.parametrize(
    "changed",
    [
        {"busy": (BusyProcess(7, "a", 0.2),)},
        {"listeners": (Listener("port", "127.0.0.1:8000", pid=7),)},
        {"cameras": (CAMERA, CAMERA)},
    ],
)
def test_what_is_not_told(changed: dict[str, Any]) -> None:
    assert found(changed) == ()
