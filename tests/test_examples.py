"""Every example runs."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parent.parent / "examples"
EXPECTED = {
    "01_first_inference.py": r"^digit \d+ with a score of \d\.\d\d$",
    "02_deadlines.py": r"^10 microseconds are too few: MissedDeadline",
    "03_burst_stream.py": r"^ *\d+\.\d\d s  (zero|one|two|three|four|five|six|seven|eight|nine)$",
    "04_fenced_chain.py": r"^digit \d+ \(\d\.\d\d\), NONE$",
    "05_video_stream.py": r"^submitted \d+ = completed \d+( \+ \w+ \d+)*$",
    "06_onnx_model.py": r"^they differ by at most \d",
    "07_media_graph.py": r"^best +\d+ +\d+",
    "08_detect_and_track.py": r"^#\d+ is a 7, in \d+ frames$",
    "just_in_time_driver.py": r"cache: hit; loaded: 2 steps$",
    "hal_1_0_driver.py": r"packed: 0, from cache: 1$",
}


NEEDS = {
    "06_onnx_model.py": ("onnx", "onnxruntime"),
    "failures.py": ("starlette",),
    "workloads.py": ("pandas",),
}
"""Packages of extras that an example needs."""


XNNPACK = "INFO: Created TensorFlow Lite XNNPACK delegate for CPU."
"""What LiteRT tells once in each process, and cannot be kept from."""


@pytest.mark.parametrize("name", sorted(path.name for path in FOLDER.glob("*.py")))
def test_example_runs(name: str) -> None:
    for package in NEEDS.get(name, ()):
        pytest.importorskip(package)
    done = subprocess.run(
        [sys.executable, str(FOLDER / name)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    told = [line for line in done.stderr.splitlines() if line != XNNPACK]
    assert told == []
    assert re.search(EXPECTED[name], done.stdout, re.MULTILINE), done.stdout


@pytest.mark.parametrize("name", sorted(path.name for path in (FOLDER / "names").glob("*.py")))
def test_examples_of_names_run(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """In this process: they show names, and change nothing that stays."""
    for package in NEEDS.get(name, ()):
        pytest.importorskip(package)
    runpy.run_path(str(FOLDER / "names" / name), run_name="__main__")
    assert capsys.readouterr().out
