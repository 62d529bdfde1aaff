"""Machines as folders, and costs by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nnasync.machine import Costs, MachineFacts, Spread

US = 1000


def machine_in(folder: Path, files: dict[str, str]) -> str:
    """A folder with such files, as Linux has them."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content + "\n", encoding="utf-8")
    return str(folder)


def costs(hop_us: int = 20, cold_hop_us: int = 60) -> Costs:
    """Plausible costs."""
    return Costs(
        turn=Spread(2 * US, 3 * US),
        hop=Spread(hop_us * US, 2 * hop_us * US),
        cold_hop=Spread(cold_hop_us * US, 2 * cold_hop_us * US),
        switch=Spread(3 * US, 4 * US),
        chill=2.0,
    )


def facts(**others: Any) -> MachineFacts:
    """A machine that has nothing in the way, but for what is given."""
    known: dict[str, Any] = {
        "system": "Linux 6.12.1",
        "kernel": (6, 12, 1),
        "python": "CPython 3.11.7",
        "processor": "a processor",
        "flags": frozenset({"avx2", "avx_vnni"}),
        "cores": 4,
        "clock": "tsc",
    }
    return MachineFacts(**(known | others))
