"""Marks: which layer spends time, and in which phase of a model's life, as NNAPI's NNTRACE has it.

The text of a mark is NNAPI's, `[NN_LR_PC]compile mobilenet`, so that its tools know what it means.
"""

from __future__ import annotations

import enum

from nnasync import hal


class Layer(enum.Enum):
    """The layer that spends the time; the values are NNAPI's letters."""

    APPLICATION = "LA"
    RUNTIME = "LR"
    IPC = "LI"
    DRIVER = "LD"
    CPU = "LC"
    OTHER = "LO"
    UTILITY = "LU"


class Phase(enum.Enum):
    """What for; the values are NNAPI's letters, the last four are parts of EXECUTION."""

    OVERALL = "PO"
    WARMUP = "PWU"
    BENCHMARK = "PBM"
    INITIALIZATION = "PI"
    PREPARATION = "PP"
    COMPILATION = "PC"
    EXECUTION = "PE"
    TERMINATION = "PT"
    UNSPECIFIED = "PU"
    INPUTS_AND_OUTPUTS = "PIO"
    TRANSFORMATION = "PTR"
    COMPUTATION = "PCO"
    RESULTS = "PR"


class Mark(hal.Struct, frozen=True):
    """A piece of work of a layer in a phase; `detail` says which."""

    layer: Layer
    phase: Phase
    detail: str

    def __str__(self) -> str:
        return f"[NN_{self.layer.value}_{self.phase.value}]{self.detail}"
