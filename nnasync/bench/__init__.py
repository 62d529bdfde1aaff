"""Benchmarks of a user's own model: what each device takes for it, awaited, in turn."""

from __future__ import annotations

from nnasync.bench.contestant import Contestant, Refusal, Setting, enter, refusal_of
from nnasync.bench.figures import Figures, figures_of
from nnasync.bench.lowerings import lowering_settings
from nnasync.bench.rounds import run_rounds

__all__ = [
    "Contestant",
    "Figures",
    "Refusal",
    "Setting",
    "enter",
    "figures_of",
    "lowering_settings",
    "refusal_of",
    "run_rounds",
]
