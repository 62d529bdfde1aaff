"""What compiling leaves to threads: imports, samples, and the ends of plans."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from typing import Any

import pytest

from nnasync._core.compilation.contenders import let_go
from tests.compilation.rig import FakeEngine, ManualClock, competing, way
from tests.compilation.rig import clock as clock
from tests.rigs import doubler

pytestmark = pytest.mark.filterwarnings("ignore:network .* was dropped:ResourceWarning")


class Mortal:
    """Notes which thread ended it."""

    def __init__(self) -> None:
        self.ended_on: list[int] = []

    def made(self) -> Any:
        return _End(self.ended_on)


class _End:
    def __init__(self, ended_on: list[int]) -> None:
        self._ended_on = ended_on

    def __del__(self) -> None:
        self._ended_on.append(threading.get_ident())


@pytest.mark.anyio
async def test_what_is_let_go_ends_on_another_thread() -> None:
    mortal = Mortal()
    things = [mortal.made(), None, mortal.made()]
    await let_go(things)
    assert things == []
    assert len(mortal.ended_on) == 2
    assert threading.get_ident() not in mortal.ended_on
    await let_go([])


@pytest.mark.anyio
async def test_plans_that_lose_end_on_other_threads(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    mortal = Mortal()
    loser, winner = FakeEngine("a", clock, way(us=100)), FakeEngine("b", clock, way(us=60))
    compile_plan = loser.compile

    def compile_mortal(*arguments: Any) -> Any:
        plan = compile_plan(*arguments)
        plan.end = mortal.made()
        return plan

    monkeypatch.setattr(loser, "compile", compile_mortal)
    async with competing(loser, winner) as rt:
        net = await rt.compile(doubler())
        gc.collect()
        assert net.report().partitions[0].device == "b"
    assert mortal.ended_on
    assert threading.get_ident() not in mortal.ended_on


IMPORTS = """
import importlib.abc, sys, threading
loop = threading.get_ident()
found = []

class Spy(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if threading.get_ident() == loop and (name + '.').startswith(WATCHED):
            found.append(name)
        return None

OURS = 'nnasync._core.compilation.'
WATCHED = (OURS + 'compiler.', OURS + 'contest.', 'anyio._backends.')
import nnasync as nn

async def main():
    async with nn.open_runtime(devices=['nnasync-reference']) as rt:
        sys.meta_path.insert(0, Spy())
        builder = nn.ModelBuilder('sum')
        x = builder.input('x', (1, 4))
        builder.output('y', builder.add(x, x))
        net = await rt.compile(builder.build())
        net.close()

nn.run(main)
print(found)
"""


def test_the_first_compilation_imports_beside_the_loop() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", IMPORTS], capture_output=True, text=True, timeout=60, check=True
    )
    assert ran.stdout.strip() == "[]"
