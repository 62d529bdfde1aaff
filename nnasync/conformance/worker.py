"""A part of a conformance run in a process of its own: `python -m nnasync.conformance.worker`.

The plan comes in as JSON on standard input; each message goes out as a line of JSON on what was
standard output: a case that begins, a result, why the run stopped, the end. A worker that ends
without its last message has died, with the case that it began. What a device prints goes to
standard error.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import msgspec

from nnasync._core.child_process import lines_to_parent
from nnasync._core.runtime import run
from nnasync.conformance.cases import Case
from nnasync.conformance.plan import Plan, run_plan
from nnasync.conformance.progress_lines import Begun, CaseDone, Ended, Message, Stopped
from nnasync.errors import NNError


def main() -> int:
    """Carry out the plan on standard input; Ctrl-C and SIGTERM are the parent's to handle."""
    send: Callable[[Message], None] = lines_to_parent()

    def begun(case: Case) -> None:
        send(Begun(case.name, case.spec, case.source, case.operations))

    plan = msgspec.json.decode(sys.stdin.buffer.readline(), type=Plan)
    try:
        run(run_plan, plan, lambda result: send(CaseDone(result)), begun)
    except BrokenPipeError:
        return 1  # Nobody listens any more.
    except (NNError, OSError) as error:
        send(Stopped(f"{error}"))
        return 1
    send(Ended())
    return 0


if __name__ == "__main__":
    sys.exit(main())
