"""What on a machine stands in the way of quick and even answers, and how each can be mended."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from nnasync.hal import Struct
from nnasync.machine.costs import Costs
from nnasync.machine.facts import MachineFacts

_STOLEN = 0.02
_SLICES = (6, 12)
_DESCRIPTORS = 1024
_SMALL_BYTES = 512 << 20
_FAST_CLOCKS = ("", "tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter")
_SLOW_HOP_NS = 200_000
_SHARED_BYTES = 64 << 20
_COARSE_NS = 1_000_000
_X86 = ("x86_64", "AMD64")
_X86_DOTS = ("avx512_vnni", "avx_vnni", "amx_int8")


class Obstacle(Struct, frozen=True):
    """Something in the way: what it is, what follows from it, and what can be done about it.

    What does not hinder is worth knowing, and as it should be on many machines.
    """

    what: str
    effect: str
    mend: str
    hinders: bool = True


def find_obstacles(facts: MachineFacts, costs: Costs) -> tuple[Obstacle, ...]:
    """Returns the obstacles of a machine, the worst first."""
    return tuple(found for check in _CHECKS for found in check(facts, costs))


def _quota(facts: MachineFacts, _: Costs) -> Iterator[Obstacle]:
    quota = facts.quota_cores
    if quota is None or quota >= facts.cores:
        return
    times = f", which has stopped it {facts.throttled} times so far" if facts.throttled else ""
    yield Obstacle(
        f"the container may use {quota:g} of its {facts.cores} cores{times}",
        "once its share of a tenth of a second is used up, nothing runs until the next begins",
        "raise the limit (docker run --cpus, resources.limits.cpu), or set Options(cores=)",
    )


def _steal(facts: MachineFacts, _: Costs) -> Iterator[Obstacle]:
    if facts.stolen >= _STOLEN:
        yield Obstacle(
            f"the hypervisor gave {facts.stolen:.0%} of the wanted time to other machines",
            "single answers are late by whole time slices, and measurements scatter",
            "ask for dedicated cores, or another host",
        )


def _load(facts: MachineFacts, _: Costs) -> Iterator[Obstacle]:
    if facts.load > facts.cores / 2 + 0.5:
        yield Obstacle(
            f"{facts.load:.1f} threads wanted to run on average in the last minute",
            "what is measured now is measured beside them",
            "end what is not needed, then `nnasync doctor --again`",
        )


def _single_core(facts: MachineFacts, _: Costs) -> Iterator[Obstacle]:
    if facts.cores == 1:
        yield Obstacle(
            "this process has one core",
            "executions on workers and the loop take turns; deadlines of HIGH hold less well",
            "give it a second core (taskset, cpuset)",
        )


def _shared_cores(facts: MachineFacts, _: Costs) -> Iterator[Obstacle]:
    if 0 < facts.physical_cores < facts.cores:
        yield Obstacle(
            f"{facts.cores} logical processors are threads of {facts.physical_cores} cores",
            "two executions side by side take longer each than one alone",
            f"for even latencies set Options(cores={facts.physical_cores})",
            hinders=False,
        )


def _governor(facts: MachineFacts, _: Costs) -> Iterator[Obstacle]:
    if facts.governor in ("powersave", "conservative", "ondemand"):
        yield Obstacle(
            f"the frequency is chosen by {facts.governor!r}",
            "short executions after a pause run on a slow core",
            "cpupower frequency-set -g performance",
        )


def _clock(facts: MachineFacts, _: Costs) -> Iterator[Obstacle]:
    if facts.clock not in _FAST_CLOCKS:
        yield Obstacle(
            f"the kernel takes the time from {facts.clock!r}",
            "each look at the clock is a system call of a microsecond or more",
            "boot with clocksource=tsc, if the processor's counter is reliable",
        )


def _kernel(facts: MachineFacts, _: Costs) -> Iterator[Obstacle]:
    has_slices = facts.time_slices
    if has_slices is None:
        has_slices = not (0,) < facts.kernel < _SLICES
    if facts.system.startswith("Linux") and not has_slices:
        version = ".".join(map(str, facts.kernel[:2]))
        yield Obstacle(
            f"Linux {version} has no time slices of a thread's own",
            "beside busy threads HIGH waits for a core by some milliseconds",
            "Linux 6.12 or later with its own scheduler (no sched_ext, no emulated kernel)",
        )


def _hops(facts: MachineFacts, costs: Costs) -> Iterator[Obstacle]:
    if costs.cold_hop.high_ns > _SLOW_HOP_NS:
        yield Obstacle(
            f"to wake a thread and the loop took {costs.cold_hop.high_ns / 1e3:.0f} us",
            "executions that go to a worker end later by that",
            "if others were busy then, measure again on a quiet machine (`nnasync doctor --again`);"
            " else forbid deep sleep (idle=poll or haltpoll in a guest, cpupower idle-set), or"
            " take bursts, which need no worker",
        )


def _descriptors(facts: MachineFacts, _: Costs) -> Iterator[Obstacle]:
    if 0 < facts.descriptors < _DESCRIPTORS:
        yield Obstacle(
            f"this process may have {facts.descriptors} files open",
            "executions with fences and memory shared between processes need some each",
            "ulimit -n 4096",
        )


def _memory(facts: MachineFacts, _: Costs) -> Iterator[Obstacle]:
    limit = facts.memory_limit_bytes
    if limit is not None and limit < _SMALL_BYTES:
        yield Obstacle(
            f"the container has {limit >> 20} MiB of memory",
            "engines take 50 to 300 MiB when they are loaded, and measuring them loads them all",
            "raise the limit, or name the devices: open_runtime(devices=[...])",
        )


def _instructions(facts: MachineFacts, _: Costs) -> Iterator[Obstacle]:
    if "avx2" in facts.flags and not facts.flags.intersection(_X86_DOTS):
        yield Obstacle(
            "the processor has no instructions for sums of products of bytes (VNNI)",
            "quantized networks gain less over float ones, and some engines saturate there:"
            " those ways are left out",
            "none; compare a float network with `nnasync bench`",
            hinders=False,
        )


def _vectors(facts: MachineFacts, _: Costs) -> Iterator[Obstacle]:
    if facts.architecture in _X86 and facts.flags and "avx2" not in facts.flags:
        yield Obstacle(
            "the processor reports no AVX2",
            "engines take slower ways, several times as slow for float networks, or do not start",
            "another machine; in a guest, a CPU model that hands it on (-cpu host)",
        )


def _shared_memory(facts: MachineFacts, _: Costs) -> Iterator[Obstacle]:
    size = facts.shared_memory_bytes
    if size is not None and size < _SHARED_BYTES:
        yield Obstacle(
            f"shared memory (/dev/shm) holds {size / 2**20:g} MiB",
            "clients that hand tensors to a server through it, and Ray, run out of it",
            "docker run --shm-size=1g, or mount -o remount,size=1g /dev/shm",
        )


def _clock_resolution(facts: MachineFacts, _: Costs) -> Iterator[Obstacle]:
    if facts.clock_resolution_ns > _COARSE_NS:
        yield Obstacle(
            f"the clock advances in steps of {facts.clock_resolution_ns / 1e6:g} ms",
            "deadlines and measurements are no finer than that",
            "a system with a finer monotonic clock",
        )


_CHECKS: tuple[Callable[[MachineFacts, Costs], Iterator[Obstacle]], ...] = (
    _quota,
    _steal,
    _load,
    _single_core,
    _shared_cores,
    _governor,
    _clock,
    _kernel,
    _hops,
    _descriptors,
    _memory,
    _shared_memory,
    _vectors,
    _clock_resolution,
    _instructions,
)
