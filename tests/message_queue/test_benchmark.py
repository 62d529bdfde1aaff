"""The benchmark of the message queue still runs."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.bench


@pytest.mark.slow
def test_the_benchmark_prints_and_writes_its_figures(tmp_path: Path) -> None:
    figures = tmp_path / "figures"
    done = subprocess.run(
        [
            *(sys.executable, ROOT / "benchmarks" / "message_queue.py"),
            *("--rounds", "1", "--seconds", "0.01", "--only", "nnasync", "--json", figures),
        ],
        capture_output=True,
        text=True,
        env=dict(os.environ, PYTHONPATH=str(ROOT)),
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "kernel's choice: nnasync, parked" in done.stdout
    found = json.loads(figures.read_text(encoding="utf-8"))["microseconds"]
    assert any("one core: nnasync, polling, 4096 B, p99" in name for name in found)
    assert all(0 < value < math.inf for value in found.values())
