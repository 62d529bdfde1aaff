"""What a suite found out about devices, as data: what its file holds and its page shows.

One shape for all suites, so that one page, one comparison and one report for CI serve them all: a
row is what one subject (a network, a mode of the crash suite, a way of fuzzing) did on one device.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from nnasync.errors import InvalidArgument
from nnasync.suites.files import replace_file

FORMAT = 1


class Standing(enum.Enum):
    """How a row ended; what is worse comes later."""

    SUCCESS = "success"
    SKIPPED = "skipped"
    """The device does not take the subject, or the data for it are not there."""
    FAILURE = "failure"
    HANG = "hang"
    CRASH = "crash"


class Better(enum.Enum):
    """Which way a figure is better, if either."""

    LESS = "less"
    MORE = "more"
    NEITHER = "neither"


class SuiteFigure(msgspec.Struct, frozen=True):
    """One figure of a row: `value` in `unit`, within `low` and `high` where an interval is known.

    `is_worse` is whether it is worse than the baseline's beyond doubt, None where that was not
    asked.
    """

    name: str
    value: float
    unit: str = ""
    low: float | None = None
    high: float | None = None
    better: Better = Better.NEITHER
    is_worse: bool | None = None


class Bars(msgspec.Struct, frozen=True):
    """A histogram: `counts` of values from `start` on, in buckets that are `step` wide."""

    name: str
    unit: str
    start: float
    step: float
    counts: tuple[int, ...]


class Finding(msgspec.Struct, frozen=True):
    """Something that is wrong, the command that repeats it, and a file that shows it."""

    text: str
    command: str = ""
    file: str = ""


class SuiteRow(msgspec.Struct, frozen=True):
    """What `subject` did on `device` in `seconds`; `text` says why it was skipped or failed."""

    subject: str
    device: str
    standing: Standing
    seconds: float
    text: str = ""
    figures: tuple[SuiteFigure, ...] = ()
    bars: tuple[Bars, ...] = ()
    findings: tuple[Finding, ...] = ()
    is_baseline: bool = False


class SuiteResult(msgspec.Struct, frozen=True):
    """One run of a suite: `command` repeats it; `began_at` is in ISO 8601 with the zone.

    `machine` and `versions` say where it ran. With `is_partial` it was ended before its time.
    """

    suite: str
    command: str
    began_at: str
    seconds: float
    rows: tuple[SuiteRow, ...]
    machine: dict[str, str]
    versions: dict[str, str]
    is_partial: bool = False
    format: int = FORMAT

    @property
    def standing(self) -> Standing:
        """The worst standing of all rows."""
        return worst_of(self.rows)


_SEVERITY = {standing: place for place, standing in enumerate(Standing)}


def worst_of(rows: Iterable[SuiteRow]) -> Standing:
    """The worst standing of these rows; success if there are none."""
    return max((row.standing for row in rows), key=_SEVERITY.__getitem__, default=Standing.SUCCESS)


def write_suite(path: Path, result: SuiteResult) -> None:
    """Write a result as JSON; the file is whole or not there. Raises OSError."""
    data = _writable(msgspec.to_builtins(result))
    replace_file(path, msgspec.json.format(msgspec.json.encode(data)) + b"\n")


def read_suite(path: Path) -> SuiteResult:
    """Read what `write_suite` wrote.

    Raises InvalidArgument with the place in the file for anything else, OSError where it cannot be
    read.
    """
    try:
        result = msgspec.json.decode(path.read_bytes(), type=SuiteResult, strict=False)
    except msgspec.DecodeError as error:
        raise InvalidArgument(f"{path} is no result of a suite: {error}") from error
    if result.format != FORMAT:
        raise InvalidArgument(
            f"{path} has format {result.format} of a suite's result; this version reads {FORMAT}"
        )
    return result


def _writable(data: Any) -> Any:
    """Returns a value in a form that JSON has: infinite numbers as words, file names escaped."""
    if isinstance(data, dict):
        return {_writable(key): _writable(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [_writable(each) for each in data]
    if isinstance(data, float) and not math.isfinite(data):
        return str(data)
    if isinstance(data, str):
        return data.encode(errors="backslashreplace").decode()
    return data
