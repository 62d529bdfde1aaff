"""What the structs of an experiment have in common: a kind, checks, and the border of units."""

from __future__ import annotations

import math
import os
import re
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from nnasync._core.arguments import told
from nnasync.errors import ExperimentError

MOST = 1e10
"""The largest number that an experiment takes where nothing else is said: 116 days, as time."""

MOST_CORES = 65_536
MOST_CALLERS = 1_000_000
"""More than any machine has; a simulation has a record of each from the beginning."""

_LEAST_HZ, _MOST_HZ = 1e-9, 1e9
_LONGEST_NS = 2.0**62


def _tag(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


class Kind(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag=_tag):
    """Base of alternatives, which files tell apart by `kind`: the class's name in snake_case."""


def a_number(what: str, value: object) -> None:
    """Raise ExperimentError unless a value is a number, which may be infinite or NaN."""
    if not isinstance(value, int | float | np.number) or isinstance(value, bool):
        raise ExperimentError(f"{what} is {told(value)}, and must be a number")


def row(what: str, values: object, kind: type = object) -> None:
    """Raise ExperimentError unless it is a tuple or list, whose entries are of a kind."""
    if not isinstance(values, tuple | list) or not all(isinstance(each, kind) for each in values):
        wanted = "" if kind is object else f" of {kind.__name__}"
        raise ExperimentError(f"{what} is {told(values)}, and must be a tuple or list{wanted}")


def built_in(struct: msgspec.Struct) -> dict[str, Any]:
    """What a file would have of a struct; raises ExperimentError for values that none can have."""
    try:
        form: dict[str, Any] = msgspec.to_builtins(struct, enc_hook=_plain)
    except (TypeError, ValueError) as error:
        raise ExperimentError(str(error)) from error
    return form


def _plain(value: object) -> object:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, os.PathLike):
        return os.fsdecode(value)
    raise ExperimentError(f"a value is {told(value)}, and must be a number or a str")


def at_least(what: str, value: float, least: float, most: float = MOST) -> None:
    """Raise ExperimentError unless a value is a number from `least` to `most`."""
    a_number(what, value)
    if not value >= least:
        raise ExperimentError(f"{what} is {value:g}, and must be {least:g} or more")
    _at_most(what, value, most)


def positive(what: str, value: float, most: float = MOST) -> None:
    """Raise ExperimentError unless a value is greater than 0, finite, and at most `most`."""
    a_number(what, value)
    if not value > 0:
        raise ExperimentError(f"{what} is {value:g}, and must be greater than 0")
    _at_most(what, value, most)


def variation(what: str, cv: float, least: float = 0) -> None:
    """Raise ExperimentError unless a coefficient of variation is from `least` to 100.

    Beyond that nearly all of what is drawn is next to nothing, and the rest beyond measure.
    """
    at_least(what, cv, least, 100)


def startable(what: str, rate_hz: float) -> None:
    """Raise ExperimentError unless a rate is one a century at least, and one a nanosecond at most.

    Nothing could start more; nothing would come of less.
    """
    positive(what, rate_hz, math.inf)
    if rate_hz > _MOST_HZ:
        raise ExperimentError(
            f"{what} is {rate_hz:g}, more than one request a nanosecond, which nothing could start"
        )
    at_least(what, rate_hz, _LEAST_HZ)


def whole_ns(values_ns: NDArray[np.float64], least_ns: int = 0) -> NDArray[np.int64]:
    """Rounds numbers to whole nanoseconds, and limits them to the longest time that there is."""
    return np.clip(np.rint(values_ns), least_ns, _LONGEST_NS).astype(np.int64)


def _at_most(what: str, value: float, most: float) -> None:
    if math.isinf(value):
        raise ExperimentError(f"{what} is {value:g}, and must be a finite number")
    if value > most:
        raise ExperimentError(f"{what} is {value:g}, and must be {most:g} or less")


def to_ns(duration_ms: float) -> int:
    """Converts milliseconds, as people write them, to whole nanoseconds."""
    return round(duration_ms * 1e6)
