"""The choice of devices for a model, as a verdict states it, and as a pin: a string and back."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

from nnasync._core.deferred import deferred
from nnasync.device import Device, Lowering
from nnasync.errors import InvalidArgument

if TYPE_CHECKING:
    from urllib import parse
else:
    parse = deferred("urllib.parse")

_MAX_PIN = 100_000
_PLAIN = re.compile(r"[A-Za-z0-9_.~ +-]*")
"""What needs not be quoted, as nearly no name does."""
_MAX_OPERATIONS = 1_000_000

WHOLE = "whole model"
"""Stands for the lowering of a device that knows one way only."""

Runs = tuple[tuple[int, int], ...]
"""Pairs of a part and a number of operations."""


class Part(msgspec.Struct, frozen=True):
    """Names a device in its version, and one of its lowerings."""

    device: str
    version: str
    lowering: str = WHOLE
    threads: int = 1

    @classmethod
    def of(cls, device: Device, lowering: Lowering | None) -> Part:
        """Returns a device with a lowering, which is None where the device knows one way only."""
        way = lowering or Lowering(WHOLE)
        return cls(device.name, device.version, way.name, way.threads)

    @property
    def way(self) -> Lowering | None:
        """Returns the lowering, None where the device knows one way only."""
        return None if self.lowering == WHOLE else Lowering(self.lowering, self.threads)


class Choice(msgspec.Struct, frozen=True):
    """Names the parts of a model; `runs` are (part, number of operations), empty for one part.

    The runs follow the operations of the main subgraph in their order. The number of parts stands
    for the control-flow interpreter; `bodies` are the subgraphs that it runs, by number, with runs
    of their own.
    """

    parts: tuple[Part, ...]
    runs: Runs = ()
    bodies: tuple[tuple[int, Runs], ...] = ()


def tell_lowering(lowering: Lowering | None) -> str:
    """Returns a lowering in words."""
    return WHOLE if lowering is None else str(lowering)


def spread(assignment: Iterable[int]) -> Runs:
    """Returns the runs of equal numbers in an assignment of operations to parts."""
    return tuple((part, len(list(group))) for part, group in itertools.groupby(assignment))


def is_sound(choice: Choice) -> bool:
    """Returns whether the runs name existing parts, and the interpreter where it has bodies."""
    count, numbers = len(choice.parts), [number for number, _ in choice.bodies]
    named = {part for _, runs in ((0, choice.runs), *choice.bodies) for part, _ in runs}
    if not choice.runs:
        return count == 1
    if len(set(numbers)) < len(numbers) or (count in named) != bool(numbers):
        return False
    return max(named) <= count and (count > 1 or bool(numbers))


def pin_of(choice: Choice, digest: str) -> str:
    """Returns a choice for the model of this digest as a string.

    It begins with `device:version:lowering:threads` of each part.

    The runs are one field, such as `0x3,1x1`, and those of bodies follow in it, `;2=0x5`.
    """
    fields: list[str] = []
    for part in choice.parts:
        fields += [_quoted(part.device), _quoted(part.version), _quoted(part.lowering)]
        fields.append(str(part.threads))
    if choice.runs:
        bodies = [f"{number}={_runs_text(runs)}" for number, runs in choice.bodies]
        fields.append(";".join([_runs_text(choice.runs), *bodies]))
    return ":".join([*fields, digest])


def parse_pin(pin: str, digest: str) -> Choice:
    """Returns the choice in a pin; raises InvalidArgument if it is none, or for another model."""
    fields = pin.split(":") if isinstance(pin, str) and len(pin) <= _MAX_PIN else []
    count = len(fields) % 4
    if len(fields) < 5 or count not in (1, 2):
        raise _no_pin(pin)
    if fields[-1] != digest:
        raise InvalidArgument(
            f"the pin is for another model: it names the model {fields[-1]}, this one is {digest}"
        )
    try:
        parts = tuple(_part(fields[at : at + 4]) for at in range(0, len(fields) - count, 4))
        runs, bodies = _layout(fields[-2]) if count == 2 else ((), ())
    except ValueError as error:
        raise _no_pin(pin) from error
    choice = Choice(parts, runs, bodies)
    if not is_sound(choice):
        raise _no_pin(pin)
    return choice


def _layout(field: str) -> tuple[Runs, tuple[tuple[int, Runs], ...]]:
    """Returns the runs of the main subgraph, and those of bodies by number."""
    main, *others = field.split(";")
    pairs = [other.split("=") for other in others]
    return _runs(main), tuple((_number(number), _runs(runs)) for number, runs in pairs)


def _runs_text(runs: Runs) -> str:
    return ",".join(f"{part}x{count}" for part, count in runs)


def _part(fields: Sequence[str]) -> Part:
    device, version, lowering = map(parse.unquote, fields[:3])
    return Part(device, version, lowering, _number(fields[3]))


def _runs(field: str) -> Runs:
    pairs = [run.split("x") for run in field.split(",")]
    return tuple((_number(part), _number(count)) for part, count in pairs)


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 8):
        raise ValueError(f"{text!r} is no number")
    number = int(text)
    if number > _MAX_OPERATIONS:
        raise ValueError(f"{text} is too large")
    return number


def _quoted(text: str) -> str:
    return text if _PLAIN.fullmatch(text) else parse.quote(text, safe=" +")


def _no_pin(pin: object) -> InvalidArgument:
    text = repr(pin)
    return InvalidArgument(
        f"pin must be what report().pin of an earlier compilation says, got {text[:80]}"
    )
