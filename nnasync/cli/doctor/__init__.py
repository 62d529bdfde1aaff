"""`nnasync doctor`: the machine, what follows from it, and what stands in the way."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from nnasync import Options
from nnasync.cli.doctor.around import folder_lines, listener_lines, media_lines, package_lines
from nnasync.cli.text import HelpFormatter, hanging, json_text, table
from nnasync.devices import InstalledDevice, installed, state_folder
from nnasync.machine import (
    Costs,
    Decisions,
    MachineFacts,
    Obstacle,
    Spread,
    Surroundings,
    cores_allowed,
    costs_here,
    decide,
    find_obstacles,
    find_obstacles_around,
    read_facts,
    read_surroundings,
)

_EXAMPLES = """examples:
  nnasync doctor
  nnasync doctor --again
  nnasync doctor --json
  nnasync doctor --cache-dir ~/.cache/myapp
"""
_REFERENCE = "nnasync-reference"
_INSTRUCTIONS = {
    "AVX2": ("avx2",),
    "AVX-512": ("avx512f",),
    "VNNI": ("avx512_vnni", "avx_vnni"),
    "bfloat16": ("avx512_bf16", "amx_bf16", "bf16"),
    "AMX": ("amx_int8",),
    "NEON": ("asimd",),
    "dot products": ("asimddp",),
}


def add_parser(commands: Any) -> None:
    """Add this command to the command line."""
    parser = commands.add_parser(
        "doctor",
        help="examine this machine",
        description="Examine this machine: processor, cores and limits of the container, what "
        "it costs here to move work between threads, what a runtime decides because of that, "
        "which engines and packages are there, folders, listeners, cameras and microphones, and "
        "what stands in the way of quick and even answers, with a way to mend each. The costs are "
        "measured once, in some tens of milliseconds, and kept. The exit code is 1 where "
        "something stands in the way, and 0 where there are only things worth knowing.",
        epilog=_EXAMPLES,
        formatter_class=HelpFormatter,
    )
    parser.add_argument("--again", action="store_true", help="measure the costs anew")
    parser.add_argument(
        "--cache-dir",
        action="append",
        default=[],
        metavar="DIR",
        help="a folder that programs give as cache_dir=, to be examined too; may be repeated",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(command=_command)


class _Examination(msgspec.Struct, frozen=True):
    """Everything that the examination found."""

    facts: MachineFacts
    cores: int
    costs: Costs
    decisions: Decisions
    devices: tuple[InstalledDevice, ...]
    surroundings: Surroundings
    obstacles: tuple[Obstacle, ...]


def _command(arguments: argparse.Namespace) -> int:
    found = _examine(arguments)
    if arguments.json:
        print(json_text(found))
    else:
        print(_text(found))
    return 1 if any(each.hinders for each in found.obstacles) else 0


def _examine(arguments: argparse.Namespace) -> _Examination:
    facts, costs = read_facts(), costs_here(state_folder(), again=arguments.again)
    devices, around = installed(), read_surroundings(map(os.path.expanduser, arguments.cache_dir))
    return _Examination(
        facts,
        cores_allowed(),
        costs,
        decide(costs, int(Options().stall_budget_us * 1000)),
        devices,
        around,
        (*find_obstacles_around(around), *find_obstacles(facts, costs), *_absences(devices)),
    )


def _absences(devices: Sequence[InstalledDevice]) -> Iterator[Obstacle]:
    """Engines are optional, as long as there is one beside the reference."""
    has_engine = any(not each.absence and each.name != _REFERENCE for each in devices)
    for device in devices:
        if device.absence:
            yield Obstacle(
                f"{device.name} is not there: {device.absence}",
                "networks that it would run fastest run on the next best device",
                "install what is named, or leave it: each engine is optional",
                hinders=not has_engine,
            )


def _text(found: _Examination) -> str:
    sections = {
        "machine": _machine_lines(found),
        "what moving work costs": _cost_lines(found.costs),
        "what follows": _decision_lines(found),
        "devices": _device_lines(found.devices),
        "packages": package_lines(found.surroundings),
        "folders": folder_lines(found.surroundings),
        "listeners": listener_lines(found.surroundings),
        "cameras and microphones": media_lines(found.surroundings),
        "in the way": _obstacle_lines([each for each in found.obstacles if each.hinders]),
        "worth knowing": _obstacle_lines([each for each in found.obstacles if not each.hinders]),
    }
    return "\n\n".join(
        "\n".join([head, *(hanging(f"  {line}") for line in lines)])
        for head, lines in sections.items()
    )


def _machine_lines(found: _Examination) -> Iterator[str]:
    facts = found.facts
    has = [name for name, flags in _INSTRUCTIONS.items() if facts.flags.intersection(flags)]
    yield f"{facts.processor}: {', '.join(has) or 'instructions unknown'}"
    cores = f"{facts.cores} logical processors for this process"
    if facts.physical_cores:
        cores += f", on {facts.physical_cores} cores"
    yield f"{cores}{', in a virtual machine' if facts.is_virtual else ''}"
    yield f"{facts.system}, {facts.python}, {found.surroundings.event_loop}"
    limits = []
    if facts.quota_cores is not None:
        limits.append(f"{facts.quota_cores:g} cores")
    if facts.memory_limit_bytes is not None:
        limits.append(f"{facts.memory_limit_bytes >> 20} MiB")
    yield f"limits of the container: {', '.join(limits) or 'none'}"
    yield f"limits of this process: {', '.join(_own_limits(facts)) or 'none'}"
    yield f"clock: {facts.clock or 'unknown'}, in steps of {facts.clock_resolution_ns} ns"
    slices = {None: "unknown", True: "a thread may choose its own", False: "the same for all"}
    yield f"time slices: {slices[facts.time_slices]}"
    yield f"frequency: {f'governor {facts.governor}' if facts.governor else 'not told'}"
    yield f"taken by the hypervisor: {facts.stolen:.1%} of the time that was wanted"


def _own_limits(facts: MachineFacts) -> Iterator[str]:
    if facts.descriptors:
        yield f"{facts.descriptors} files"
    if facts.lockable_bytes is not None:
        yield f"{facts.lockable_bytes >> 10} KiB of locked memory (nnasync locks none)"
    if facts.shared_memory_bytes is not None:
        yield f"{facts.shared_memory_bytes >> 20} MiB of shared memory"


def _cost_lines(costs: Costs) -> list[str]:
    rows = [
        ("an empty turn of an event loop", *_microseconds(costs.turn)),
        ("a hop to a thread and back, both awake", *_microseconds(costs.hop)),
        ("the same after both slept for 2 ms", *_microseconds(costs.cold_hop)),
        ("a switch of threads on one core", *_microseconds(costs.switch)),
    ]
    lines = table(("us", "lower quartile", "one in ten above"), rows).splitlines()
    return [
        *lines,
        f"work on 256 KB that fell out of the caches takes {costs.chill:.1f} times as long",
        f"the same work, measured twice in turns, differs by {100 * costs.noise:.1f} %",
    ]


def _microseconds(spread: Spread) -> tuple[str, str]:
    return f"{spread.low_ns / 1e3:.1f}", f"{spread.high_ns / 1e3:.1f}"


def _decision_lines(found: _Examination) -> Iterator[str]:
    yield f"Options(cores=): {found.cores} executions at once"
    budget_us = found.decisions.inline_budget_ns / 1e3
    yield (
        f"Options(inline_budget_us=): executions of up to {budget_us:.0f} us run on the thread"
        " of the loop, longer ones on a worker"
    )
    chosen = found.decisions
    yield f"launches of up to {chosen.launch_budget_ns / 1e3:.0f} us run before `launch` returns"
    yield from _contest_lines(chosen)
    if found.cores > 1:
        yield (
            f"of several calls in flight, those of {chosen.spread_from_ns / 1e3:.0f} us and more"
            " are spread over the cores"
        )
        yield (
            f"who waits for another process looks for its answer {chosen.window_ns / 1e3:.0f} to"
            f" {chosen.longest_window_ns / 1e3:.0f} us, then sleeps"
        )
    else:
        yield "one execution runs at once: calls are not spread, and nobody looks for answers"


def _contest_lines(chosen: Decisions) -> Iterator[str]:
    margins = chosen.margins
    yield (
        f"devices that are compared run {chosen.slice_ns / 1e6:.1f} ms in turn; within"
        f" {_percent(margins.tie)} they are equal, beyond {_percent(margins.far)} out after a few"
    )


def _percent(ratio: float) -> str:
    return f"{100 * (ratio - 1):.1f} %"


def _device_lines(devices: Sequence[InstalledDevice]) -> Iterator[str]:
    for device in devices:
        if not device.absence:
            yield f"{device.name}, from {device.source}"


def _obstacle_lines(found: Sequence[Obstacle]) -> Iterator[str]:
    if not found:
        yield "nothing"
    for number, obstacle in enumerate(found, 1):
        yield f"{number}. {obstacle.what}"
        yield f"   effect: {obstacle.effect}"
        yield f"   mend: {obstacle.mend}"
