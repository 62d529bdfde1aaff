"""What was decided for a process: by its runtime, and who may look for answers."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

import nnasync as nn
from nnasync.machine import here, kept
from nnasync.machine.decisions import decide
from nnasync.machine.here import HERE, Here
from nnasync.machine.kept import costs_here
from tests.machine.rig import costs


@pytest.mark.parametrize(("cores", "quota", "may"), [(1, None, 0), (2, None, 1), (16, 0.5, 0)])
def test_who_has_one_core_looks_for_nothing(
    monkeypatch: pytest.MonkeyPatch, cores: int, quota: float | None, may: int
) -> None:
    allowed = cores if quota is None else max(1, min(cores, math.ceil(quota)))
    monkeypatch.setattr(here, "cores_allowed", lambda: allowed)
    assert Here().may_poll == bool(may)


@pytest.mark.anyio
async def test_a_runtime_tells_what_its_folder_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HERE, "decisions", Here().decisions)
    monkeypatch.setattr(kept, "measured", lambda: costs(hop_us=30, cold_hop_us=90))
    costs_here(tmp_path)
    options = nn.Options(state_dir=tmp_path)
    async with nn.open_runtime(devices=["nnasync-reference"], options=options):
        assert HERE.decisions == decide(costs(hop_us=30, cold_hop_us=90), 1_000_000)
        assert HERE.decisions.window_ns == 90_000
