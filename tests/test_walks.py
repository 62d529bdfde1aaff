"""A call walks through the files that docs/architecture.md lists, in their order."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec
import numpy as np
import pytest

import nnasync
from tests.rigs import INLINE, REFERENCE, doubler, runtime, until_inline

pytestmark = [
    pytest.mark.one_loop("The files are the same on every loop."),
    pytest.mark.anyio,
]

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = Path(nnasync.__file__).parent
PATIENT = msgspec.structs.replace(INLINE, stall_budget_us=1e6)
"""On a busy machine, too, a call finds room in its turn of the loop."""
ROW = re.compile(r"^\| \d+ \| .*?`([a-z_/]+\.py)`", re.MULTILINE)


def told() -> list[str]:
    """The files that the document lists."""
    return ROW.findall((ROOT / "docs" / "architecture.md").read_text(encoding="utf-8"))


class Walk:
    """Notes the files of the package whose functions are called."""

    def __init__(self) -> None:
        self.files: list[str] = []

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(PACKAGE):
            name = str(path.relative_to(PACKAGE)).removeprefix("_core/")
            if name not in self.files:
                self.files.append(name)


def outside_of_drivers(files: list[str]) -> list[str]:
    """The walk, where all files of a driver, and what it calls, are its first."""
    inside = ("drivers/cpu/", "kernels/", "engine/", "plans/arena.py")
    first = next(name for name in files if name.startswith(inside))
    return [name for name in files if name == first or not name.startswith(inside)]


async def test_a_call_takes_the_walk_that_is_told() -> None:
    async with runtime(options=PATIENT) as rt:
        net = await rt.compile(doubler(), devices=[REFERENCE])
        x = np.ones(net.inputs[0].shape, net.inputs[0].dtype)
        await until_inline(rt, net, x)
        walk = Walk()
        sys.setprofile(walk)
        try:
            await net(x)
        finally:
            sys.setprofile(None)
    assert outside_of_drivers(walk.files) == told()
