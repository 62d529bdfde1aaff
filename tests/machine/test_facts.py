"""What the system tells, of machines that lie in folders."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnasync.machine import facts as facts_module
from nnasync.machine.facts import cores_allowed, read_facts
from tests.machine.rig import machine_in

CPUINFO = """processor\t: 0
model name\t: Some Processor 9000
flags\t\t: fpu avx2 hypervisor

processor\t: 1
model name\t: Some Processor 9000
flags\t\t: fpu avx2 hypervisor avx_vnni"""


@pytest.fixture
def four_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts_module, "affinity", lambda: frozenset(range(4)))


def test_of_a_machine_that_tells_nothing(tmp_path: Path) -> None:
    found = read_facts(str(tmp_path))
    assert found.flags == frozenset()
    assert found.cores >= 1
    assert (found.quota_cores, found.memory_limit_bytes, found.physical_cores) == (None, None, 0)
    assert (found.governor, found.clock, found.stolen, found.load) == ("", "", 0.0, 0.0)


def test_the_processor_and_its_flags(tmp_path: Path) -> None:
    found = read_facts(machine_in(tmp_path, {"proc/cpuinfo": CPUINFO}))
    assert found.processor == "Some Processor 9000"
    assert found.flags == {"fpu", "avx2", "hypervisor", "avx_vnni"}
    assert found.is_virtual


@pytest.mark.usefixtures("four_cores")
def test_threads_of_one_core_are_told_from_cores(tmp_path: Path) -> None:
    place = "sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    shared = {place.format(core): "0,2" if core % 2 == 0 else "1,3" for core in range(4)}
    found = read_facts(machine_in(tmp_path, shared))
    assert (found.cores, found.physical_cores) == (4, 2)


@pytest.mark.usefixtures("four_cores")
@pytest.mark.parametrize(
    ("files", "quota", "allowed"),
    [
        ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "50000 100000"}, 0.5, 1),
        ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "250000 100000"}, 2.5, 3),
        ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "max 100000"}, None, 4),
        ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "900000 100000"}, 9.0, 4),
        ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "nonsense"}, None, 4),
        (
            {
                "proc/self/cgroup": "0::/outer/inner",
                "sys/fs/cgroup/outer/cpu.max": "150000 100000",
                "sys/fs/cgroup/outer/inner/cpu.max": "max 100000",
            },
            1.5,
            2,
        ),
        (
            {
                "proc/self/cgroup": "3:cpu,cpuacct:/box",
                "sys/fs/cgroup/cpu/box/cpu.cfs_quota_us": "200000",
                "sys/fs/cgroup/cpu/box/cpu.cfs_period_us": "100000",
            },
            2.0,
            2,
        ),
        (
            {
                "proc/self/cgroup": "3:cpu,cpuacct:/",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
            },
            None,
            4,
        ),
        # In a container the path is of the host, and its own group is what is mounted.
        ({"proc/self/cgroup": "0::/../host", "sys/fs/cgroup/cpu.max": "100000 100000"}, 1.0, 1),
    ],
)
def test_the_quota_of_the_container(
    tmp_path: Path, files: dict[str, str], quota: float | None, allowed: int
) -> None:
    root = machine_in(tmp_path, files)
    assert read_facts(root).quota_cores == quota
    assert cores_allowed(root) == allowed


def test_limits_of_memory_of_both_versions(tmp_path: Path) -> None:
    second = machine_in(
        tmp_path / "2",
        {"proc/self/cgroup": "0::/", "sys/fs/cgroup/memory.max": str(256 << 20)},
    )
    first = machine_in(
        tmp_path / "1",
        {
            "proc/self/cgroup": "4:memory:/",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": str(2**63 - 4096),
        },
    )
    assert read_facts(second).memory_limit_bytes == 256 << 20
    assert read_facts(first).memory_limit_bytes is None


def test_load_and_stolen_time(tmp_path: Path) -> None:
    found = read_facts(
        machine_in(
            tmp_path,
            {
                "proc/loadavg": "3.50 1.00 0.50 2/100 4711",
                "proc/stat": "cpu  60 0 20 900 0 5 5 10 0 0\ncpu0 1 2",
                "proc/self/cgroup": "0::/",
                "sys/fs/cgroup/cpu.stat": "nr_periods 9\nnr_throttled 7\nthrottled_usec 1",
                "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "powersave",
            },
        )
    )
    assert (found.load, found.stolen, found.throttled) == (3.5, 0.1, 7)
    assert found.governor == "powersave"


@given(
    st.dictionaries(
        st.sampled_from(
            [
                "proc/cpuinfo",
                "proc/stat",
                "proc/loadavg",
                "proc/self/cgroup",
                "sys/fs/cgroup/cpu.max",
                "sys/fs/cgroup/cpu.stat",
                "sys/fs/cgroup/memory.max",
            ]
        ),
        st.text(max_size=40),
    )
)
def test_whatever_lies_there_is_survived(
    tmp_path_factory: pytest.TempPathFactory, files: dict[str, str]
) -> None:
    folder = tmp_path_factory.mktemp("machine")
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content.encode("utf-8", "surrogatepass"))
    assert cores_allowed(str(folder)) >= 1
    assert read_facts(str(folder)).cores >= 1


@pytest.mark.skipif(not Path("/proc/cpuinfo").exists(), reason="the system has no such files")
def test_this_machine_is_found() -> None:
    found = read_facts()
    assert found.cores == len(os.sched_getaffinity(0))
    assert found.kernel[0] >= 2
