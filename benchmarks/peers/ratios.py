"""The table of the compute section: best peer, nnasync, their ratio and its limit, per model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from benchmarks._report import table
from benchmarks.peers import mobilenet
from benchmarks.peers.catalog import Entry
from benchmarks.peers.compute import ALL_CORES, BF16, ONE_CORE
from benchmarks.peers.engines import PEERS
from benchmarks.peers.section import Context, Section, mark, number
from benchmarks.peers.timing import geometric_mean, middle

__all__ = ["Ratio", "has_matrix_units", "limit_of", "ratios_of", "run"]

HOP_FREE_US, HOP_ALLOWANCE_US, TIE = 200.0, 8.0, 1.05
MEAN_LIMIT, BF16_LIMIT = 0.65, 0.3
CPU_FACTS = Path("/proc/cpuinfo")


class Ratio(msgspec.Struct, frozen=True):
    """One row: a model under one budget of cores; times in microseconds."""

    model: str
    budget: str
    peer: str
    peer_us: float
    peer_with_copies_us: float
    nnasync_us: float
    ratio: float
    limit: float
    runs_on: str
    difference: str


def has_matrix_units(facts: Path = CPU_FACTS) -> bool:
    """Returns whether the processor has AMX, on which the limits for quantized models depend."""
    try:
        return "amx_int8" in facts.read_text(encoding="utf-8")
    except OSError:
        return False


def limit_of(entry: Entry, budget: str, peer_us: float, *, matrix_units: bool) -> float:
    """Returns the largest ratio that is good enough."""
    if budget == BF16:
        return BF16_LIMIT
    if entry.is_quantized_mobilenet:
        if not matrix_units:
            return 0.9
        return 0.7 if "_v3" in entry.name else 0.5
    return (peer_us + HOP_ALLOWANCE_US) / peer_us if peer_us < HOP_FREE_US else TIE


def ratios_of(entry: Entry, figures: Mapping[str, Any], *, matrix_units: bool) -> list[Ratio]:
    """Returns the rows of a model, one for each budget that was measured."""
    medians = {
        name: {key: middle([one[key] for one in rounds]) for key in rounds[0]}
        for name, rounds in figures["samples"].items()
    }
    rows = []
    for budget in (ONE_CORE, ALL_CORES, BF16):
        ours = medians.get(f"nnasync|{budget}")
        peers = {
            name: found
            for name, found in medians.items()
            if not name.startswith("nnasync") and (budget != ONE_CORE or name.endswith("|1"))
        }
        if ours is None or not peers:
            continue
        best = min(peers, key=lambda name: peers[name]["us"])
        peer_us = peers[best]["us"]
        engine, _, threads = best.partition("|")
        about = figures["nnasync"][budget]
        rows.append(
            Ratio(
                model=entry.name,
                budget=budget,
                peer=f"{engine} {threads}",
                peer_us=peer_us,
                peer_with_copies_us=peers[best]["with_copies_us"],
                nnasync_us=ours["us"],
                ratio=ours["us"] / peer_us,
                limit=limit_of(entry, budget, peer_us, matrix_units=matrix_units),
                runs_on=" ".join(filter(None, (about["devices"], about["lowering"]))),
                difference=_difference(figures["agreement"].get(f"nnasync, {budget}")),
            )
        )
    return rows


def _difference(verdict: Mapping[str, Any] | None) -> str:
    if verdict is None or verdict["difference"] is None:
        return "-"
    size = verdict["difference"]
    text = f"{size:.0f} steps" if verdict["in_steps"] else f"{size:.1g}"
    return text if verdict["same_top"] else f"{text}, other top"


def run(context: Context) -> Section:
    """Measures every model in a child of its own."""
    rows: list[Ratio] = []
    figures: dict[str, Any] = {}
    notes: list[str] = []
    matrix_units = has_matrix_units()
    for entry in context.entries:
        if context.is_over():
            notes.append(f"{entry.name}: not measured, the section's time was over")
            continue
        found, refused = _measured(context, entry)
        notes += [f"{entry.name}: {name}: {why}" for name, why in refused.items()]
        if found is not None:
            figures[entry.name] = found
            mine = ratios_of(entry, found, matrix_units=matrix_units)
            rows += mine
            if not mine:
                notes.append(_unrivalled(entry, found))
    text = _text(rows, notes, matrix_units=matrix_units)
    data = {"models": figures, "ratios": [msgspec.to_builtins(row) for row in rows]}
    return Section("Compute", text, data)


def _unrivalled(entry: Entry, figures: Mapping[str, Any]) -> str:
    """Returns a remark on a model that no peer runs, or that nnasync does not run."""
    ours = figures["samples"].get(f"nnasync|{ALL_CORES}")
    if ours is None:
        return f"{entry.name}: no ratio, nnasync does not run it"
    time_us = middle([one["us"] for one in ours])
    return (
        f"{entry.name}: no ratio, no peer runs it; nnasync {time_us:.1f} us on "
        f"{figures['nnasync'][ALL_CORES]['devices']}"
    )


def _measured(context: Context, entry: Entry) -> tuple[Mapping[str, Any] | None, Mapping[str, str]]:
    """Returns the figures of a model; who ends its process is left out the next time."""
    skip: dict[str, str] = {}
    while True:
        task = {
            "name": entry.name,
            "path": entry.path,
            "rounds": context.rounds,
            "seconds": context.rounds * 0.6,
            "skip": skip,
            "bf16": entry.name == mobilenet.NAME,
        }
        outcome = context.measure("compute", entry.name, task)
        if outcome.figures is not None:
            return outcome.figures, outcome.figures["refused"]
        culprit = outcome.during.partition(",")[0]
        if culprit in skip or culprit not in (*PEERS, "nnasync"):
            return None, skip | {f"all, during {outcome.during or 'start'}": outcome.failure}
        skip[culprit] = outcome.failure


def _text(rows: Sequence[Ratio], notes: Sequence[str], *, matrix_units: bool) -> str:
    heads = ["microseconds", "best peer", "it", "nnasync", "ratio", "limit", "kept", "off by"]
    parts = []
    for budget in (ONE_CORE, ALL_CORES, BF16):
        mine = [row for row in rows if row.budget == budget]
        if not mine:
            continue
        cells = [
            [
                row.model,
                row.peer,
                number(row.peer_us),
                number(row.nnasync_us),
                number(row.ratio, 2),
                number(row.limit, 2),
                mark(row.ratio, row.limit),
                row.difference,
                row.runs_on,
            ]
            for row in mine
        ]
        parts.append(f"{budget}\n\n" + table([*heads, "runs on"], cells))
        if budget != BF16:
            mean = geometric_mean([row.ratio for row in mine])
            limit = f" (limit {MEAN_LIMIT})" if matrix_units else " (no limit without AMX)"
            parts.append(f"geometric mean of {len(mine)} ratios: {mean:.2f}{limit}")
    parts.append("\n".join(notes))
    return "\n\n".join(filter(None, parts))
