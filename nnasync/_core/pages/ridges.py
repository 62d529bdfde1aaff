"""Histograms below one another over one axis, so that what they show can be compared by eye."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from nnasync._core.pages.charts import COLORS, shortened
from nnasync._core.pages.escaping import text
from nnasync._core.pages.scales import Scale

_WIDTH, _LEFT, _RIGHT, _TOP, _BOTTOM = 460.0, 132.0, 14.0, 6.0, 40.0
_ROW = 34.0
_PEAK = 30.0


class Ridge(msgspec.Struct, frozen=True):
    """One histogram: `edges` of its buckets, one more than there are `counts`."""

    label: str
    color: int
    edges: tuple[float, ...]
    counts: tuple[int, ...]

    @property
    def shares(self) -> tuple[float, ...]:
        """The counts as shares of all."""
        total = sum(self.counts) or 1
        return tuple(count / total for count in self.counts)


def ridges(rows: Sequence[Ridge], x: Scale, *, title: str, x_label: str) -> str:
    """A figure of them in their order; all have the same height for the same share."""
    height = _TOP + _ROW * len(rows) + _BOTTOM
    most = max((share for row in rows for share in row.shares), default=1.0)
    parts = [_axis(x, height, x_label)]
    parts += [_ridge(row, x, most, _TOP + _ROW * (n + 1)) for n, row in enumerate(rows)]
    return (
        f'<figure class="chart"><figcaption>{text(title)}</figcaption>'
        f'<svg viewBox="0 0 {_WIDTH:g} {height:g}" role="img" aria-label="{text(title)}">'
        f"{''.join(parts)}</svg></figure>"
    )


def _axis(x: Scale, height: float, x_label: str) -> str:
    bottom = height - _BOTTOM
    parts = [f'<path class="axis" d="M{_LEFT:g} {bottom:.1f}H{_WIDTH - _RIGHT:g}"/>']
    last = -_WIDTH
    for place, label in x.ticks():
        at = _across(place)
        if at - last > 6.4 * len(label) + 8:
            last = at
            parts.append(f'<path class="grid" d="M{at:.1f} {_TOP:g}V{bottom:.1f}"/>')
            parts.append(f'<text class="tick" x="{at:.1f}" y="{bottom + 16:.1f}">{label}</text>')
    middle = (_across(0) + _across(1)) / 2
    parts.append(
        f'<text class="label" x="{middle:.1f}" y="{height - 6:.1f}">{text(x_label)}</text>'
    )
    return "".join(parts)


def _ridge(row: Ridge, x: Scale, most: float, floor: float) -> str:
    name = shortened(row.label, _LEFT - 12)
    way = [f"M{_across(x.at(row.edges[0])):.1f} {floor:.1f}"]
    for end, share in zip(row.edges[1:], row.shares, strict=True):
        way.append(f"V{floor - _PEAK * share / most:.1f}H{_across(x.at(end)):.1f}")
    return (
        f'<g class="c{row.color % COLORS}">'
        f'<text class="tick end" x="{_LEFT - 8:g}" y="{floor - 6:.1f}">{name}</text>'
        f'<path class="bars" d="{"".join(way)}V{floor:.1f}Z"/></g>'
    )


def _across(place: float) -> float:
    return _LEFT + place * (_WIDTH - _LEFT - _RIGHT)
