"""A process that examines random graphs.

`python -m nnasync.conformance.random_graphs.graph_worker`.

The assignment and then orders come in as lines of JSON on standard input; each result goes out as
one on what was standard output. A worker that ends without an answer has died of its order. What a
device prints goes to standard error.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import anyio.to_thread
import msgspec

from nnasync._core.child_process import lines_to_parent
from nnasync._core.runtime import Options, open_runtime, run
from nnasync.conformance.random_graphs.inspector import Inspector
from nnasync.conformance.random_graphs.team import TEAM, TeamEngine
from nnasync.conformance.random_graphs.worker_messages import Order, WorkerAssignment

_orders = msgspec.json.Decoder(Order)


def main() -> int:
    """Carry out orders until standard input ends; Ctrl-C and SIGTERM are the parent's to handle."""
    send = lines_to_parent()
    try:
        run(_serve, send)
    except BrokenPipeError:
        return 1  # Nobody listens any more.
    return 0


async def _serve(send: Callable[[object], None]) -> None:
    assignment = msgspec.json.decode(await _read_line(), type=WorkerAssignment)
    wanted = TeamEngine() if assignment.device == TEAM else assignment.device
    async with open_runtime(devices=[wanted], options=Options(cores=1)) as runtime:
        device = runtime.devices[0]
        inspector = Inspector(device, Path(assignment.folder), assignment.menu, assignment.lowering)
        while line := await _read_line():
            send(await inspector.carry_out(_orders.decode(line)))


async def _read_line() -> bytes:
    return await anyio.to_thread.run_sync(sys.stdin.buffer.readline)


if __name__ == "__main__":
    sys.exit(main())
