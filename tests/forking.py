"""A program that forks while its runtime is open: `python -m tests.forking DEVICE LOOP`.

Its children tell what they may do with what they inherited, and run a runtime of their own, while
executions of the parent are under way. A child that hangs is ended by an alarm.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import anyio
import numpy as np

import nnasync as nn
from nnasync.hal import Array, Model

_CHILDREN, _PATIENCE_S = 3, 60
_X = np.ones((16, 16), np.float32)


def _model() -> Model:
    builder = nn.ModelBuilder("forked")
    value = builder.input("x", (16, 16))
    bias = builder.constant(np.zeros(16, np.float32))
    weights = builder.constant(np.eye(16, dtype=np.float32))
    builder.output("y", builder.fully_connected(value, weights, bias))
    return builder.build()


def _outcome(call: Callable[[], Coroutine[Any, Any, Any]]) -> str:
    """What the first step of a coroutine does, which needs no loop."""
    coroutine = call()
    try:
        coroutine.send(None)
    except nn.BadState as error:
        return str(error)
    except StopIteration:
        return "it ran"
    return "it waits"


async def _own(device: str) -> None:
    async with nn.open_runtime() as runtime:
        net = await runtime.compile(_model(), devices=[device])
        result: Array = await net(_X)
        assert (result == 1).all()


def _child(inherited: Any, device: str, loop: str) -> None:
    runtime, net, burst, context = inherited
    for call in (
        lambda: net(_X),
        lambda: net.launch(_X),
        lambda: burst(_X),
        lambda: runtime.compile(_model(), devices=[device]),
    ):
        assert "forked" in (said := _outcome(call)), said
    assert _outcome(lambda: context.__aexit__(None, None, None)) == "it ran"
    burst.close()
    net.close()
    anyio.run(_own, device, backend=loop)


def _forked(inherited: Any, device: str, loop: str) -> int:
    pid = os.fork()
    if pid:
        return pid
    signal.alarm(_PATIENCE_S)
    status = 1
    try:
        # The loop of the parent is no loop of the child, whatever its library believes.
        _apart(_child, inherited, device, loop)
        status = 0
    finally:
        os._exit(status)


def _apart(work: Callable[..., None], *args: Any) -> None:
    """Do something on a thread of its own, where no loop runs."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            work(*args)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failures:
        sys.excepthook(type(failures[0]), failures[0], failures[0].__traceback__)
        raise failures[0]


async def _main(device: str, loop: str) -> None:
    opening = nn.open_runtime()
    async with opening as runtime:
        net = await runtime.compile(_model(), devices=[device])
        for _ in range(20):
            await net(_X)
        async with net.burst() as burst:
            await burst(_X)
            for _ in range(_CHILDREN):
                launched = [await net.launch(_X) for _ in range(8)]
                pid = _forked((runtime, net, burst, opening), device, loop)
                for execution in launched:
                    await execution.fence
                _, status = await anyio.to_thread.run_sync(os.waitpid, pid, 0)
                print(os.waitstatus_to_exitcode(status), flush=True)
            assert (await burst(_X) == 1).all()
        assert (await net(_X) == 1).all()


if __name__ == "__main__":
    _device, _loop = sys.argv[1:]
    anyio.run(_main, _device, _loop, backend=_loop)
