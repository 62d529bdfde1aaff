"""Compiled networks as bytes, of which copies are made and cache files.

A compiled network can be asked for its bytes, but the package holds the interpreter lock while it
writes them, some 25 ms for 4 MB, and the loop stands still meanwhile. The engine has a cache of its
own, for which it writes the same bytes at the end of a compilation, without the lock. So a network
is compiled with such a cache in a folder that is there for this one alone; the file is mapped, and
folder and name are gone at once. In front of the bytes it has one line, which says what wrote them.
"""

from __future__ import annotations

import io
import mmap
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from nnasync._core.drivers.openvino.package import core, faults, module

_DEVICE = "CPU"
_HEAD = re.compile(rb'<\?xml [^\n]{1,4000} header_size_alignment="0"/>\n')
"""That line where the bytes begin right behind it."""

Export = Callable[[], memoryview]
"""Gives the bytes of one network."""


def compiled(network: Any, config: dict[str, object]) -> tuple[Any, Export]:
    """Compiles a graph; returns that with what gives its bytes. Raises what the engine raises."""
    try:
        with tempfile.TemporaryDirectory(prefix="nnasync-", ignore_cleanup_errors=True) as folder:
            done = core().compile_model(network, _DEVICE, {**config, "CACHE_DIR": folder})
            written = _written_to(Path(folder))
    except (OSError, RuntimeError):
        # Where nothing can be written, it is compiled all the same.
        done, written = core().compile_model(network, _DEVICE, config), None
    return done, (lambda: _asked(done)) if written is None else (lambda: written)


def imported(blob: Any, config: dict[str, object]) -> tuple[Any, None]:
    """Reads a network from a tensor of its bytes, which it does not give a second time.

    Raises what the engine raises.
    """
    return core().import_model(blob, _DEVICE, config), None


def in_engine(blob: bytes | memoryview) -> Any:
    """Bytes in memory of the engine, which keeps it for as long as it reads weights there."""
    data = np.frombuffer(blob, np.uint8)
    tensor = module().Tensor(module().Type.u8, data.shape)
    tensor.data[:] = data
    return tensor


def _written_to(folder: Path) -> memoryview | None:
    """The bytes in the only file of a folder, mapped; None where they are not as expected."""
    try:
        (path,) = folder.iterdir()
        with path.open("rb") as file:
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError):  # ValueError: not one file, or an empty one.
        return None
    head = _HEAD.match(content)
    return None if head is None else memoryview(content)[head.end() :]


def _asked(network: Any) -> memoryview:
    blob = io.BytesIO()
    with faults("exporting"):
        network.export_model(blob)
    return blob.getbuffer()
