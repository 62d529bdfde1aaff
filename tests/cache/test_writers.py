"""Writers that are killed, many at once, or without room: what is accepted is of one writing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from nnasync._core.cache import Store
from tests.cache import writers
from tests.cache.entries import FILES, Files, cache_files, read, written

ROOT = Path(__file__).resolve().parent.parent.parent


def run(store: Store, state_folder: Path, task: str, number: int = 0) -> dict[str, int]:
    """Let `tests.cache.writers` do a task with this cache; what it counted."""
    program = [sys.executable, "-m", "tests.cache.writers", task]
    done = subprocess.run(
        [*program, store.path, str(state_folder), str(number)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    counts = json.loads(done.stdout.splitlines()[-1])
    assert isinstance(counts, dict)
    return counts


def usable_again(store: Store, directory: Path) -> None:
    """The next writing succeeds, and nothing of the killed ones is left."""
    written(store)
    assert read(store) == FILES
    assert len(cache_files(directory)) == 3


def test_killed_before_each_call_of_the_system(
    store: Store, directory: Path, state_folder: Path
) -> None:
    counts = run(store, state_folder, "calls")
    assert counts["kills"] > 60
    assert counts["hits"] > 20
    assert counts["misses"] > 20
    assert counts["finished"] == 2
    assert counts["lost"] == 0
    usable_again(store, directory)


@pytest.mark.parametrize("kills", [10, pytest.param(200, marks=pytest.mark.slow)])
def test_killed_at_random_moments(
    store: Store, directory: Path, state_folder: Path, kills: int
) -> None:
    counts = run(store, state_folder, "moments", kills)
    assert counts["kills"] == counts["hits"] + counts["misses"] == kills
    usable_again(store, directory)


def test_eight_processes_at_once(store: Store, state_folder: Path) -> None:
    counts = run(store, state_folder, "crowd")
    assert counts == {"children": writers.CHILDREN, "hits": 1, "misses": 0}


def test_a_limit_on_the_size_of_files(store: Store, directory: Path, state_folder: Path) -> None:
    counts = run(store, state_folder, "full")
    assert counts["stored"] >= 1
    assert counts["refused"] >= 10
    usable_again(store, directory)


@pytest.mark.parametrize(
    "files",
    [
        ([b"\1\0\0\0" * 10, b"\2\0\0\0" * 300_000], [b"\1\0\0\0" * 5000]),
        ([b"\1\0\0\0" * 10, b"\1\0\0\0" * 300_000], [b"\1\0\0\0" * 4999]),
    ],
)
def test_a_mixture_would_be_noticed(files: Files) -> None:
    assert writers.generation_of(writers.generation(7)) == 7
    with pytest.raises(ValueError, match="one writing"):
        writers.generation_of(files)
