"""A choice as a string that a report tells, and back; the contender that it names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from nnasync._core.compilation.choice import Choice, Part, Runs, is_sound
from nnasync.errors import InvalidArgument

if TYPE_CHECKING:
    from nnasync._core.compilation.candidates import Field
    from nnasync._core.compilation.contenders import Contender
    from nnasync.device import Device

__all__ = ["parse_pin", "pin_of", "pinned"]

_MAX_PIN = 100_000
_MAX_OPERATIONS = 1_000_000


def pin_of(choice: Choice, digest: str) -> str:
    """A choice for the model of this digest as a string, `device:version:lowering:threads:...`.

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
    """What a pin says; raises InvalidArgument if it is none, or for another model."""
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


def pinned(choice: Choice, field: Field, devices: Sequence[Device]) -> Contender:
    """The contender of this choice; raises InvalidArgument that says why there is none."""
    for contender in field.contenders:
        if contender.choice == choice:
            return contender
    for part in choice.parts:
        _check_part(part, devices)
    raise InvalidArgument(f"the pin cannot be followed: {_difference(choice, field)}")


def _check_part(part: Part, devices: Sequence[Device]) -> None:
    named = {device.name: device.version for device in devices}
    if part.device not in named:
        raise InvalidArgument(
            f"the pin names the device {part.device}, which is not among: {', '.join(named)}"
        )
    if part.version != named[part.device]:
        raise InvalidArgument(
            f"the pin is for version {part.version} of {part.device}, here is version "
            f"{named[part.device]}"
        )


def _difference(choice: Choice, field: Field) -> str:
    part = choice.parts[0]
    wanted = f"{part.device} with {part.lowering}, threads: {part.threads}"
    if len(choice.parts) > 1:
        wanted = "this partition over " + ", ".join(each.device for each in choice.parts)
    offers = [f"{each.name} with {each.lowering}" for each in field.contenders]
    refused = [f"{each.device} with {each.lowering} ({each.verdict})" for each in field.candidates]
    text = f"{wanted} is not offered here; offered: {'; '.join(offers) or 'nothing'}"
    return text + (f"; turned down: {'; '.join(refused[:8])}" if refused else "")


def _layout(field: str) -> tuple[Runs, tuple[tuple[int, Runs], ...]]:
    """The runs of the main subgraph, and those of bodies by number."""
    main, *others = field.split(";")
    pairs = [other.split("=") for other in others]
    return _runs(main), tuple((_number(number), _runs(runs)) for number, runs in pairs)


def _runs_text(runs: Runs) -> str:
    return ",".join(f"{part}x{count}" for part, count in runs)


def _part(fields: Sequence[str]) -> Part:
    device, version, lowering = map(unquote, fields[:3])
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
    return quote(text, safe=" +")


def _no_pin(pin: object) -> InvalidArgument:
    text = repr(pin)
    return InvalidArgument(
        f"pin must be what report().pin of an earlier compilation says, got {text[:80]}"
    )
