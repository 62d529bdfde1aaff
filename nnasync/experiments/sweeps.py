"""Sweeps: one document with lists of values for some of its keys becomes one document a point.

A key is a path from the top of the document, `cores` or `streams.photos.arrivals.cv`. A stream is
found by its name, `*` means each of them. The points are all combinations of the values; the last
key changes fastest.

A value may be a table that names itself: `{label = "by deadline", name = "edf"}`; pictures
and tables then show the label, and the rest of the table is the value. A table with `label` and
`value` alone stands for that value. One with `label` and `set` sets other keys together, and the
key that it stands under is but a name: `{label = "by arrival", set = {policy = "fifo"}}`.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from nnasync.errors import InvalidArgument

ALL = "*"


class Point(msgspec.Struct, frozen=True):
    """One combination: what each swept key is there, as shown, and the document with the values."""

    values: dict[str, float | str]
    document: dict[str, Any]


def points(document: Mapping[str, Any], axes: Mapping[str, Sequence[Any]]) -> Iterator[Point]:
    """Yields a copy of the document for every combination of the values of the axes.

    Raises:
        InvalidArgument: An axis has no values, has one twice, or names what is not there.
    """
    shown = {key: _labeled(key, values) for key, values in axes.items()}
    for chosen in itertools.product(*(pairs.items() for pairs in shown.values())):
        changed = copy.deepcopy(dict(document))
        for key, (_, value) in zip(shown, chosen, strict=True):
            for each, inner in _settings(key, value):
                put(changed, each, inner)
        yield Point({key: label for key, (label, _) in zip(shown, chosen, strict=True)}, changed)


def only(axes: Mapping[str, Sequence[Any]], key: str, wanted: Sequence[str]) -> list[Any]:
    """Returns the values of an axis that are shown as these words, in the order of the axis.

    Raises:
        InvalidArgument: There is no such axis, or none of its values is shown as one of the words.
    """
    if key not in axes:
        there = ", ".join(axes) or "nothing"
        raise InvalidArgument(f"{key!r} is no key of the sweep; there is {there}")
    labels = {
        _word(label): value
        for label, value in zip(_labeled(key, axes[key]), axes[key], strict=True)
    }
    for word in wanted:
        if word not in labels:
            there = ", ".join(labels)
            raise InvalidArgument(f"{key!r} takes no value {word!r} in the sweep; there is {there}")
    return [value for label, value in labels.items() if label in wanted]


def put(document: dict[str, Any], key: str, value: Any) -> None:
    """Sets the key that a path names, in every stream that it names.

    Raises:
        InvalidArgument: Nothing is there that could have such a key.
    """
    *way, last = key.split(".")
    for place in _places(document, way, key):
        place[last] = copy.deepcopy(value)


def _places(document: dict[str, Any], way: Sequence[str], key: str) -> list[dict[str, Any]]:
    places: list[Any] = [document]
    for step in way:
        places = [inner for place in places for inner in _step(place, step, key)]
    for place in places:
        if isinstance(place, list | tuple):
            raise InvalidArgument(
                f"sweep: {key!r}: {way[-1]!r} is a list; name a part of it, or {ALL!r}, and then a "
                f"key of that: there is {_known(place)}"
            )
        if not isinstance(place, dict):
            raise InvalidArgument(f"sweep: {key!r}: {way[-1]!r} is a single value and has no keys")
    return places


def _step(place: Any, step: str, key: str) -> list[Any]:
    if isinstance(place, dict) and step in place:
        return [place[step]]
    if isinstance(place, list | tuple):
        found = [each for each in place if step in (ALL, _name(each))]
        if found:
            return found
    raise InvalidArgument(f"sweep: {key!r}: there is no {step!r}; there is {_known(place)}")


def _known(place: Any) -> str:
    """Returns the keys of a table, or the names of a list's parts, for messages."""
    known: list[str] = []
    if isinstance(place, dict | list | tuple):
        known = list(place) if isinstance(place, dict) else [_name(each) for each in place]
    return ", ".join(filter(None, known)) or "nothing"


def _name(part: Any) -> str:
    return str(part.get("name", "")) if isinstance(part, dict) else ""


def _labeled(key: str, values: Sequence[Any]) -> dict[float | str, Any]:
    """Returns the values of an axis by the labels under which they are shown."""
    if not isinstance(values, list | tuple) or not values:
        raise InvalidArgument(f"sweep: {key!r}: a list of at least one value is needed")
    pairs = [_pair(value) for value in values]
    labels = dict(pairs)
    if len(labels) < len(pairs):
        raise InvalidArgument(f"sweep: {key!r}: a value is there twice: {[p for p, _ in pairs]}")
    return labels


def _word(label: float | str) -> str:
    return label if isinstance(label, str) else f"{label:g}"


def _settings(key: str, value: Any) -> list[tuple[str, Any]]:
    """Returns what a value of an axis sets: its own key, or those that it names."""
    if isinstance(value, dict) and value.keys() == {"set"} and isinstance(value["set"], dict):
        return list(value["set"].items())
    return [(key, value)]


def _pair(value: Any) -> tuple[float | str, Any]:
    if isinstance(value, dict):
        rest = {key: inner for key, inner in value.items() if key != "label"}
        name = str(value.get("label") or value.get("name") or value.get("kind") or rest)
        return name, rest["value"] if rest.keys() == {"value"} else rest
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value, value
    return str(value), value
