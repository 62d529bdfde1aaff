"""Whose code a device runs, as a fingerprint that changes when a third party's driver is edited.

The version of a device says which release it is; the author of a driver edits it a hundred times
within one version. So what is remembered of a device that does not come with nnasync (verdicts of
contests, cached plans) also depends on the names, sizes and times of change of the files of the
package that its class is from. What that package imports from elsewhere is not looked at.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import sys
from collections.abc import Iterator, Sequence

from nnasync._core.drivers import DRIVERS, foreign_offers
from nnasync._core.engine_device import EngineDevice
from nnasync.device import Device

_OURS = "nnasync."
_SUFFIXES = (".py", ".so", ".pyd", ".dylib")
_MAX_FILES = 5000
_UNKNOWN = os.urandom(8).hex()
"""Stands for code without files: what is remembered of it is forgotten with this process."""


def fingerprints(devices: Sequence[Device]) -> dict[str, str]:
    """Returns the digests of drivers' files by device, for drivers that do not come with nnasync.

    It reads folders. Each driver is looked at once in a process: what counts is the code that was
    imported, not what was written since.
    """
    modules = {device.name: _module_of(device) for device in devices}
    return {name: _digest(module) for name, module in modules.items() if module != _OURS}


def _module_of(device: Device) -> str:
    """Returns the module of the class that a driver's author wrote; `_OURS` for nnasync's own."""
    if isinstance(device, EngineDevice):
        module = type(device.known).__module__
    else:
        module = type(getattr(device, "inner", device)).__module__
        if module.startswith(_OURS) and device.name not in DRIVERS:
            offer = foreign_offers()[0].get(device.name)
            return f"service of {device.name}" if offer is None else offer.module
    return _OURS if module.startswith(_OURS) else module


@functools.cache
def _digest(module: str) -> str:
    digest = hashlib.sha256()
    count = 0
    for count, path in enumerate(_files(module), 1):
        found = os.stat(path)
        digest.update(f"{path}\0{found.st_size}\0{found.st_mtime_ns}\n".encode())
        if count >= _MAX_FILES:
            break
    return digest.hexdigest()[:16] if count else _UNKNOWN


def _files(module: str) -> Iterator[str]:
    """Yields the files of code of the package that a module is in, and the module's own file."""
    top = module.partition(".")[0]
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        spec = None
    for place in sorted((spec and spec.submodule_search_locations) or ()):
        for folder, folders, names in os.walk(place):
            folders.sort()
            paths = (os.path.join(folder, name) for name in sorted(names))
            yield from (path for path in paths if path.endswith(_SUFFIXES) and os.path.isfile(path))
    own = getattr(sys.modules.get(module), "__file__", None) or (spec and spec.origin)
    if own and os.path.isfile(own):
        yield own
