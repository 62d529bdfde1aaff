"""Style sheets and scripts that lie beside these modules."""

from __future__ import annotations

import functools
import importlib.resources


@functools.cache
def asset(name: str) -> str:
    """The text of one of them."""
    folder = importlib.resources.files("nnasync.experiments.report")
    return folder.joinpath(name).read_text(encoding="utf-8")
