"""How far an experiment is: a bar where rich is installed and there is a terminal, else lines."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from nnasync.cli.progress import Progress
from nnasync.experiments import Experiment, Run

Told = Callable[[int, int, Run], None]
_LINES = 20


@contextmanager
def watch(experiment: Experiment) -> Iterator[Told]:
    """What is to be called after each run, on standard error; what it drew is gone afterwards."""
    with _bar(experiment.title or experiment.name) if _is_lively() else _lines() as told:
        yield told


def _is_lively() -> bool:
    return sys.stderr.isatty() and importlib.util.find_spec("rich") is not None


@contextmanager
def _bar(title: str) -> Iterator[Told]:
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

        def told(done: int, count: int, last: Run) -> None:
            bars.update(number, completed=done, total=count, last=escape(_last(last)))

        yield told


@contextmanager
def _lines() -> Iterator[Told]:
    shown = ["", 0, 0]

    def line() -> str:
        return f"{shown[1]} of {shown[2]} runs, the last one {shown[0]}"

    progress = Progress(line, every=_LINES)

    def told(done: int, count: int, last: Run) -> None:
        shown[:] = [_last(last), done, count]
        progress.step()

    with contextlib.closing(progress):
        yield told


def _last(run: Run) -> str:
    parts = [f"{key.rpartition('.')[2]} {value}" for key, value in run.values.items()]
    return ", ".join([*parts, run.result.kind])
