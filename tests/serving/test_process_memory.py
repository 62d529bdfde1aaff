"""The allocator of a process that serves keeps what was freed."""

from __future__ import annotations

import subprocess
import sys

import pytest

COUNT = """
import resource, sys
from nnasync.serving.process_memory import keep_memory

if sys.argv[1] != "usual":
    keep_memory(shared=sys.argv[1] == "shared")


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
    usual, *kept = (
        int(subprocess.check_output([sys.executable, "-c", COUNT, which], timeout=60))
        for which in ("usual", "shared", "apart")
    )
    assert max(kept) < usual / 4


@pytest.mark.skipif(sys.platform != "linux", reason="it is about glibc")
@pytest.mark.parametrize(("shared", "arenas"), [(True, 1), (False, 41)])
def test_threads_share_an_arena_or_have_their_own(shared: bool, arenas: int) -> None:
    script = f"""
import ctypes, threading
from nnasync.serving.process_memory import keep_memory

keep_memory(shared={shared})
malloc, free = ctypes.CDLL(None).malloc, ctypes.CDLL(None).free
malloc.restype, free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
begun, over = threading.Barrier(41), threading.Event()

def work():
    block = malloc(5000)
    begun.wait()
    over.wait()
    free(block)

threads = [threading.Thread(target=work) for _ in range(40)]
for thread in threads:
    thread.start()
begun.wait()
ctypes.CDLL(None).malloc_stats()
over.set()
"""
    told = subprocess.run(
        [sys.executable, "-c", script], check=True, timeout=60, capture_output=True, text=True
    )
    assert sum(line.startswith("Arena ") for line in told.stderr.splitlines()) == arenas
