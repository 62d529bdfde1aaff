"""Twelve faults made on purpose: `nnasync doctor` finds each, and nothing else beside it.

Those that a process can have for real are made for real in a child, further down.
"""

from __future__ import annotations

import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from nnasync._core import timeslice
from nnasync.cli import doctor
from nnasync.machine import facts, installation, read_surroundings
from tests.cli.doctor.conftest import Patient
from tests.installing import install, installing

ENGINES = ("ai_edge_litert", "openvino", "onnxruntime")


def test_nothing_stands_in_the_way_of_a_machine_in_good_health(patient: Patient) -> None:
    assert patient.obstacles() == []
    assert patient.code == 0


def test_an_extra_that_is_missing(patient: Patient) -> None:
    pytest.importorskip("ai_edge_litert", reason="another engine has to be there")
    patient.patch.setitem(sys.modules, "openvino", None)
    assert any(told.startswith("openvino-cpu is not there") for told in patient.remarks())
    assert patient.code == 0


def test_engines_that_are_all_missing_stand_in_the_way(patient: Patient) -> None:
    for name in ENGINES:
        patient.patch.setitem(sys.modules, name, None)
    assert len([told for told in patient.obstacles() if "is not there" in told]) == len(ENGINES)
    assert patient.code == 1


def test_shared_memory_of_a_megabyte(patient: Patient) -> None:
    patient.patch.setattr(facts, "_capacity", lambda folder: 1 << 20)
    assert patient.obstacles() == ["shared memory (/dev/shm) holds 1 MiB"]
    assert patient.code == 1


def test_few_descriptors(patient: Patient) -> None:
    patient.patch.setattr(facts, "_limit", lambda name: 64)
    assert patient.obstacles() == ["this process may have 64 files open"]


def test_one_core(patient: Patient) -> None:
    patient.patch.setattr(facts, "affinity", lambda: frozenset({2}))
    assert patient.obstacles() == ["this process has one core"]


def test_a_quota_of_half_a_core(patient: Patient) -> None:
    patient.set({"sys/fs/cgroup/cpu.max": "50000 100000"})
    (told,) = patient.obstacles()
    assert told == "the container may use 0.5 of its 4 cores"


