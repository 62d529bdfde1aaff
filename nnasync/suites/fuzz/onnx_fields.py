"""Messages of ONNX with fields changed: numbers, names and parts that do not belong there."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

from nnasync._core.importers.onnx.onnx_file import package

__all__ = ["changed_fields"]

NUMBERS = (0, 1, -1, 2, 3, 5, 7, 127, 255, 2**16, 2**31 - 1, -(2**31), 2**40, 2**63 - 1, -(2**63))
OPSETS = (0, 6, 9, 13, 21, 25, 2**31)
MOST_DEPTH = 12


def changed_fields(data: bytes, source: random.Random) -> bytes:
    """A file that is legal as a message; a few of its fields differ from the given one's."""
    onnx = package()
    message = onnx.load_model_from_string(data)
    for _ in range(source.choice((1, 1, 2, 4))):
        found = list(_messages(message.graph, 0))
        _change(source.choice(found), found, source)
    if source.random() < 0.1 and message.opset_import:
        message.opset_import[0].version = source.choice(OPSETS)
    return bytes(message.SerializeToString())


def _messages(message: Any, depth: int) -> Iterator[Any]:
    """A message and those in it."""
    yield message
    if depth == MOST_DEPTH:
        return
    for field, value in message.ListFields():
        if field.message_type is not None:
            for each in value if hasattr(value, "add") else [value]:
                yield from _messages(each, depth + 1)


def _change(message: Any, others: Sequence[Any], source: random.Random) -> None:
    """Clear a field, or give it another value, or that of another message of this type."""
    fields = [field for field, _ in message.ListFields()] or list(message.DESCRIPTOR.fields)
    field = source.choice(fields)
    if source.random() < 0.15:
        message.ClearField(field.name)
        return
    value = getattr(message, field.name)
    if hasattr(value, "extend"):
        _change_list(value, source)
        return
    alike = [each for each in others if each.DESCRIPTOR is message.DESCRIPTOR]
    donor = getattr(source.choice(alike), field.name)
    if field.message_type is not None:
        value.CopyFrom(_copy(donor))
    elif isinstance(value, (str, bytes, float)):
        setattr(message, field.name, donor)
    else:
        _set(message, field.name, source.choice((donor, source.choice(NUMBERS))))


def _copy(message: Any) -> Any:
    """A message apart: what is copied into a part of itself ends the process."""
    copy = type(message)()
    copy.CopyFrom(message)
    return copy


def _set(message: Any, name: str, number: int) -> None:
    try:
        setattr(message, name, number)
    except ValueError:
        message.ClearField(name)  # The field cannot hold this number.


def _change_list(values: Any, source: random.Random) -> None:
    """Drop an item, double it, or put another one in its place."""
    if not values:
        return
    place, other = source.randrange(len(values)), source.randrange(len(values))
    kind = source.randrange(4)
    if kind == 0:
        del values[place]
    elif not hasattr(values, "add"):
        is_number = isinstance(values[place], int)
        item = source.choice(NUMBERS[:10]) if is_number else values[other]
        try:
            values[place] = item
        except ValueError:
            del values[place]
    elif kind == 1:
        values.add().CopyFrom(_copy(values[place]))
    elif place != other:
        values[place].CopyFrom(_copy(values[other]))
