"""Charts as inline SVG: lines with their confidence, points with whiskers, steps.

Colors are classes (`c0` to `c7`), which the style sheet of the page gives for light and dark; every
shape has a `<title>`, which browsers show when they are pointed at.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from nnasync._core.pages.escaping import text
from nnasync._core.pages.scales import Scale, Words

WIDTH, HEIGHT = 460.0, 270.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 58.0, 14.0, 12.0, 40.0
COLORS = 8
Form = Literal["line", "points", "steps", "curve", "dashed"]
_CHARACTER = 6.4
"""About how wide one character of a label is."""


class Mark(msgspec.Struct, frozen=True):
    """A point of a series, with the ends of its interval, and what is told of it."""

    x: float | str
    y: float
    low: float | None = None
    high: float | None = None
    told: str = ""


class Series(msgspec.Struct, frozen=True):
    """Marks of one color.

    form: "line" has points on it, and a band for intervals; "points" have whiskers; "curve" and
    "dashed" are lines alone, and "steps" keep each value until the next one.
    """

    label: str
    color: int
    marks: tuple[Mark, ...]
    form: Form = "line"


class Rule(msgspec.Struct, frozen=True):
    """A line across the chart at one value, with a word beside it."""

    value: float
    text: str
    is_upright: bool = False


def chart(
    series: Sequence[Series],
    x: Scale,
    y: Scale,
    *,
    title: str,
    x_label: str,
    rules: Sequence[Rule] = (),
) -> str:
    """A figure with a title above it; series are drawn in their order."""
    parts = [_frame(x, y, x_label)]
    parts += [_rule(rule, x, y) for rule in rules]
    shifts = _shifts(series, x)
    for each, shift in zip(series, shifts, strict=True):
        parts.append(f'<g class="c{each.color % COLORS}">{_drawn(each, x, y, shift)}</g>')
    size = f'viewBox="0 0 {WIDTH:g} {HEIGHT:g}"'
    caption = f"<figcaption>{text(title)}</figcaption>"
    return (
        f'<figure class="chart">{caption}'
        f'<svg {size} role="img" aria-label="{text(title)}">{"".join(parts)}</svg></figure>'
    )


def legend(entries: Iterable[tuple[str, int, str]]) -> str:
    """Labels with their color; the third says what it looks like: line, points."""
    keys = "".join(
        f'<span class="key c{color % COLORS}"><i class="{form}"></i>{text(label)}</span>'
        for label, color, form in entries
    )
    return f'<div class="legend">{keys}</div>'


# -- the frame


def across(place: float) -> float:
    """Returns the position on the horizontal axis, in units of the picture."""
    return _LEFT + place * (WIDTH - _LEFT - _RIGHT)


def up(place: float) -> float:
    """Returns the position on the vertical axis, in units of the picture."""
    return HEIGHT - _BOTTOM - place * (HEIGHT - _TOP - _BOTTOM)


def _frame(x: Scale, y: Scale, x_label: str) -> str:
    bottom = up(0)
    parts = []
    for place, label in y.ticks():
        at = up(place)
        parts.append(f'<path class="grid" d="M{_LEFT:g} {at:.1f}H{WIDTH - _RIGHT:g}"/>')
        parts.append(f'<text class="tick end" x="{_LEFT - 7:g}" y="{at + 4:.1f}">{label}</text>')
    parts.append(f'<path class="axis" d="M{_LEFT:g} {bottom:.1f}H{WIDTH - _RIGHT:g}"/>')
    is_words = isinstance(x, Words)
    for place, label in _thinned(x.ticks(), is_words):
        at = across(place)
        shown = shortened(
            label, (WIDTH - _LEFT - _RIGHT) / max(len(x.ticks()), 1) if is_words else 99
        )
        if not is_words:
            parts.append(f'<path class="axis" d="M{at:.1f} {bottom:.1f}v4"/>')
        parts.append(f'<text class="tick" x="{at:.1f}" y="{bottom + 16:.1f}">{shown}</text>')
    middle = (across(0) + across(1)) / 2
    parts.append(f'<text class="label" x="{middle:.1f}" y="{HEIGHT - 6:g}">{text(x_label)}</text>')
    return "".join(parts)


def _thinned(ticks: list[tuple[float, str]], is_words: bool) -> list[tuple[float, str]]:
    """Returns the ticks that do not overlap."""
    kept: list[tuple[float, str]] = []
    for place, label in ticks:
        if kept and not is_words:
            room = across(place) - across(kept[-1][0])
            if room < (len(label) + len(kept[-1][1])) / 2 * _CHARACTER + 6:
                continue
        kept.append((place, label))
    return kept


def shortened(label: str, room: float) -> str:
    """A label within its room; the whole of it is told when it is pointed at."""
    most = max(int(room / _CHARACTER), 4)
    if len(label) <= most:
        return text(label)
    return f"{text(label[: most - 1])}…<title>{text(label)}</title>"


def _rule(rule: Rule, x: Scale, y: Scale) -> str:
    if rule.is_upright:
        at = across(x.at(rule.value))
        return (
            f'<path class="rule" d="M{at:.1f} {up(0):.1f}V{_TOP:g}"/>'
            f'<text class="note end" x="{at - 4:.1f}" y="{_TOP + 10:g}">{text(rule.text)}</text>'
        )
    at = up(y.at(rule.value))
    return (
        f'<path class="rule" d="M{_LEFT:g} {at:.1f}H{WIDTH - _RIGHT:g}"/>'
        f'<text class="note end" x="{WIDTH - _RIGHT:g}" y="{at - 4:.1f}">{text(rule.text)}</text>'
    )


# -- series


def _shifts(series: Sequence[Series], x: Scale) -> list[float]:
    """Beside one another where they would cover one another: over words."""
    if not isinstance(x, Words) or len(series) < 2:
        return [0.0] * len(series)
    room = (WIDTH - _LEFT - _RIGHT) / max(len(x.ticks()), 1) * 0.6
    step = min(room / (len(series) - 1), 14.0)
    return [(index - (len(series) - 1) / 2) * step for index in range(len(series))]


def _drawn(series: Series, x: Scale, y: Scale, shift: float) -> str:
    marks = [mark for mark in series.marks if math.isfinite(mark.y)]
    places = [(across(x.at(mark.x)) + shift, up(y.at(mark.y))) for mark in marks]
    if series.form in ("curve", "dashed", "steps"):
        dashed = " dashed" if series.form == "dashed" else ""
        return f'<path class="line{dashed}" d="{_way(places, series.form)}"/>'
    parts = []
    if series.form == "line" and not isinstance(x, Words):
        parts.append(_band(marks, x, y))
        parts.append(f'<path class="line" d="{_way(places, "line")}"/>')
    for mark, (at, height) in zip(marks, places, strict=True):
        if series.form == "points" or isinstance(x, Words):
            parts.append(_whisker(mark, at, y))
        told = f"<title>{text(mark.told)}</title>" if mark.told else ""
        shape = "open" if series.form == "points" else "dot"
        parts.append(f'<circle class="{shape}" cx="{at:.1f}" cy="{height:.1f}" r="3.6">{told}')
        parts.append("</circle>")
    return "".join(parts)


def _way(places: Sequence[tuple[float, float]], form: str) -> str:
    way = []
    for index, (at, height) in enumerate(places):
        if form == "steps" and index:
            way.append(f"H{at:.1f}V{height:.1f}")
        else:
            way.append(f"{'L' if index else 'M'}{at:.1f} {height:.1f}")
    return "".join(way)


def _band(marks: Sequence[Mark], x: Scale, y: Scale) -> str:
    known = [mark for mark in marks if mark.low is not None and mark.high is not None]
    if len(known) < 2:
        return ""
    above = [(across(x.at(m.x)), up(y.at(m.high or 0.0))) for m in known]
    below = [(across(x.at(m.x)), up(y.at(m.low or 0.0))) for m in reversed(known)]
    return f'<path class="band" d="{_way([*above, *below], "line")}Z"/>'


def _whisker(mark: Mark, at: float, y: Scale) -> str:
    if mark.low is None or mark.high is None:
        return ""
    low, high = up(y.at(mark.low)), up(y.at(mark.high))
    return f'<path class="whisker" d="M{at:.1f} {low:.1f}V{high:.1f}"/>'
