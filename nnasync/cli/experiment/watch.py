"""How far an experiment is, run by run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from nnasync.cli.watching import watching
from nnasync.experiments import Experiment, Run

Told = Callable[[int, int, Run], None]


@contextmanager
def watch(experiment: Experiment) -> Iterator[Told]:
    """Yields a function that is to be called after each run."""
    with watching(experiment.title or experiment.name, "runs") as told:
        yield lambda done, count, last: told(done, count, _last(last))


def _last(run: Run) -> str:
    parts = [f"{key.rpartition('.')[2]} {value}" for key, value in run.values.items()]
    return ", ".join([*parts, run.result.kind])
