"""Packages of engines, imported so that other threads wait little for the interpreter lock.

An import keeps the lock in two ways, each for milliseconds, and each is met here: the system loads
a shared library, which is done before; and an extension makes its types, between which the lock is
given away where Python lets us. What an extension computes in one piece when it is imported cannot
be helped. Nor can pages that a growing heap has the system map: to have them mapped before, by a
block that is freed again, makes glibc keep large blocks in its heaps for good.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import importlib.util
import os
import sys
import threading
import time
from collections.abc import Iterator
from types import ModuleType

from nnasync._core.collecting import collecting_new
from nnasync._core.endings import IMPORTS

_OBJECTS = 200
"""New objects from one turn of the collector to the next, which take half a millisecond."""

_loading_ns: dict[str, int] = {}


def imported(name: str) -> ModuleType:
    """A module of a package; how long it took to import the first time is remembered."""
    if name in sys.modules:
        return importlib.import_module(name)
    began_ns = time.perf_counter_ns()
    with IMPORTS, _interrupted():
        module = importlib.import_module(name)
    _loading_ns.setdefault(name, time.perf_counter_ns() - began_ns)
    return module


def loading_ns(name: str) -> int:
    """How long `imported` took to import a module; 0 where it has not yet."""
    return _loading_ns.get(name, 0)


def load_library(package: str, beginning: str) -> None:
    """Have the system load a shared library of a package, which it does without the lock.

    The import loads it as well, but keeps the interpreter lock for 3 to 10 ms meanwhile. The path
    inside the package begins so. What fails here fails there again, and is told there.
    """
    if sys.platform != "linux" or package in sys.modules:
        return
    spec = importlib.util.find_spec(package)
    for place in (spec and spec.submodule_search_locations) or ():
        folder, name = os.path.split(os.path.join(place, beginning))
        for entry in os.scandir(folder) if os.path.isdir(folder) else ():
            if entry.name.startswith(name) and entry.name.endswith(".so"):
                ctypes.CDLL(None).dlopen(os.fsencode(entry.path), os.RTLD_NOW)


@contextlib.contextmanager
def _interrupted() -> Iterator[None]:
    """Have this thread give the interpreter lock away now and then, also inside of a library.

    OpenVINO's extension makes its types in one call of eight to twelve milliseconds, and no other
    thread gets the lock meanwhile. Up to Python 3.11 the garbage collector runs inside of such a
    call, after so many new objects, and calls back: there the lock can be given away. Later
    versions wait with it for the end of the call, so there this does nothing.
    """
    thread = threading.get_ident()

    def yield_lock(phase: str, _: dict[str, int]) -> None:
        if phase == "start" and threading.get_ident() == thread:
            time.sleep(0)

    gc.callbacks.append(yield_lock)
    try:
        with collecting_new(_OBJECTS):
            yield
    finally:
        gc.callbacks.remove(yield_lock)
