"""What a process holds, and when there is none that could hold anything."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nnasync.suites.process_use import ProcessUse, least, process_use

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="there is no /proc")


def test_this_process_holds_something() -> None:
    use = process_use()
    assert use is not None
    assert use.memory_bytes > 1 << 20
    assert use.threads >= 1


def test_a_process_that_has_ended_holds_nothing_that_counts_until_it_is_waited_for() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert process_use(process.pid) is None
    process.wait()
    assert process_use(process.pid) is None


def test_the_least_is_taken_of_each_and_what_is_unknown_takes_nothing_away() -> None:
    one, other = ProcessUse(5, 2, 3), ProcessUse(4, 6, 2)
    assert least(one, other) == ProcessUse(4, 2, 2)
    assert least(None, one) == least(one, None) == one
    assert least(None, None) is None
