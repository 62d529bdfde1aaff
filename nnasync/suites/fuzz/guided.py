"""Inputs that are chosen by what code they reach: atheris, where it is installed."""

from __future__ import annotations

import gc
import importlib
import random
import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any

from nnasync._core.packages import is_importable
from nnasync.errors import InvalidArgument
from nnasync.suites.fuzz.conversation import Begun, Done, Guided, Said
from nnasync.suites.fuzz.decisions import decisions_in
from nnasync.suites.fuzz.inputs import FuzzInput, Recipe, made
from nnasync.suites.fuzz.seeds import FuzzSeeds
from nnasync.suites.fuzz.verdicts import InputResult

_LONGEST = 2000


class _Enough(Exception):
    """So many inputs were wanted."""


def check_guide() -> None:
    """Raise InvalidArgument that says what to install where there is no atheris."""
    if not is_importable("atheris"):
        raise InvalidArgument(
            "fuzzing that is guided by coverage needs atheris, which is not installed:"
            " pip install 'nnasync[fuzz]' (it is there for Linux and Python up to 3.13)"
        )


def guide(
    task: Guided,
    seeds: FuzzSeeds,
    say: Callable[[Said], None],
    tried: Callable[[FuzzInput], InputResult],
) -> None:
    """Try inputs whose decisions are bytes that libFuzzer writes, in the main thread, as it wants.

    It ends the process when it has enough. Raises InvalidArgument.
    """
    check_guide()
    names = seeds.names(task.kind.suffix)
    state = {"number": 0}

    def one(data: bytes) -> None:
        number = state["number"]
        if number >= task.runs:
            raise _Enough
        state["number"] = number + 1
        name = random.Random(number // 100).choice(names)
        recipe = Recipe(task.kind, name, tuple(decisions_in(data)))
        given = made(recipe, seeds)
        say(Begun(number, 0, recipe, given.digest))
        say(Done(number, tried(given)))

    _fuzz(one, task)


def _fuzz(one: Callable[[bytes], None], task: Guided) -> None:
    atheris: Any = importlib.import_module("atheris")
    for function in gc.get_objects():
        if isinstance(function, FunctionType) and _is_watched(function):
            atheris.instrument_func(function)
    arguments = [sys.argv[0], f"-seed={task.seed + 1}", f"-max_len={_LONGEST}", "-len_control=0"]
    arguments += [f"-runs={task.runs}", "-rss_limit_mb=0", "-timeout=0", "-verbosity=0"]
    atheris.Setup(arguments, one)
    try:
        atheris.Fuzz()
    except _Enough:
        return


def _is_watched(function: FunctionType) -> bool:
    module = function.__module__ or ""
    return module.startswith("nnasync.") and not module.startswith("nnasync.suites.")
