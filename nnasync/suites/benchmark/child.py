"""A target in a process of its own: `python -m nnasync.suites.benchmark.child`.

The first line on standard input says which target, each further one is an order to measure. The
answers are lines of JSON on what was standard output: steps, then what came of the order. Arrays go
through files. What a device prints goes to standard error. It ends with its standard input.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import anyio.to_thread
import msgspec
import numpy as np

from nnasync._core.child_process import lines_to_parent
from nnasync._core.runtime import Runtime, run
from nnasync.errors import NNError
from nnasync.suites.benchmark.child_lines import (
    MOVED,
    OUTPUTS,
    TIMES,
    AnswerLine,
    ChildHello,
    FailedLine,
    MeasuredLine,
    MeasureOrder,
    StepLine,
)
from nnasync.suites.benchmark.data import read_arrays, write_arrays
from nnasync.suites.benchmark.measuring import measure, unsupported
from nnasync.suites.benchmark.targets import BenchTarget


def main() -> int:
    """Carry out orders; Ctrl-C and SIGTERM are the parent's to handle."""
    send: Callable[[AnswerLine], None] = lines_to_parent()
    try:
        run(_serve, send)
    except BrokenPipeError:
        return 1  # Nobody listens any more.
    except (NNError, OSError) as error:
        send(FailedLine(str(error)))
    return 0


async def _serve(send: Callable[[AnswerLine], None]) -> None:
    hello = msgspec.json.decode(await _line(), type=ChildHello)
    async with hello.target.open(hello.state_dir) as runtime:
        while line := await _line():
            order = msgspec.json.decode(line, type=MeasureOrder)
            try:
                send(await _carry_out(runtime, hello.target, order, send))
            except NNError as error:
                lacking = await unsupported(runtime.devices, order.job)
                send(FailedLine(lacking or str(error), bool(lacking)))
            except (OSError, MemoryError) as error:
                send(FailedLine(f"{type(error).__name__}: {error}"))


async def _line() -> bytes:
    return await anyio.to_thread.run_sync(sys.stdin.buffer.readline)


async def _carry_out(
    runtime: Runtime, target: BenchTarget, order: MeasureOrder, send: Callable[[AnswerLine], None]
) -> MeasuredLine:
    inputs = await anyio.to_thread.run_sync(read_arrays, Path(order.inputs))
    job = msgspec.structs.replace(order.job, devices=target.names(runtime))
    found = await measure(runtime, job, inputs, lambda text: send(StepLine(text)))
    times = [(np.array(found.latencies),)]
    for name, arrays in ((OUTPUTS, found.outputs), (MOVED, found.moved), (TIMES, times)):
        await anyio.to_thread.run_sync(write_arrays, Path(order.folder) / name, arrays)
    return MeasuredLine(msgspec.structs.replace(found, outputs=(), moved=(), latencies=()))


if __name__ == "__main__":
    sys.exit(main())
