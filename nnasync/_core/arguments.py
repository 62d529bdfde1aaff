"""What users give to public functions, checked where they give it: numbers, choices, functions.

What is compared with a number, put into arithmetic or called only later would fail there, with an
error that names nothing the user wrote; NaN would not fail at all. The checks raise InvalidArgument
with the argument's name, what it is and what it must be. A boolean is no number here.
"""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from numbers import Rational
from typing import Any

import numpy as np

from nnasync.errors import InvalidArgument
from nnasync.hal import Array

_LONGEST = 60
_NUMBERS = (int, float, np.integer, np.floating, Rational)
_LONGEST_SIDE = 1 << 16


def is_finite(value: object) -> bool:
    """Whether it is a number that is neither infinite nor NaN."""
    if not isinstance(value, _NUMBERS) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond all floats
        return False


def is_whole(value: object) -> bool:
    """Whether it is a whole number, Python's or numpy's."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def check_whole(
    name: str, value: object, least: int | None = None, most: int | None = None
) -> None:
    """Raise InvalidArgument unless it is a whole number from `least` to `most`."""
    if not is_whole(value) or not _is_within(value, least, most):
        raise _wrong(name, value, "a whole number", _range(least, most))


def check_number(
    name: str, value: object, least: float | None = None, most: float | None = None
) -> None:
    """Raise InvalidArgument unless it is a finite number from `least` to `most`."""
    if not is_finite(value) or not _is_within(value, least, most):
        raise _wrong(name, value, "a finite number", _range(least, most))


def check_positive(name: str, value: object, most: float | None = None) -> None:
    """Raise InvalidArgument unless it is a finite number above 0, and at most `most`."""
    if not is_finite(value) or _is_within(value, None, 0) or not _is_within(value, None, most):
        rest = "" if most is None else f" and at most {most}"
        raise _wrong(name, value, "a finite number", f" above 0{rest}")


def or_none(check: Callable[..., None], name: str, value: object, *arguments: Any) -> None:
    """Run a check on what may be None as well, which its error says."""
    if value is None:
        return
    try:
        check(name, value, *arguments)
    except InvalidArgument as error:
        raise InvalidArgument(f"{error}, or None") from None


def check_share(name: str, value: object) -> None:
    """Raise InvalidArgument unless it is a number from 0 to 1."""
    check_number(name, value, 0, 1)


def check_choice(name: str, value: object, choices: Collection[str]) -> None:
    """Raise InvalidArgument unless it is one of some words."""
    if not isinstance(value, str) or value not in choices:
        raise _wrong(name, value, " or ".join(f'"{each}"' for each in choices), "")


def check_kind(name: str, value: object, kind: type | tuple[type, ...], wanted: str) -> None:
    """Raise InvalidArgument unless it is an instance of `kind`, which `wanted` tells in words."""
    if not isinstance(value, kind):
        raise _wrong(name, value, wanted, "")


def check_callable(name: str, value: object, wanted: str) -> None:
    """Raise InvalidArgument unless it can be called, and awaited perhaps."""
    if not callable(value):
        raise _wrong(name, value, wanted, "")


def check_function(name: str, value: object, wanted: str) -> None:
    """Raise InvalidArgument unless it can be called and answers at once, as no coroutine does."""
    if not callable(value) or inspect.iscoroutinefunction(value):
        raise _wrong(name, value, wanted, "")


def entries(values: object) -> tuple[Any, ...] | None:
    """Returns what a row consists of, be it a tuple, an array or an iterator.

    None for one word, and for what is no row.
    """
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        return None
    try:
        return tuple(values)
    except TypeError:  # an array of no dimension
        return None


def words(name: str, values: object) -> tuple[str, ...]:
    """Returns words that are given one after the other; raises InvalidArgument for one word."""
    row = entries(values)
    if row is None or not all(isinstance(word, str) for word in row):
        raise _wrong(name, values, "a tuple or list of str", "")
    return row


def check_size(name: str, size: object) -> None:
    """Raise InvalidArgument for what is not (height, width), each from 1 to 65536."""
    if not isinstance(size, tuple | list) or list(map(_is_side, size)) != [True, True]:
        raise InvalidArgument(
            f"{name} is {told(size)}, it must be (height, width), two whole numbers from 1 to "
            f"{_LONGEST_SIDE}"
        )


def _is_side(side: object) -> bool:
    return isinstance(side, int | np.integer) and bool(1 <= side <= _LONGEST_SIDE)


def check_options(name: str, values: object) -> None:
    """Raise InvalidArgument unless it is a mapping of words to words."""
    pairs = values.items() if isinstance(values, Mapping) else ((None, None),)
    if not all(isinstance(word, str) for pair in pairs for word in pair):
        raise _wrong(name, values, "a dict of str to str", "")


def path_of(name: str, path: object) -> str:
    """A path as text; raises InvalidArgument for what is neither str nor os.PathLike.

    What it is is not shown: it may be an address with a password.
    """
    if isinstance(path, str | os.PathLike):
        return os.fsdecode(path)
    raise InvalidArgument(f"{name} is of type {type(path).__name__}, it must be a str or a path")


def numbers(name: str, values: Any) -> Array:
    """An array of real numbers, whole or not, that may be infinite; raises InvalidArgument."""
    try:
        array = np.asarray(values)
    except ValueError as error:  # rows of different lengths
        raise InvalidArgument(f"{name}: no array can be made of it ({error})") from error
    if array.dtype.kind not in "iuf":
        raise _wrong(name, values, "an array of numbers", "")
    return array


def told(value: object) -> str:
    """A value in an error: itself where it is short, else what it is."""
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype} {list(value.shape)}"
    if inspect.isroutine(value):
        kind = "coroutine function" if inspect.iscoroutinefunction(value) else "function"
        return f"the {kind} {value.__name__}"
    text = repr(value)
    hint = "; await it first" if inspect.isawaitable(value) else ""
    is_plain = len(text) <= _LONGEST and not text.startswith("<")
    return text if is_plain else f"of type {type(value).__name__}{hint}"


def _is_within(value: Any, least: float | None, most: float | None) -> bool:
    return (least is None or value >= least) and (most is None or value <= most)


def _range(least: float | None, most: float | None) -> str:
    if least is None:
        return ""
    return f", at least {least}" if most is None else f" from {least} to {most}"


def _wrong(name: str, value: object, wanted: str, rest: str) -> InvalidArgument:
    return InvalidArgument(f"{name} is {told(value)}, it must be {wanted}{rest}")
