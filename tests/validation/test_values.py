"""Names of extensions, preferences and priorities."""

from __future__ import annotations

import pytest

from nnasync._core.validation import (
    compliant_with,
    minimum_version,
    validate_extension,
    validate_extension_name,
    validate_model,
    validate_preference,
    validate_priority,
)
from nnasync.errors import InvalidArgument, ModelError
from nnasync.hal import (
    ExecutionPreference,
    Extension,
    ExtensionNameAndPrefix,
    ExtensionOperandType,
    HalVersion,
    Operation,
    OperationType,
    Priority,
)
from nnasync.kernels import EXTENSION_OPERATIONS, OPERATIONS
from tests.validation.models import EXAMPLE, changed, replace, with_main


@pytest.mark.parametrize("name", ["org.nnasync.tflite", "a.b", "com.vendor_1.x2", "0.1"])
def test_legal_extension_names(name: str) -> None:
    validate_extension_name(name)


@pytest.mark.parametrize(
    "name",
    ["", "vendor", "Org.vendor", "org.vendor-x", "org.ve ndor", "org.é", "org.x\n", ".", "a."],
)
def test_illegal_extension_names(name: str) -> None:
    with pytest.raises(InvalidArgument, match="extension name"):
        validate_extension_name(name)
    named = (ExtensionNameAndPrefix(name, 1),)
    with pytest.raises(ModelError, match="extension name"):
        validate_model(replace(EXAMPLE, extension_name_to_prefix=named))


def of_type(type: int, byte_size: int = 4) -> ExtensionOperandType:
    return ExtensionOperandType(type, is_tensor=True, byte_size=byte_size)


def test_extensions_of_devices() -> None:
    good = Extension("a.b", (of_type(0), of_type(0xFFFF)))
    validate_extension(good)
    for wrong, message in (
        (Extension("A.b"), "extension name 'A.b'"),
        (Extension("a.b", (of_type(1), of_type(1))), "twice"),
        (Extension("a.b", (of_type(-1),)), r"operand type -1 must be in \[0, 65535\]"),
        (Extension("a.b", (of_type(0x10000),)), "operand type 65536"),
        (Extension("a.b", (of_type(1, 0),)), "has 0 bytes"),
        (Extension("a.b", (of_type(1, 2**32),)), "bytes; they must be in"),
    ):
        with pytest.raises(InvalidArgument, match=message):
            validate_extension(wrong)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([("a.b", 0)], "prefix 0"),
        ([("a.b", 2**15)], "prefix 32768"),
        ([("a.b", -1)], "prefix -1"),
        ([("a.b", 1), ("a.b", 2)], "one to one"),
        ([("a.b", 1), ("a.c", 1)], "one to one"),
    ],
)
def test_prefixes(entries: list[tuple[str, int]], message: str) -> None:
    named = tuple(ExtensionNameAndPrefix(name, prefix) for name, prefix in entries)
    with pytest.raises(ModelError, match=message):
        validate_model(replace(EXAMPLE, extension_name_to_prefix=named))


def test_operations_of_unknown_extensions_take_any_operands() -> None:
    named = (ExtensionNameAndPrefix("com.vendor.unknown", 3),)
    first, second = EXAMPLE.main.operations
    odd = Operation(0x30007, second.inputs, second.outputs)
    model = with_main(EXAMPLE, operations=(first, odd))
    with pytest.raises(ModelError, match="no such operation"):
        validate_model(model)
    known = replace(model, extension_name_to_prefix=named)
    validate_model(known)
    assert minimum_version(known) == HalVersion.V1_2
    validate_model(changed(known, second.inputs[2], type=0x30001, extra_params=b"any"))
    with pytest.raises(ModelError, match="HAL 1.1"):
        validate_model(known, HalVersion.V1_1)


@pytest.mark.parametrize("value", [-1, 3, 100])
def test_values_beyond_the_enums(value: int) -> None:
    with pytest.raises(InvalidArgument, match=r"preference .* LOW_POWER \(0\)"):
        validate_preference(value)
    with pytest.raises(InvalidArgument, match=r"priority .* LOW \(0\)"):
        validate_priority(value)


def test_values_of_the_enums() -> None:
    for preference in ExecutionPreference:
        validate_preference(preference)
    for priority in Priority:
        validate_priority(priority)


def test_operations_of_known_extensions_take_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once an extension has kernels, its operations have signatures like all others."""
    first, second = EXAMPLE.main.operations
    named = (ExtensionNameAndPrefix("com.vendor.known", 3),)
    odd = with_main(EXAMPLE, operations=(first, replace(second, type=0x30007)))
    model = replace(odd, extension_name_to_prefix=named)
    validate_model(model)
    product = OPERATIONS[OperationType.MUL]
    monkeypatch.setitem(EXTENSION_OPERATIONS, ("com.vendor.known", 7), product)
    validate_model(model)
    assert minimum_version(model) == HalVersion.V1_2
    assert not compliant_with(HalVersion.V1_1, model)
    monkeypatch.setitem(
        EXTENSION_OPERATIONS, ("com.vendor.known", 7), OPERATIONS[OperationType.LOG]
    )
    with pytest.raises(
        ModelError, match=r"operation 1 \(operation 7 of com.vendor.known\): LOG: has 3 inputs"
    ):
        validate_model(model)
