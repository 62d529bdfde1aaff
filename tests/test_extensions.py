"""Names, prefixes and the registry of vendor extensions."""

from __future__ import annotations

import enum

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnasync import hal
from nnasync._core.model import ModelBuilder
from nnasync._core.validation import validate_extension, validate_model
from nnasync.errors import InvalidArgument, ModelError
from nnasync.extensions import (
    COMMON,
    MAX_PREFIX,
    TFLITE,
    CommonOperation,
    Registry,
    TfliteOperation,
    encode,
    extension_of,
    is_legal_name,
    prefix_of,
    type_within,
)
from nnasync.hal import (
    Extension,
    ExtensionNameAndPrefix,
    ExtensionOperandType,
    OperandType,
    OperationType,
)
from nnasync.kernels import EXTENSION_OPERATIONS, OPERATIONS, Operation, Tensor

PLAIN = Extension(
    "org.vendor.thing", (ExtensionOperandType(7, True, 3), ExtensionOperandType(1, False, 8))
)


@given(st.integers(1, MAX_PREFIX), st.integers(0, 0xFFFF))
def test_encoding(prefix: int, type: int) -> None:
    encoded = encode(prefix, type)
    assert encoded == (prefix << hal.EXTENSION_PREFIX_SHIFT) | type
    assert (prefix_of(encoded), type_within(encoded)) == (prefix, type)
    assert hal.is_extension(encoded)
    entries = [ExtensionNameAndPrefix("org.other.thing", prefix + 1)]
    assert extension_of(entries, encoded) is None
    entries.append(ExtensionNameAndPrefix("org.vendor.thing", prefix))
    assert extension_of(entries, encoded) == ("org.vendor.thing", type)


def test_types_of_the_hal_have_no_prefix() -> None:
    entries = [ExtensionNameAndPrefix("org.vendor.thing", 0)]
    assert prefix_of(OperandType.TENSOR_OEM_BYTE) == 0
    assert extension_of(entries, OperandType.TENSOR_OEM_BYTE) is None


@pytest.mark.parametrize(("prefix", "type"), [(0, 0), (MAX_PREFIX + 1, 0), (1, -1), (1, 2**16)])
def test_what_cannot_be_encoded(prefix: int, type: int) -> None:
    with pytest.raises(InvalidArgument, match=r"must be in \["):
        encode(prefix, type)


@pytest.mark.parametrize(
    ("name", "legal"),
    [
        ("org.nnasync.tflite", True),
        ("com.vendor_2.3d", True),
        ("vendor", False),
        ("Org.vendor", False),
        ("org..vendor", False),
        (".org.vendor", False),
        ("org.vendor.", False),
        ("org.vendör", False),
        ("org.ven dor", False),
        ("org.vendor\n", False),
        ("", False),
    ],
)
def test_names(name: str, legal: bool) -> None:
    assert is_legal_name(name) is legal


def test_prefixes_are_given_in_the_order_of_asking() -> None:
    registry = Registry([PLAIN])
    assert registry.entries() == ()
    assert [registry.prefix(name) for name in ("a.b", PLAIN.name, "a.b")] == [1, 2, 1]
    assert registry.entries() == (
        ExtensionNameAndPrefix("a.b", 1),
        ExtensionNameAndPrefix(PLAIN.name, 2),
    )
    with pytest.raises(InvalidArgument, match="extension name 'Nobody' must be words"):
        registry.prefix("Nobody")


def test_prefixes_run_out() -> None:
    registry = Registry()
    for number in range(MAX_PREFIX):
        registry.prefix(f"org.vendor{number}")
    assert registry.prefix("org.vendor0") == 1
    with pytest.raises(InvalidArgument, match="all 32767 extension prefixes are given away"):
        registry.prefix("org.vendor.more")


