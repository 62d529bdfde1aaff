"""What the system says of the machine: processor, cores, limits of the container, other load.

Everything is read from files of Linux below a root, so that any machine can be put before the code
as a folder. What a system does not tell is empty, 0 or None: unknown, never a guess.
"""

from __future__ import annotations

import functools
import math
import os
import platform
import sys
import time
from collections.abc import Iterator

from nnasync._core.timeslice import has_time_slices
from nnasync.hal import Struct

_ROOT = "/"
_PROCESSORS = "sys/devices/system/cpu"
_CLOCK = "sys/devices/system/clocksource/clocksource0/current_clocksource"
_GROUPS = "sys/fs/cgroup"
_NO_LIMIT = 1 << 60
"""Where there is no limit of memory the first version of groups states about 2**63 bytes."""


class MachineFacts(Struct, frozen=True):
    """A machine as its system tells of it, for this process.

    processor: its name. flags: instructions it has, by Linux's names. cores: logical processors
    that this process may run on. physical_cores: how many of these are not two threads of one core;
    0 where that is unknown. quota_cores: processor time a second that the container may use, None
    without a limit. throttled: how often the container was stopped for that. memory_limit_bytes:
    of the container, None without a limit. governor: how the frequency is chosen. clock: what the
    kernel takes the time from. stolen: share of the busy time since the start that the hypervisor
    gave to others. load: runnable threads on average over a minute. descriptors: how many files
    this process may have open, 0 where there is no limit. lockable_bytes: memory that it may lock,
    None without a limit. shared_memory_bytes: what POSIX shared memory may hold, None where it is
    not told. time_slices: whether a thread may ask for a time slice of its own, None where that
    could not be tried. architecture: by the kernel's name. clock_resolution_ns: of the monotonic
    clock.
    """

    system: str
    kernel: tuple[int, ...]
    python: str
    processor: str
    flags: frozenset[str]
    cores: int
    physical_cores: int = 0
    quota_cores: float | None = None
    throttled: int = 0
    memory_limit_bytes: int | None = None
    governor: str = ""
    clock: str = ""
    is_virtual: bool = False
    stolen: float = 0.0
    load: float = 0.0
    descriptors: int = 0
    lockable_bytes: int | None = None
    shared_memory_bytes: int | None = None
    time_slices: bool | None = None
    architecture: str = ""
    clock_resolution_ns: int = 1


def read_facts(root: str = _ROOT) -> MachineFacts:
    """The facts of this machine, or of the one whose files lie below a folder."""
    name, flags = _processor(root)
    cores = affinity()
    groups = list(_groups(root))
    limits = [limit for group in groups if (limit := _memory_limit(group)) is not None]
    return MachineFacts(
        system=f"{platform.system()} {platform.release()}",
        kernel=_version(platform.release()),
        python=f"{platform.python_implementation()} {platform.python_version()}",
        processor=name or platform.processor() or platform.machine(),
        flags=flags,
        cores=len(cores) or os.cpu_count() or 1,
        physical_cores=_physical(root, cores),
        quota_cores=_quota(groups),
        throttled=sum(map(_throttled, groups)),
        memory_limit_bytes=min(limits, default=None),
        governor=text_of(root, _PROCESSORS, "cpu0", "cpufreq", "scaling_governor"),
        clock=text_of(root, _CLOCK),
        is_virtual="hypervisor" in flags,
        stolen=_stolen(text_of(root, "proc", "stat")),
        load=_number(text_of(root, "proc", "loadavg").split(" ")[0]) or 0.0,
        descriptors=_limit("RLIMIT_NOFILE") or 0,
        lockable_bytes=_limit("RLIMIT_MEMLOCK"),
        shared_memory_bytes=_capacity(os.path.join(root, "dev", "shm")),
        time_slices=has_time_slices(),
        architecture=platform.machine(),
        clock_resolution_ns=max(1, round(time.get_clock_info("monotonic").resolution * 1e9)),
    )


def cores_allowed(root: str = _ROOT) -> int:
    """Returns how many executions can run at once, by affinity and quota of this process."""
    count = len(affinity()) or os.cpu_count() or 1
    quota = _quota_at(root)
    return count if quota is None else max(1, min(count, math.ceil(quota)))


