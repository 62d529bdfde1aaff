"""`nnasync top`: what the runtimes of this user do, live; or what one did, by its trace."""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from nnasync.cli.argument_types import number
from nnasync.cli.text import HelpFormatter
from nnasync.cli.top.reading import parse, read
from nnasync.cli.top.recorded import recorded
from nnasync.cli.top.told import as_text
from nnasync.cli.top.view import Look, Picture, picture
from nnasync.errors import DeviceUnavailable, InvalidArgument
from nnasync.tracing import monitors

_EXAMPLES = """examples:
  nnasync top
  nnasync top --once --json
  nnasync top --url http://127.0.0.1:9090/metrics
  nnasync top trace.json                             what `nnasync run --trace trace.json` wrote

A program shows itself with `async with nn.open_runtime() as rt, nnasync.tracing.monitored(rt):`.
"""
_CLEAR = "\x1b[H\x1b[J"


def add_parser(commands: Any) -> None:
    """Add this command to the command line."""
    parser = commands.add_parser(
        "top",
        help="look at running programs",
        description="Show what runtimes do: calls by network, device and priority, what became of "
        "them, how long runs and waits took, what waits, which processes drivers have. Looked at "
        "are all programs of this user that show themselves, or the addresses of --url. Of a trace "
        "that `nnasync run --trace FILE` wrote it tells the same once.",
        epilog=_EXAMPLES,
        formatter_class=HelpFormatter,
    )
    parser.add_argument("file", metavar="FILE", type=Path, nargs="?", help="a trace to sum up")
    parser.add_argument(
        "--url",
        action="append",
        default=[],
        metavar="URL",
        help="metrics to look at instead; may be repeated",
    )
    parser.add_argument(
        "--interval", type=_seconds, default=1.0, metavar="S", help="seconds between two looks (1)"
    )
    parser.add_argument("--once", action="store_true", help="print one interval, and end")
    parser.add_argument("--json", action="store_true", help="print JSON, a line an interval")
    parser.set_defaults(command=_command)


def _seconds(text: str) -> float:
    value = number(text)
    if not 0.05 <= value <= 3600:
        raise argparse.ArgumentTypeError("an interval is 0.05 to 3600 seconds")
    return value


def _command(arguments: argparse.Namespace) -> int:
    if arguments.file is not None:
        if arguments.url:
            raise InvalidArgument("FILE and --url are two things to look at: give one of them")
        seen = {_printable(str(arguments.file)): recorded(arguments.file)}
        print(_json(seen) if arguments.json else _text(seen))
        return 0
    clears = sys.stdout.isatty() and not (arguments.once or arguments.json)
    for seen in watch(arguments.url, lambda: time.sleep(arguments.interval)):
        told = _json(seen) if arguments.json else _text(seen)
        print(f"{_CLEAR}{told}" if clears else told, flush=True)
        if arguments.once:
            return 0 if seen else 1
    return 0


def watch(places: Sequence[str], wait: Callable[[], object]) -> Iterator[dict[str, Picture]]:
    """Yields pictures of all processes by their titles, after each `wait`; never ends by itself.

    Raises DeviceUnavailable where the first look at one of `places` finds nobody.
    """
    for place in places:
        read(place)
    before = _looks(places)
    while True:
        wait()
        after = _looks(places)
        yield {title: picture(before[title], after[title]) for title in after if title in before}
        before = after


def _looks(places: Sequence[str]) -> dict[str, Look]:
    """Returns what can be read of each process now; leaves out processes that have ended."""
    found = {}
    for title, place in _places(places):
        with contextlib.suppress(DeviceUnavailable):
            samples = parse(read(place))
            found[title] = Look(time.monotonic(), samples)
    return found


def _places(places: Sequence[str]) -> Iterable[tuple[str, str]]:
    if places:
        return [(place, place) for place in places]
    seen: dict[str, str] = {}
    for each in monitors():
        title = f"process {each.pid}: {_command_line(each.pid)}"
        while title in seen:
            title += ", another runtime"
        seen[title] = f"unix:{each.socket}"
    return seen.items()


def _command_line(pid: int) -> str:
    """Returns the command line of a process on one line."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return "?"
    told = " ".join(word.decode(errors="replace") for word in words if word)
    return _printable(told)[:100]


def _printable(text: str) -> str:
    return "".join(each if each.isprintable() else "?" for each in text)


def _text(seen: dict[str, Picture]) -> str:
    if not seen:
        return (
            "no program of this user shows itself; one does with `async with "
            "nnasync.tracing.monitored(rt):`"
        )
    return "\n\n".join(as_text(title, each) for title, each in seen.items())


def _json(seen: dict[str, Picture]) -> str:
    return msgspec.json.encode(seen).decode()
