"""Style sheets and scripts that lie beside modules."""

from __future__ import annotations

import functools
import importlib.resources


@functools.cache
def asset(name: str, package: str = "nnasync._core.pages") -> str:
    """The text of one of them."""
    folder = importlib.resources.files(package)
    return folder.joinpath(name).read_text(encoding="utf-8")
