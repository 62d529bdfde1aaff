"""A child of the crash suite: `python -m nnasync.suites.crash.worker`.

Its order comes in as a line of JSON; each message goes out as one on what was standard output.
What a device prints goes to standard error. `orders` has the words.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
from collections.abc import Callable

import msgspec

from nnasync._core.child_process import lines_to_parent
from nnasync._core.runtime import run
from nnasync.suites.crash.orders import (
    ChildMessage,
    ChildReport,
    CrashOrder,
    DegradationOrder,
    GraphOrder,
    QuietOrder,
    ServiceOrder,
    SoakOrder,
    StressOrder,
)
from nnasync.suites.crash.telling import Teller, error_text

_STANDARD_INPUT = 0
_WORK: dict[type, str] = {
    QuietOrder: "crash.quiet:answer_in_quiet",
    ServiceOrder: "crash.serving:serve_device",
    GraphOrder: "crash.graph_loads:load_graphs",
    DegradationOrder: "crash.degradation:degrade",
    StressOrder: "crash.stress:stress",
    SoakOrder: "soak.load:soak",
}
MAX_LINE_BYTES = 1 << 20


def main() -> int:
    """Carry out the order on standard input; Ctrl-C and SIGTERM are the parent's to handle."""
    send: Callable[[ChildMessage], None] = lines_to_parent()
    order = msgspec.json.decode(_read_line(), type=CrashOrder)
    teller = Teller(send)
    threading.Thread(target=_listen, args=(teller,), daemon=True).start()
    try:
        send(run(_carry_out, order, teller))
    except BrokenPipeError:
        return 1  # Nobody listens any more.
    except Exception as error:  # Whatever it was, the coordinator is to know.
        send(ChildReport((_told(error),)))
    return 0


async def _carry_out(order: CrashOrder, teller: Teller) -> ChildReport:
    """Carry it out; modules are loaded as they are needed, for many children start at once."""
    module, name = _WORK[type(order)].split(":")
    work = getattr(importlib.import_module(f"nnasync.suites.{module}"), name)
    report: ChildReport = await work(order, teller)
    return report


def _told(error: Exception) -> str:
    """Returns an error in words; of a group, the errors in it."""
    if isinstance(error, ExceptionGroup):
        return "; ".join(map(_told, error.exceptions))
    return error_text(error)


def _listen(teller: Teller) -> None:
    """Hear the request to end; who hears the end of the input has no coordinator any more."""
    while _read_line():
        teller.end()
    os._exit(1)


def _read_line() -> bytes:
    """The next line of standard input; empty at its end.

    It goes around the buffer, in which a waiting thread would have the interpreter abort when it
    ends. The coordinator says one thing at a time.
    """
    line = bytearray()
    while not line.endswith(b"\n"):
        part = os.read(_STANDARD_INPUT, MAX_LINE_BYTES)
        if not part:
            return b""
        line += part
    return bytes(line)


if __name__ == "__main__":
    sys.exit(main())