def affinity() -> frozenset[int]:
    """The numbers of the processors that this process may run on; empty where that is not told."""
    if not hasattr(os, "sched_getaffinity"):
        return frozenset()
    return frozenset(os.sched_getaffinity(0))


@functools.cache
def processor_flags() -> frozenset[str]:
    """Returns the flags of an x86 processor; empty for others and where they are unknown."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return frozenset()
    return _processor(_ROOT)[1]


def _processor(root: str) -> tuple[str, frozenset[str]]:
    name, flags = "", frozenset[str]()
    for line in text_of(root, "proc", "cpuinfo").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            name = value.strip()
        elif key.strip() in ("flags", "Features"):
            flags |= frozenset(value.split())
    return name, flags


def _physical(root: str, cores: frozenset[int]) -> int:
    """Returns how many physical cores these processors are."""
    siblings = set()
    for core in cores:
        told = text_of(root, _PROCESSORS, f"cpu{core}", "topology", "thread_siblings_list")
        if not told:
            return 0
        siblings.add(told)
    return len(siblings)


# -- limits of the container: groups of either version, this process's own and those around it


def _groups(root: str) -> Iterator[str]:
    """The folders of the groups that this process is in, as far as they can be seen."""
    for line in text_of(root, "proc", "self", "cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        for hierarchy in [""] if number == "0" else controllers.split(","):
            folder = os.path.join(root, _GROUPS, hierarchy)
            yield folder
            # In a namespace of groups the path may lead outside of what is mounted.
            for name in path.strip("/").split("/"):
                if name in ("", ".", ".."):
                    break
                folder = os.path.join(folder, name)
                yield folder


@functools.cache
def _quota_at(root: str) -> float | None:
    """The quota of this process as it was first found: dozens of files say it."""
    return _quota(list(_groups(root)))


def _quota(groups: list[str]) -> float | None:
    """The least quota of processor time of these groups, in cores."""
    quotas = []
    for group in groups:
        wanted, _, period = text_of(group, "cpu.max").partition(" ")
        if not wanted:
            wanted = text_of(group, "cpu.cfs_quota_us")
            period = text_of(group, "cpu.cfs_period_us")
        quota, within = _number(wanted), _number(period)
        if quota is not None and within and quota > 0:
            quotas.append(quota / within)
    return min(quotas, default=None)


def _throttled(group: str) -> int:
    for line in text_of(group, "cpu.stat").splitlines():
        if line.startswith("nr_throttled "):
            return int(_number(line.split()[1]) or 0)
    return 0


def _memory_limit(group: str) -> int | None:
    told = text_of(group, "memory.max") or text_of(group, "memory.limit_in_bytes")
    limit = _number(told)
    return None if limit is None or limit >= _NO_LIMIT else int(limit)


# -- the system


def _stolen(statistics: str) -> float:
    """Time that was stolen, of all that somebody wanted to compute."""
    fields = [_number(word) or 0.0 for word in statistics.partition("\n")[0].split()[1:9]]
    if len(fields) < 8:
        return 0.0
    user, nice, system, _, _, interrupts, softirqs, steal = fields
    wanted = user + nice + system + interrupts + softirqs + steal
    return steal / wanted if wanted else 0.0


def _limit(name: str) -> int | None:
    """A limit of this process by the name of its resource; None where there is none."""
    if sys.platform == "win32":
        return None
    import resource

    kind = getattr(resource, name, None)
    soft = resource.RLIM_INFINITY if kind is None else resource.getrlimit(kind)[0]
    return None if soft == resource.RLIM_INFINITY else int(soft)


def _capacity(folder: str) -> int | None:
    """Returns the size of a folder's file system; None where there is no such folder."""
    try:
        found = os.statvfs(folder)
    except (OSError, AttributeError):
        return None
    return found.f_blocks * found.f_frsize


def _version(text: str) -> tuple[int, ...]:
    numbers = []
    for part in text.split("-")[0].split("."):
        if not part.isdigit():
            break
        numbers.append(int(part))
    return tuple(numbers)


def text_of(*parts: str) -> str:
    """The content of a file without the space around it; empty where it cannot be read."""
    try:
        with open(os.path.join(*parts), encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except (OSError, ValueError):
        return ""


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
