"""What would be right where a key or a kind of an experiment is not known."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from typing import Any, get_args

import msgspec

from nnasync.experiments.arrivals import Arrivals
from nnasync.experiments.costs import Batching, Cost, RunTimes
from nnasync.experiments.workload import Stream

_UNKNOWN = re.compile(r"^Object contains unknown field `(?P<name>.*)`$", re.DOTALL)
_KINDS = {"arrivals": get_args(Arrivals), "cost": get_args(Cost)}
_TABLES: dict[str, type[msgspec.Struct]] = {
    "streams": Stream,
    "batching": Batching,
    "times": RunTimes,
}


def with_hint(message: str, path: str, document: Mapping[str, Any], whole: type[Any]) -> str:
    """Extends msgspec's message on the value at a path by the names that are known there.

    `document` is what was decoded, `whole` the type of all of it.
    """
    parts = [part.partition("[")[0] for part in path.split(".")] if path else []
    if message.startswith("Invalid value ") and parts[-1:] == ["kind"] and len(parts) > 1:
        kinds = [_kind_of(each) for each in _KINDS.get(parts[-2], ())]
        return f"{message}; there are {', '.join(kinds)}" if kinds else message
    unknown = _UNKNOWN.match(message)
    if unknown is None:
        return message
    table = whole if not parts else _TABLES.get(parts[-1])
    if parts and parts[-1] in _KINDS:
        kind = _at(document, path).get("kind")
        table = next((each for each in _KINDS[parts[-1]] if _kind_of(each) == kind), None)
    return message if table is None else f"{message}; {_instead(unknown['name'], _keys(table))}"


def _instead(name: str, keys: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, keys, 1)
    return f"did you mean {near[0]}?" if near else f"there are {', '.join(keys)}"


def _keys(table: type[Any]) -> list[str]:
    config = table.__struct_config__
    tag = [config.tag_field] if config.tag_field else []
    return [*tag, *table.__struct_encode_fields__]


def _kind_of(table: type[Any]) -> str:
    return str(table.__struct_config__.tag)


def _at(document: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    """Returns the table at a path such as `streams[1].cost`; an empty one where there is none."""
    found: Any = document
    try:
        for name, number in re.findall(r"([^.\[\]]+)|\[(\d+)\]", path):
            found = found[name] if name else found[int(number)]
    except (KeyError, IndexError, TypeError):
        return {}
    return found if isinstance(found, Mapping) else {}
