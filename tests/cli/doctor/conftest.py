"""A machine in good health, in a folder, that `nnasync doctor` examines; tests take parts away."""

from __future__ import annotations

import functools
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from nnasync.cli import doctor, main
from nnasync.machine import facts, kept, read_facts, read_surroundings
from tests.machine.rig import costs, machine_in

HEALTHY = {
    "proc/cpuinfo": "model name\t: Some Processor 9000\nflags\t\t: fpu avx2 avx_vnni",
    "proc/self/cgroup": "0::/",
    "proc/stat": "cpu  60 0 20 900 0 5 5 0 0 0",
    "proc/loadavg": "0.10 0.10 0.10 1/100 4711",
    "proc/asound/pcm": "00-00: USB Audio : USB Audio : capture 1",
    "sys/fs/cgroup/cpu.max": "max 100000",
    "sys/class/video4linux/video0/name": "a webcam",
    "sys/devices/system/clocksource/clocksource0/current_clocksource": "tsc",
    "dev/video0": "",
    "dev/snd/pcmC0D0c": "",
    "dev/shm/there": "",
}


class Patient:
    """A machine that is examined: what is told of it, and the exit code."""

    def __init__(
        self, root: Path, patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.root, self.patch, self._capsys = root, patch, capsys
        self.wait: Callable[[], object] = lambda: None
        self.code = 0

    def set(self, files: dict[str, str]) -> None:
        """Replace files of the machine."""
        machine_in(self.root, files)

    def examined(self, *arguments: str) -> dict[str, Any]:
        """What `nnasync doctor --json` says."""
        self.code = main(["doctor", "--json", *arguments])
        told: dict[str, Any] = msgspec.json.decode(self._capsys.readouterr().out)
        return told

    def obstacles(self, *arguments: str) -> list[str]:
        """What stands in the way."""
        found = self.examined(*arguments)["obstacles"]
        assert all(each["effect"] and each["mend"] for each in found)
        return [each["what"] for each in found if each["hinders"]]

    def remarks(self) -> list[str]:
        """What is worth knowing."""
        return [each["what"] for each in self.examined()["obstacles"] if not each["hinders"]]


@pytest.fixture
def patient(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Patient:
    root = tmp_path / "machine"
    made = Patient(Path(machine_in(root, HEALTHY)), monkeypatch, capsys)
    monkeypatch.setenv("NNASYNC_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr(kept, "measured", costs)
    monkeypatch.setattr(platform, "release", lambda: "6.12.1")
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(facts, "affinity", lambda: frozenset(range(4)))
    monkeypatch.setattr(facts, "has_time_slices", lambda: True)
    monkeypatch.setattr(facts, "_capacity", lambda folder: 1 << 30)
    monkeypatch.setattr(facts, "_limit", lambda name: 4096)
    monkeypatch.setattr(doctor, "read_facts", functools.partial(read_facts, str(root)))
    look = functools.partial(read_surroundings, root=str(root))
    monkeypatch.setattr(doctor, "read_surroundings", lambda caches: look(caches, wait=made.wait))
    return made
