"""Resident memory: plans that never ran hold no arenas, and idle ones give theirs back."""

from __future__ import annotations

import gc
import mmap
from pathlib import Path

import numpy as np
import pytest

import nnasync as nn
from nnasync._core.drivers.cpu import ReferenceEngine
from nnasync._core.drivers.cpu.plan import memory_plan
from nnasync.engine import Plan, StopFlag
from nnasync.hal import ExecutionPreference, Model

STATM = Path("/proc/self/statm")
pytestmark = pytest.mark.skipif(not STATM.exists(), reason="needs /proc to read resident memory")

SHAPE = (1, 256, 256, 8)
MIB = 1 << 20


def resident() -> int:
    """Bytes of memory that this process holds now."""
    gc.collect()
    return int(STATM.read_text().split()[1]) * mmap.PAGESIZE


def wide() -> Model:
    """Much data, few weights: three sums of an image."""
    m = nn.ModelBuilder("wide")
    x = m.input("x", SHAPE)
    y = m.add(x, x)
    m.output("y", m.add(m.mul(y, y), x))
    return m.build()


def run(plan: Plan) -> None:
    x, y = np.zeros(SHAPE, np.float32), np.zeros(SHAPE, np.float32)
    assert plan.bind([x], [y]).run(StopFlag())


def test_only_plans_that_run_hold_an_arena() -> None:
    model, engine = wide(), ReferenceEngine()
    arena = memory_plan(model).total
    assert arena > 4 * MIB
    run(engine.compile(model, ExecutionPreference.FAST_SINGLE_ANSWER))
    before = resident()
    plans = [engine.compile(model, ExecutionPreference.FAST_SINGLE_ANSWER) for _ in range(50)]
    assert resident() - before < 50 * MIB / 4
    for plan in plans[:10]:
        run(plan)
    running = resident()
    assert running - before > 9 * arena
    for plan in plans:
        plan.trim()
    assert running - resident() > 9 * arena
    run(plans[0])
