"""A call and a compilation walk through the files that docs/architecture.md lists."""

from __future__ import annotations

import gc
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec
import numpy as np
import pytest

import nnasync
from nnasync._core.compilation import compiling
from tests.compilation.rig import FakeEngine, ManualClock, chain, competing
from tests.compilation.rig import clock as clock
from tests.rigs import INLINE, REFERENCE, doubler, runtime, until_inline

pytestmark = [
    pytest.mark.one_loop("The files are the same on every loop."),
    pytest.mark.anyio,
]

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = Path(nnasync.__file__).parent
PATIENT = msgspec.structs.replace(INLINE, cores=1, stall_budget_us=1e6)
"""On a busy machine, too, a call finds room in its turn of the loop."""
ROOMS = ("runtime/", "compilation/", "engine_device/", "execution/", "plans/")
"""Those that know of compiling; below are mechanisms, which any call may enter."""
ROW = re.compile(r"^\| \d+ \| .*?`([a-z_/]+\.py)`", re.MULTILINE)


def told(heading: str) -> list[str]:
    """The files that the document lists below a heading."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    return ROW.findall(re.split(r"^##", text.split(f"### {heading}\n")[1], flags=re.MULTILINE)[0])


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


@pytest.fixture
def no_collection() -> Iterator[None]:
    """Collecting what other tests left calls finalizers, which are no part of a walk."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@pytest.mark.usefixtures("no_collection")
async def test_a_call_takes_the_walk_that_is_told() -> None:
    async with runtime(options=PATIENT) as rt:
        net = await rt.compile(doubler(), devices=[REFERENCE])
        x = np.ones(net.inputs[0].shape, net.inputs[0].dtype)
        await until_inline(rt, net, x)
        await net(x)  # Plain calls find what they need from here on.
        walk = Walk()
        sys.setprofile(walk)
        try:
            for _ in range(16):  # Of what is as short as that, one in eight is learnt from.
                await net(x)
        finally:
            sys.setprofile(None)
    assert outside_of_drivers(walk.files) == told("Read along")


@pytest.mark.usefixtures("no_collection")
async def test_a_compilation_takes_the_walk_that_is_told(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What is done in the background does not begin meanwhile.
    monkeypatch.setattr(compiling, "PATIENCE_S", 3600)
    first = nnasync.CompileOptions(wait="first")
    async with competing(FakeEngine("a", clock), REFERENCE) as rt:
        await (await rt.compile(chain(1), options=first)).aclose()  # All is imported.
    walk = Walk()
    threading.setprofile(walk)  # Of the threads that begin from here on.
    try:
        async with competing(FakeEngine("a", clock), REFERENCE) as rt:
            walk.files.clear()
            sys.setprofile(walk)
            try:
                net = await rt.compile(chain(2), options=first)
            finally:
                sys.setprofile(None)
            walked = {name for name in walk.files if name.startswith(ROOMS)}
            await net.aclose()
    finally:
        threading.setprofile(None)
    assert walked == set(told("Read along, compiling"))