def test_a_cache_that_cannot_be_written(patient: Patient, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    place = str(tmp_path / "file" / "cache")
    (told,) = patient.obstacles("--cache-dir", place)
    assert place in told
    assert "cannot be written" in told
    patient.patch.setenv("NNASYNC_STATE_DIR", place)
    (told,) = patient.obstacles()
    assert told.startswith("the folder of the state")


def test_an_old_version_of_an_engine(patient: Patient, tmp_path: Path) -> None:
    install(tmp_path / "old", {}, {}, name="openvino", version="2024.1.0")
    with installing(tmp_path / "old"):
        assert patient.obstacles() == ["of openvino 2024.1.0 is there, and >=2025.4 is wanted"]
    assert patient.obstacles() == []


def test_a_processor_without_avx2(patient: Patient) -> None:
    patient.set({"proc/cpuinfo": "model name\t: Old\nflags\t\t: fpu sse4_2 avx"})
    assert patient.obstacles() == ["the processor reports no AVX2"]


def test_no_camera(patient: Patient) -> None:
    shutil.rmtree(patient.root / "sys/class/video4linux")
    assert "there is no camera" in patient.remarks()
    assert patient.code == 0


def test_a_camera_that_this_user_may_not_open(patient: Patient) -> None:
    (patient.root / "dev/video0").unlink()
    assert patient.obstacles() == ["this user may not open the camera /dev/video0 (a webcam)"]


def test_busy_processes_of_others(patient: Patient) -> None:
    stat = "7 (a (bad) name) R 1 1 1 0 -1 0 0 0 0 0 {} 0 0 0 20 0 1 0 99 0"
    patient.set({"proc/7/stat": stat.format(100)})
    patient.wait = lambda: patient.set({"proc/7/stat": stat.format(1_000_000)})
    (told,) = patient.obstacles()
    assert "a (bad) name (7)" in told


def test_a_kernel_without_slices(patient: Patient) -> None:
    patient.patch.setattr(facts, "has_time_slices", lambda: False)
    assert patient.obstacles() == ["Linux 6.12 has no time slices of a thread's own"]


def test_an_old_kernel_that_does_not_let_itself_be_asked(patient: Patient) -> None:
    patient.patch.setattr(timeslice, "_CALLS", {"x86_64": (-1, -1)})
    patient.patch.setattr(facts, "has_time_slices", timeslice.has_time_slices)
    assert patient.obstacles() == []
    patient.patch.setattr(platform, "release", lambda: "5.10.0-generic")
    assert patient.obstacles() == ["Linux 5.10 has no time slices of a thread's own"]


@pytest.mark.parametrize(
    ("version", "told", "code"),
    [((3, 10), "this is Python 3.10", 1), ((3, 99), "this is Python 3.99, which is newer", 0)],
)
def test_a_wrong_python(patient: Patient, version: tuple[int, int], told: str, code: int) -> None:
    patient.patch.setattr(installation, "running_python", lambda: version)
    found = patient.examined()["obstacles"]
    assert any(each["what"].startswith(told) for each in found)
    assert patient.code == code


def test_another_interpreter(patient: Patient) -> None:
    patient.patch.setattr(sys, "implementation", type("PyPy", (), {"name": "pypy"}))
    assert patient.obstacles() == ["the interpreter is pypy"]


# -- for real


@pytest.fixture
def spinner() -> Iterator[int]:
    """A process that computes all the time."""
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as child:
        try:
            yield child.pid
        finally:
            child.kill()


def test_a_real_busy_process(patient: Patient, spinner: int) -> None:
    patient.patch.setattr(doctor, "read_surroundings", read_surroundings)
    found = patient.examined()
    assert spinner in [each["pid"] for each in found["surroundings"]["busy"]]


def _in_child(
    state: Path, program: str, before: Sequence[str] = (), arguments: Sequence[str] = ()
) -> dict[str, Any]:
    command = f"{program}\nsys.exit(main({['doctor', '--json', *arguments]}))"
    done = subprocess.run(
        [*before, sys.executable, "-c", command],
        env={**os.environ, "NNASYNC_STATE_DIR": str(state)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    if not done.stdout:
        pytest.fail(done.stderr)
    assert done.returncode == 1
    told: dict[str, Any] = json.loads(done.stdout)
    return told


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system binds no process")
def test_real_limits_of_a_process(tmp_path: Path) -> None:
    """One core, 64 descriptors, no engine: in a child, that has them."""
    program = (
        "import os, resource, sys\n"
        "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))\n"
        f"sys.modules |= dict.fromkeys({ENGINES!r})\n"
        "from nnasync.cli import main"
    )
    found = [each["what"] for each in _in_child(tmp_path, program)["obstacles"]]
    assert "this process has one core" in found
    assert "this process may have 64 files open" in found
    assert len([told for told in found if "is not there: device" in told]) == len(ENGINES)


def test_what_a_real_process_finds_mounted(tmp_path: Path) -> None:
    """Shared memory of 1 MB, a cache on a disk that is read only, a processor without AVX2."""
    cache, told = tmp_path / "cache", tmp_path / "cpuinfo"
    cache.mkdir()
    told.write_text("model name\t: Old\nflags\t\t: fpu sse4_2 avx\n", encoding="utf-8")
    mounts = (
        "mount -t tmpfs -o size=1m tmpfs /dev/shm"
        f" && mount -t tmpfs -o ro tmpfs {shlex.quote(str(cache))}"
        f" && mount --bind {shlex.quote(str(told))} /proc/cpuinfo"
    )
    within = ("unshare", "-m", "sh", "-c", f'{mounts} && exec "$@"', "sh")
    if shutil.which("unshare") is None or subprocess.run([*within, "true"]).returncode:
        pytest.skip("this user may mount nothing")
    program = "import sys\nfrom nnasync.cli import main"
    examined = _in_child(tmp_path / "state", program, within, ["--cache-dir", str(cache)])
    found = [each["what"] for each in examined["obstacles"] if each["hinders"]]
    assert "shared memory (/dev/shm) holds 1 MiB" in found
    assert "the processor reports no AVX2" in found
    assert [each for each in found if str(cache) in each and "Read-only file system" in each]


def test_a_real_engine_that_is_too_old(tmp_path: Path) -> None:
    install(tmp_path / "old", {}, {}, name="openvino", version="2024.1.0")
    with installing(tmp_path / "old"):
        found = _in_child(tmp_path / "state", "import sys\nfrom nnasync.cli import main")
    wanted = "of openvino 2024.1.0 is there, and >=2025.4 is wanted"
    assert wanted in [each["what"] for each in found["obstacles"] if each["hinders"]]


def test_a_wrong_python_is_told_at_the_import() -> None:
    program = "import sys; sys.version_info = (3, 10, 4, 'final', 0); import nnasync"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stderr.rstrip().endswith("ImportError: nnasync needs Python 3.11 or later")
