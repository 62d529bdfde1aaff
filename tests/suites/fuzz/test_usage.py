"""What memory a process has."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from nnasync.suites.fuzz import usage

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")
MIB = 1 << 20
CHILD = "from nnasync.suites.fuzz import usage; print(usage.peak_bytes())"


def test_the_most_memory_is_not_that_of_who_started_the_process() -> None:
    ours = np.ones(400 * MIB, np.uint8)
    said = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, check=True).stdout
    assert 0 < int(said) < 200 * MIB < ours.nbytes


def test_the_most_memory_counts_what_was_given_back() -> None:
    usage.forget_peak()
    before = usage.peak_bytes()
    np.ones(64 * MIB, np.uint8)
    assert usage.peak_bytes() - before >= 60 * MIB
