"""Compiling where threads are short: it succeeds, or says so in a typed error."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import anyio
import pytest

import nnasync as nn
from nnasync._core.drivers.null import NullEngine
from nnasync._core.workers.anyio_threads import in_helper_thread
from nnasync.hal import OperationType
from tests.rigs import ONES, REFERENCE, ROW, calculator, runtime

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("no_leaks")]

OPTIONS = nn.Options(cores=2, competition_budget_ms=1)


class Threads:
    """Lets so many threads start, as a system does that is at its limit."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left: int | None = None
        start = threading.Thread.start

        def limited(thread: threading.Thread) -> None:
            if self.left is not None:
                if not self.left:
                    raise RuntimeError("can't start new thread")
                self.left -= 1
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", limited)


@pytest.mark.one_loop  # trio keeps threads from test to test.
@pytest.mark.parametrize(
    "wishes",
    [{}, {"options": nn.CompileOptions(preemption_quantum_ms=0.001)}, {"devices": [REFERENCE]}],
    ids=str,
)
async def test_compiling_ends_typed_however_many_threads_start(
    monkeypatch: pytest.MonkeyPatch, wishes: dict[str, Any]
) -> None:
    threads, outcomes, enough = Threads(monkeypatch), [], False
    for left in itertools.count():
        # It takes a part of the model, so that ways to share it are looked for.
        partial = NullEngine(operation_types={OperationType.ADD})
        async with runtime(partial, REFERENCE, options=OPTIONS) as rt:
            threads.left = left
            try:
                net = await rt.compile(calculator(), **wishes)
            except nn.NNError as error:
                outcomes.append(type(error).__name__)
            else:
                outcomes.append("compiled")
                enough, threads.left = bool(threads.left), None
                assert [each.tolist() for each in await net(ROW, ONES)]
            threads.left = None
        if enough:
            break
    assert outcomes[-1] == "compiled"
    assert "ResourceExhaustedTransient" in outcomes


async def test_what_the_work_raises_is_not_mistaken() -> None:
    def fail() -> None:
        raise RuntimeError("can't start new thread")

    with pytest.raises(RuntimeError, match="can't start"):
        await in_helper_thread(fail)
    assert await in_helper_thread(max, 1, 2, limiter=anyio.CapacityLimiter(1)) == 2
