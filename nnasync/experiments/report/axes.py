"""Which swept value goes along a chart, and which ones tell its series apart."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from nnasync.experiments.run_of_point import Run

Value = float | str

NAMES = {
    "load": "load (share of the cores' time that is asked for)",
    "cores": "cores",
    "policy": "policy",
}


class Axes(msgspec.Struct, frozen=True):
    """How a sweep is drawn: `x` is the key along the charts, "" if none.

    `series` label the rest.
    """

    x: str
    x_values: tuple[Value, ...]
    others: tuple[str, ...]
    series: tuple[str, ...]

    @property
    def x_label(self) -> str:
        """Returns what is written below the charts."""
        return NAMES.get(self.x, self.x.removeprefix("streams.").removeprefix("*."))

    def x_of(self, values: dict[str, Value]) -> Value:
        """Returns the value along the charts that a point has."""
        return values.get(self.x, "")

    def series_of(self, values: dict[str, Value]) -> str:
        """Returns the label of the series that a point belongs to."""
        return label(values, self.others)


def axes_of(runs: Sequence[Run], x: str = "") -> Axes:
    """Returns the axes of a sweep: the first key with numbers goes along the charts, or `x`."""
    varying: dict[str, dict[Value, None]] = {}
    for run in runs:
        for key, value in run.values.items():
            varying.setdefault(key, {})[value] = None
    keys = [key for key, values in varying.items() if len(values) > 1]
    numbers = [key for key in keys if not any(isinstance(v, str) for v in varying[key])]
    along = x if x in varying else next(iter([*numbers, *keys]), "")
    others = tuple(key for key in keys if key != along)
    series = dict.fromkeys(label(run.values, others) for run in runs)
    return Axes(along, tuple(varying.get(along, {})), others, tuple(series))


def label(values: dict[str, Value], keys: Sequence[str]) -> str:
    """Returns the values of some keys in short; numbers are given with their key, words without."""
    parts = [
        str(values[key]) if isinstance(values[key], str) else f"{_last(key)} {values[key]:g}"
        for key in keys
        if key in values
    ]
    return ", ".join(parts)


def shown(value: Value) -> str:
    """Returns a swept value as text."""
    return value if isinstance(value, str) else f"{value:g}"


def _last(key: str) -> str:
    return key.rpartition(".")[2].replace("_", " ")
