"""The allocator of a process that serves keeps what was freed."""

from __future__ import annotations

import subprocess
import sys

import pytest

COUNT = """
import resource, sys
from nnasync.serving.process_memory import keep_memory

if sys.argv[1] == "kept":
    keep_memory()


def use():
    for _ in range(20):
        blocks = [bytearray(600_000) for _ in range(4)]
        for block in blocks:
            block[::4096] = b"x" * len(block[::4096])


use()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
use()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="it is about glibc")
def test_pages_that_were_freed_are_not_asked_for_again() -> None:
    usual, kept = (
        int(subprocess.check_output([sys.executable, "-c", COUNT, which], timeout=60))
        for which in ("usual", "kept")
    )
    assert kept < usual / 4


def test_what_is_there_is_looked_at_no_more() -> None:
    script = """
import gc
from nnasync.serving.process_memory import keep_objects
keep_objects()
assert gc.get_freeze_count() > 10_000
assert len(gc.get_objects()) < 1000
assert gc.isenabled()
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
