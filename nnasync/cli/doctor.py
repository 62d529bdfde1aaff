"""`nnasync doctor`: the machine, what follows from it, and what stands in the way."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from nnasync import Options
from nnasync.cli.text import HelpFormatter, table
from nnasync.devices import InstalledDevice, installed, state_folder
from nnasync.machine import (
    Costs,
    Decisions,
    MachineFacts,
    Obstacle,
    Spread,
    cores_allowed,
    costs_here,
    decide,
    find_obstacles,
    read_facts,
)

_EXAMPLES = """examples:
  nnasync doctor
  nnasync doctor --again
  nnasync doctor --json
"""
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
        "which engines are there, and what stands in the way of quick and even answers, with a way "
        "to mend each. The costs are measured once, in some tens of milliseconds, and kept.",
        epilog=_EXAMPLES,
        formatter_class=HelpFormatter,
    )
    parser.add_argument("--again", action="store_true", help="measure the costs anew")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(command=_command)


class _Examination(msgspec.Struct, frozen=True):
    """All that was found."""

    facts: MachineFacts
    cores: int
    costs: Costs
    decisions: Decisions
    devices: tuple[InstalledDevice, ...]
    obstacles: tuple[Obstacle, ...]


def _command(arguments: argparse.Namespace) -> int:
    facts, costs = read_facts(), costs_here(state_folder(), again=arguments.again)
    options = Options()
    found = _Examination(
        facts,
        cores_allowed(),
        costs,
        decide(costs, int(options.stall_budget_us * 1000)),
        installed(),
        (*find_obstacles(facts, costs), *_absences(installed())),
    )
    if arguments.json:
        print(msgspec.json.format(msgspec.json.encode(found)).decode())
    else:
        print(_text(found))
    return 0


def _absences(devices: Sequence[InstalledDevice]) -> Iterator[Obstacle]:
    for device in devices:
        if device.absence:
            yield Obstacle(
                f"{device.name} is not there: {device.absence}",
                "networks that it would run fastest run on the next best device",
                "install what is named, or leave it: each engine is optional",
            )


def _text(found: _Examination) -> str:
    sections = {
        "machine": _machine_lines(found.facts),
        "what moving work costs": _cost_lines(found.costs),
        "what follows": _decision_lines(found),
        "devices": _device_lines(found.devices),
        "in the way": _obstacle_lines(found.obstacles),
    }
    return "\n\n".join(
        "\n".join([head, *(f"  {line}" for line in lines)]) for head, lines in sections.items()
    )


def _machine_lines(facts: MachineFacts) -> Iterator[str]:
    has = [name for name, flags in _INSTRUCTIONS.items() if facts.flags.intersection(flags)]
    yield f"{facts.processor}: {', '.join(has) or 'instructions unknown'}"
    cores = f"{facts.cores} logical processors for this process"
    if facts.physical_cores:
        cores += f", on {facts.physical_cores} cores"
    yield f"{cores}{', in a virtual machine' if facts.is_virtual else ''}"
    yield f"{facts.system}, {facts.python}"
    limits = []
    if facts.quota_cores is not None:
        limits.append(f"{facts.quota_cores:g} cores")
    if facts.memory_limit_bytes is not None:
        limits.append(f"{facts.memory_limit_bytes >> 20} MiB")
    yield f"limits of the container: {', '.join(limits) or 'none'}"


def _cost_lines(costs: Costs) -> list[str]:
    rows = [
        ("an empty turn of an event loop", *_microseconds(costs.turn)),
        ("a hop to a thread and back, both awake", *_microseconds(costs.hop)),
        ("the same after both slept for 2 ms", *_microseconds(costs.cold_hop)),
        ("a switch of threads on one core", *_microseconds(costs.switch)),
    ]
    lines = table(("us", "lower quartile", "one in ten above"), rows).splitlines()
    return [*lines, f"256 KB of data that fell out of the caches: {costs.chill:.1f} times as long"]


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
    if found.cores > 1:
        yield (
            f"of several calls in flight, those of {chosen.spread_from_ns / 1e3:.0f} us and more"
            " are spread over the cores"
        )
        yield (
            f"an answer of another process is looked for {chosen.window_ns / 1e3:.0f} to"
            f" {chosen.longest_window_ns / 1e3:.0f} us before a caller sleeps"
        )
    else:
        yield "one execution runs at once: calls are not spread, and nobody looks for answers"


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