def test_operand_types() -> None:
    registry = Registry([PLAIN])
    prefix = registry.prefix(PLAIN.name)
    tensor, scalar = encode(prefix, 7), encode(prefix, 1)
    assert registry.operand_type(tensor) == ExtensionOperandType(7, True, 3)
    assert registry.byte_size(tensor, (2, 5)) == 30
    assert registry.byte_size(tensor, (2, 0)) == 0
    assert registry.byte_size(tensor, ()) == 0
    assert registry.byte_size(scalar, ()) == 8
    with pytest.raises(ModelError, match=r"no device offers type 2 of org\.vendor\.thing"):
        registry.operand_type(encode(prefix, 2))
    with pytest.raises(ModelError, match="no extension has prefix 9"):
        registry.operand_type(encode(9, 7))
    unknown = encode(registry.prefix("org.nobody.thing"), 7)
    with pytest.raises(ModelError, match=r"no device offers type 7 of org\.nobody\.thing"):
        registry.byte_size(unknown, (1,))


def test_devices_may_agree_in_another_order() -> None:
    registry = Registry([PLAIN, Extension(PLAIN.name, PLAIN.operand_types[::-1])])
    assert registry.extensions == (PLAIN,)


def test_devices_that_disagree_disable_an_extension_for_good() -> None:
    other = Extension(PLAIN.name, PLAIN.operand_types[:1])
    registry = Registry([PLAIN, TFLITE, other, PLAIN])
    assert registry.extensions == (TFLITE,)
    with pytest.raises(ModelError, match="no device offers"):
        registry.operand_type(encode(registry.prefix(PLAIN.name), 7))


@pytest.mark.parametrize(
    "extension",
    [
        Extension("vendor"),
        Extension("a.b", (ExtensionOperandType(1, True, 1), ExtensionOperandType(1, False, 1))),
        Extension("a.b", (ExtensionOperandType(2**16, True, 1),)),
        Extension("a.b", (ExtensionOperandType(1, True, 4, "int64"),)),
        Extension("a.b", (ExtensionOperandType(1, True, 8, "object"),)),
        Extension("a.b", (ExtensionOperandType(1, True, 8, "datetime64[s]"),)),
    ],
)
def test_illegal_descriptions(extension: Extension) -> None:
    with pytest.raises(InvalidArgument, match=r"extension"):
        Registry([extension])


@pytest.mark.parametrize(
    ("extension", "operations"), [(TFLITE, TfliteOperation), (COMMON, CommonOperation)]
)
def test_our_extensions_are_legal(extension: Extension, operations: type[enum.IntEnum]) -> None:
    validate_extension(extension)
    # Files of saved models have these numbers: a new operation gets the next one.
    assert [operation.value for operation in operations] == list(range(len(operations)))
    assert {*EXTENSION_OPERATIONS} >= {(extension.name, number) for number in operations}


@pytest.mark.parametrize("operation", EXTENSION_OPERATIONS.values(), ids=lambda each: each.name)
def test_operations_of_the_hal_s_names_multiply_as_those_do(operation: Operation) -> None:
    twin = OperationType.__members__.get(operation.name.rpartition(".")[2])
    if twin is not None:
        assert operation.facts.multiply_adds is OPERATIONS[twin].facts.multiply_adds


def test_a_model_of_our_extension_by_hand() -> None:
    builder = ModelBuilder("words")
    x = builder.input("x", (2, 3))
    quantize = builder.extension_type(TFLITE.name, TfliteOperation.QUANTIZE)
    dequantize = builder.extension_type(TFLITE.name, TfliteOperation.DEQUANTIZE)
    words = Tensor(type=OperandType.TENSOR_QUANT16_SYMM, scale=0.01)
    steps = builder.operation(quantize, x, output=words)
    assert steps.shape == (2, 3)
    builder.output("y", builder.operation(dequantize, steps))
    model = builder.build()
    validate_model(model)
    assert model.extension_name_to_prefix == (ExtensionNameAndPrefix(TFLITE.name, 1),)
    assert [type_within(operation.type) for operation in model.main.operations] == [0, 1]


def test_an_unknown_extension_needs_its_outputs_stated() -> None:
    builder = ModelBuilder()
    x = builder.input("x", (2, 3))
    type = builder.extension_type("org.vendor.thing", 5)
    with pytest.raises(ModelError, match="has no rule here, state its outputs"):
        builder.operation(type, x)
    builder.output("y", builder.operation(type, x, np.float32(2), output=x))
    validate_model(builder.build())
