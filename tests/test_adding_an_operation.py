"""Every operation is in every place that CONTRIBUTING names, and a new one that is missing is told.

What stands in an operation's own block (signatures, rule, kernel, facts) needs no other place.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from nnasync import hal
from nnasync.conformance.random_graphs.samplers import SAMPLERS
from nnasync.extensions import COMMON, TFLITE, CommonOperation, TfliteOperation
from nnasync.hal import OperationType
from nnasync.kernels import EXTENSION_OPERATIONS, OPERATIONS, Operation
from nnasync.suites.fuzz.samples import without_samples

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
WITHOUT_KERNELS = {OperationType.IF, OperationType.WHILE, OperationType.OEM_OPERATION}


class NewOperation(enum.IntEnum):
    """One that somebody has begun to add to the HAL's."""

    NEW = 102


class NewTfliteOperation(enum.IntEnum):
    """One that somebody has begun to add to our extension for TFLite."""

    NEW = 100


class NewCommonOperation(enum.IntEnum):
    """One that somebody has begun to add to our extension for networks of any format."""

    NEW = 101


def extension_of(type: enum.IntEnum) -> str:
    """The name of the extension that a type belongs to, or nothing."""
    if isinstance(type, CommonOperation | NewCommonOperation):
        return COMMON.name
    return TFLITE.name if isinstance(type, TfliteOperation | NewTfliteOperation) else ""


def block_of(type: enum.IntEnum) -> Operation | None:
    if extension_of(type):
        return EXTENSION_OPERATIONS.get((extension_of(type), type))
    return OPERATIONS.get(type)  # type: ignore[call-overload, no-any-return]


def has_number(type: enum.IntEnum) -> bool:
    if extension_of(type):
        return isinstance(type, TfliteOperation | CommonOperation)
    return hal.operation_since(type) is not None


def has_form(type: enum.IntEnum) -> bool:
    block = block_of(type)
    return block is not None and without_samples([block]) == []


def has_sampler(type: enum.IntEnum) -> bool:
    return bool(extension_of(type)) or type in SAMPLERS


def has_section(type: enum.IntEnum) -> bool:
    extension = extension_of(type)
    name = f"{extension}.{type.name} ({type})" if extension else type.name
    return f"\n## {name}\n" in PAGE


PLACES: Mapping[str, Callable[[enum.IntEnum], bool]] = {
    "its number in nnasync/hal/operations.py or nnasync/extensions.py": has_number,
    "a block in nnasync/kernels, in a module that registry.py lists": lambda t: bool(block_of(t)),
    "a sampler in nnasync/conformance/random_graphs/samplers": has_sampler,
    "a form in nnasync/suites/fuzz/samples.py": has_form,
    "a section of docs/operations.md: run python -m scripts.operations_doc": has_section,
}


def missing(type: enum.IntEnum) -> list[str]:
    """The places where an operation is not."""
    return [place for place, has in PLACES.items() if not has(type)]


@pytest.mark.parametrize(
    "type", [*OperationType, *TfliteOperation, *CommonOperation], ids=lambda type: type.name
)
def test_every_operation_is_everywhere(type: enum.IntEnum) -> None:
    if type not in WITHOUT_KERNELS or extension_of(type):
        places = missing(type)
        assert not places, f"{type.name} has no place yet: {'; '.join(places)}"


@pytest.mark.parametrize(
    ("type", "not_asked"),
    [
        (NewOperation.NEW, ""),
        (NewTfliteOperation.NEW, "a sampler"),
        (NewCommonOperation.NEW, "a sampler"),
    ],
)
def test_a_new_one_is_missed_everywhere(type: enum.IntEnum, not_asked: str) -> None:
    asked = [place for place in PLACES if not (not_asked and place.startswith(not_asked))]
    assert missing(type) == asked
