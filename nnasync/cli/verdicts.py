"""`nnasync verdicts`: who runs which model since a contest decided so, and how to forget it."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from typing import Any

from nnasync import load
from nnasync.cli.text import HelpFormatter, table
from nnasync.devices import KnownVerdict, digests_of, forget_verdicts, verdicts
from nnasync.errors import InvalidArgument, NNError

_EXAMPLES = """examples:
  nnasync verdicts
  nnasync verdicts --forget mobilenet_v2
  nnasync verdicts --forget models/mobilenet_v2.tflite
  nnasync verdicts --forget 3fa8c1
  nnasync verdicts --forget all
"""


def add_parser(commands: Any) -> None:
    """Add this command to the command line."""
    parser = commands.add_parser(
        "verdicts",
        help="list, or forget, which device won for which model",
        description="The first compilation of a model has the devices compete; who won is "
        "remembered. This lists what is: the model's digest and name, who runs it, by how much it "
        "was faster than the next, when that was measured, and under which circumstances. What "
        "is forgotten is measured again by the next compilation, also where a compilation cache "
        "has it.",
        epilog=_EXAMPLES,
        formatter_class=HelpFormatter,
    )
    parser.add_argument(
        "--forget",
        metavar="MODEL|DIGEST|all",
        help="forget the verdicts on a model: its name, its file, or six digits of its digest",
    )
    parser.set_defaults(command=_command)


def _command(arguments: argparse.Namespace) -> int:
    return _list() if arguments.forget is None else _forget(arguments.forget)


def _list() -> int:
    known, unreadable = verdicts()
    if known:
        heads = ("model", "name", "runs on", "a run", "next", "measured", "circumstances")
        print(table(heads, [_row(each) for each in known]))
    else:
        print("no verdicts: no model was compared on several devices yet")
    for other in unreadable:
        print(f"skipped: {other.file}: {other.reason}", file=sys.stderr)
    return 0


def _forget(which: str) -> int:
    meant = _digests(which) if os.path.isfile(which) else [which]
    count = sum(forget_verdicts(each) for each in meant)
    if not count:
        print(f"nnasync: no verdict is about {which!r}", file=sys.stderr)
        return 1
    print(f"forgot {count} verdict{'s' if count > 1 else ''}")
    return 0


def _digests(path: str) -> Sequence[str]:
    """Returns the digests of a file and of the model in it, since programs compile either."""
    try:
        found = digests_of(path)
    except InvalidArgument:
        return [path]  # No model: a name like that of this file.
    try:
        return [*found, *digests_of(load(path, value_limit_bytes=sys.maxsize))]
    except NNError as error:
        print(f"nnasync: {path} is taken as a file only: {error}", file=sys.stderr)
    return found


def _row(known: KnownVerdict) -> tuple[str, ...]:
    run = "" if known.median_us is None else f"{known.median_us:.1f} us"
    lead = "" if known.lead is None else f"{known.lead:.2f} times: {known.runner_up}"
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(known.held_at_s))
    return (
        known.model,
        known.name,
        f"{known.device}, {known.lowering}" if known.device else "",
        run,
        lead,
        when if known.held_at_s else "",
        _circumstances(known),
    )


def _circumstances(known: KnownVerdict) -> str:
    words = [known.preference, *([known.precision] if known.precision else [])]
    words.append(f"{known.cores} cores")
    if known.is_provisional:
        words.append("not final: it goes on when the machine is quiet")
    elif known.crowding > 1:
        words.append(f"crowding {known.crowding:.2f}")
    if not known.is_of_this_machine:
        words.append("of another machine")
    return ", ".join(words)
