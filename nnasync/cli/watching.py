"""How far long work is: a bar where rich is installed and there is a terminal, else lines."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from nnasync.cli.progress import Progress

Watcher = Callable[[int, int | None, str], None]
"""Called with how much is done, of how much where that is known, and what was done last."""


@contextmanager
def watching(title: str, unit: str, *, every: int = 20) -> Iterator[Watcher]:
    """Yields a function to be called at each step; what it drew on stderr is erased afterwards.

    `unit` is what is counted, in the plural. Where there is no terminal a line is told after
    `every` calls.
    """
    with _bar(title) if _is_lively() else _lines(unit, every) as told:
        yield told


def _is_lively() -> bool:
    return sys.stderr.isatty() and importlib.util.find_spec("rich") is not None


@contextmanager
def _bar(title: str) -> Iterator[Watcher]:
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[last]}"),
    )
    with Bars(*columns, console=Console(stderr=True), transient=True) as bars:
        number = bars.add_task(escape(title), total=None, last="")

        def told(done: int, count: int | None, last: str) -> None:
            bars.update(number, completed=done, total=count, last=escape(last))

        yield told


@contextmanager
def _lines(unit: str, every: int) -> Iterator[Watcher]:
    shown = [""]
    progress = Progress(lambda: shown[0], every=every)

    def told(done: int, count: int | None, last: str) -> None:
        of = "" if count is None else f" of {count}"
        shown[0] = f"{done}{of} {unit}, the last one {last}"
        progress.step()

    with contextlib.closing(progress):
        yield told
