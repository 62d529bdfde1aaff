"""How one model is served: what the TOML file beside it says."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from nnasync.errors import InvalidArgument
from nnasync.hal import Priority, Struct

PRIORITY_LEVELS = 3
"""1 is HIGH, 2 is MEDIUM, 3 and above are LOW."""

_NAME_BYTES = 200
_LEVELS = {"high": Priority.HIGH, "medium": Priority.MEDIUM, "low": Priority.LOW}


class BatchingSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """Requests that wait are joined, `max_size` rows at most, as `nnasync.batching` does it.

    They wait for one another for `window_us` at most. With when="pays" it is measured when the
    model is loaded whether that is worth it, and left alone where it is not.
    """

    window_us: Annotated[float, msgspec.Meta(ge=0, le=1e9)] = 0
    max_size: Annotated[int, msgspec.Meta(ge=1)] = 8
    when: Literal["pays", "always"] = "pays"


class SequenceSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """A sequence ends when nothing has come for `idle_s`."""

    idle_s: Annotated[float, msgspec.Meta(gt=0, le=1e9)] = 60.0


class ModelSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of a model; what is left out is as the defaults say.

    name: in requests, by default that of the file. version: a whole number. priority: of requests
    that state none. timeout_ms: of requests that state none (0: none); longest_timeout_ms: what
    requests may ask for (0: anything). max_queue_size: requests in flight, running ones included,
    beyond which others are refused, unless these are of higher priority. instances: executions at
    once (0: as many as the runtime runs). max_batch_size: the first dimension of all inputs and
    outputs counts the batch, up to this (0: there is none). labels: of classes, by output, or the
    name of a file that has one a line. datatypes: by input and output, FP16 or BF16 for
    one of floats. devices, precision, io: as `Runtime.compile` takes them. value_limit_bytes: what
    a value of the file may take, as `nnasync.load` has it.
    """

    name: str = ""
    version: str = "1"
    priority: Literal["high", "medium", "low"] = "medium"
    timeout_ms: float = 0
    longest_timeout_ms: float = 0
    max_queue_size: int = 128
    instances: int = 0
    max_batch_size: int = 0
    labels: dict[str, tuple[str, ...] | str] = msgspec.field(default_factory=dict)
    datatypes: dict[str, Literal["FP16", "BF16", "FP32"]] = msgspec.field(default_factory=dict)
    devices: tuple[str, ...] = ()
    precision: str | None = None
    io: Literal["float"] | None = None
    value_limit_bytes: Annotated[int, msgspec.Meta(gt=0)] | None = None
    batching: BatchingSettings | None = None
    sequences: SequenceSettings = SequenceSettings()

    def __post_init__(self) -> None:
        if not is_version(self.version):
            raise InvalidArgument(f"version must be a whole number in quotes, got {self.version!r}")
        if self.name:
            check_name(self.name)
        for field, least in (
            ("timeout_ms", 0),
            ("longest_timeout_ms", 0),
            ("max_queue_size", 1),
            ("instances", 0),
            ("max_batch_size", 0),
        ):
            if not least <= getattr(self, field) < 2**31:
                raise InvalidArgument(
                    f"{field} must be {least} or more, below 2 ** 31, got {getattr(self, field)}"
                )

    @property
    def level(self) -> Priority:
        """Returns the priority of requests that state none."""
        return _LEVELS[self.priority]

    def priority_of(self, stated: int) -> Priority:
        """Returns the priority for the number in a request: 0 states none, 1 is the highest."""
        if stated == 0:
            return self.level
        if stated == 1:
            return Priority.HIGH
        return Priority.MEDIUM if stated == 2 else Priority.LOW


_TABLES: dict[str, type[Struct]] = {"batching": BatchingSettings, "sequences": SequenceSettings}


def settings_from(text: str, where: str) -> ModelSettings:
    """Reads settings from a TOML text.

    Raises InvalidArgument that says what is wrong, and where.
    """
    try:
        return msgspec.toml.decode(text, type=ModelSettings)
    except (msgspec.DecodeError, ValueError, RecursionError, InvalidArgument) as error:
        raise InvalidArgument(f"{where}: {_with_hint(str(error))}") from error


def _with_hint(message: str) -> str:
    """Returns the message of msgspec with the keys or the values that would be right."""
    text, _, place = message.partition(" - at `$")
    path = re.findall(r"[a-z_]+", place)
    if text.startswith("Object contains unknown field"):
        return f"{message}; the keys are {', '.join(_table_at(path).__struct_fields__)}"
    if text.startswith("Invalid enum value"):
        choices = _choices(get_type_hints(_table_at(path[:-1]))[path[-1]])
        return f"{message}; it may be {', '.join(choices)}"
    return message


def _table_at(path: Sequence[str]) -> type[Struct]:
    return _TABLES[path[-1]] if path else ModelSettings


def _choices(hint: Any) -> Iterator[str]:
    """Yields the values of the literals in a type."""
    for each in get_args(hint):
        if get_origin(hint) is Literal:
            yield str(each)
        else:
            yield from _choices(each)


def is_version(text: str) -> bool:
    """Returns whether a text can be the version of a model: a whole number."""
    return text.isascii() and text.isdigit() and len(text) <= 18


def check_name(name: str) -> str:
    """Returns the name if it can stand in addresses; raises InvalidArgument for any other."""
    is_fine = 0 < len(name) <= _NAME_BYTES and all(char.isalnum() or char in "._-" for char in name)
    if not is_fine or not name.isascii() or not name.strip("."):
        raise InvalidArgument(
            f"the name of a model has letters, digits and . _ - only, up to {_NAME_BYTES}: {name!r}"
        )
    return name
