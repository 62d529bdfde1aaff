"""What others have of the cores: a process and its children are not foreign."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nnasync.suites.foreign_load import ForeignLoad, family_s

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="there is no /proc")

BUSY = "import time\nwhile time.process_time() < 0.3: pass\n"
PARENT = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {BUSY + "print(flush=True); input()"!r}],
                         stdout=subprocess.PIPE, stdin=subprocess.PIPE)
child.stdout.readline()
print(flush=True)
input()
child.communicate(b"\\n")
print(flush=True)
input()
"""


def test_the_time_of_a_family_is_that_of_its_children_too_alive_or_dead() -> None:
    """The child worked, its parent did not; that it has ended since takes nothing away."""
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        parent.stdout.readline()
        alive_s = family_s(parent.pid)
        assert alive_s >= 0.25
        parent.stdin.write(b"\n")
        parent.stdin.flush()
        parent.stdout.readline()
        assert family_s(parent.pid) >= alive_s
        parent.communicate(b"\n")


def test_a_process_that_is_gone_has_no_time() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert family_s(process.pid) == 0


def test_a_share_is_none_of_the_cores_at_least_and_all_of_them_at_most() -> None:
    load = ForeignLoad(os.getpid())
    for _ in range(2):
        assert 0 <= load.lap() <= 1
