"""Figures as text: four digits that tell something, and the interval where there is one."""

from __future__ import annotations

import math
from datetime import UTC, datetime

from nnasync._core.pages.escaping import text
from nnasync._core.pages.tables import number
from nnasync.suites.results import SuiteFigure

_EXACT = 1e15
_LEAST, _MOST = 1e-30, 1e30


def shown(value: float) -> str:
    """A number in short."""
    if not math.isfinite(value):
        return "not a number" if math.isnan(value) else f"{value:+}"
    if value == round(value) and abs(value) < _EXACT:
        return f"{round(value):,}"
    return f"{value:,.0f}" if 1000 <= abs(value) < _EXACT else f"{value:.4g}"


def moment(iso: str) -> str:
    """A time in UTC to the minute; what is none is shown as it is."""
    try:
        return f"{datetime.fromisoformat(iso).astimezone(UTC):%Y-%m-%d %H:%M} UTC"
    except (ValueError, OverflowError):
        return iso


def is_drawable(*values: float | None) -> bool:
    """Returns whether axes can be drawn for these values: they are known and not too large."""
    return all(
        value is not None and (value == 0 or _LEAST < abs(value) < _MOST) for value in values
    )


def cell(figure: SuiteFigure | None) -> str:
    """A cell of a table: the value, its interval, and whether it is worse than the baseline's."""
    if figure is None:
        return number("")
    worse = figure.is_worse
    mark = (
        ' <small title="worse than the baseline, or than is allowed, beyond doubt">worse</small>'
        if worse
        else ""
    )
    return number(told(figure) + mark, figure.value, kind="far" if worse else "")


def told(figure: SuiteFigure) -> str:
    """The value with its interval, as HTML."""
    interval = ""
    if figure.low is not None and figure.high is not None:
        interval = f" <small>{text(f'{shown(figure.low)} … {shown(figure.high)}')}</small>"
    return text(shown(figure.value)) + interval


def title(figure: SuiteFigure) -> str:
    """The name of a figure with its unit."""
    return f"{figure.name}, {figure.unit}" if figure.unit else figure.name
