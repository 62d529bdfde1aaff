"""The words of the HAL: values, sizes, immutability."""

from __future__ import annotations

import copy
import enum
import inspect
import re
from collections.abc import Iterable
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnasync import hal
from nnasync.hal import OperandLifeTime, OperandType, OperationType

STRUCTS = [
    value
    for value in vars(hal).values()
    if inspect.isclass(value) and issubclass(value, hal.Struct) and value is not hal.Struct
]
TENSORS = [type for type in OperandType if hal.has_dtype(type) and not hal.is_scalar(type)]
dimensions = st.lists(st.integers(0, 100), max_size=5).map(tuple)


def section(shared: Path, heading: str) -> str:
    """Text below a heading of the reference's types.md."""
    text = (shared / "reference" / "types.md").read_text(encoding="utf-8")
    return text.split(f"### {heading}", 1)[1].split("\n#", 1)[0]


def members(type: type[enum.IntEnum]) -> dict[str, int]:
    return {member.name: member.value for member in type}


def test_operations_are_those_of_the_reference(shared: Path) -> None:
    text = section(shared, "OperationType").split("Count = ")[0]
    pairs = re.findall(r"\b(\d+) ([A-Z][A-Z0-9_]+)\b", text)
    assert members(OperationType) == {name: int(value) for value, name in pairs}
    assert len(pairs) == 103


@pytest.mark.parametrize(
    ("heading", "type"), [("OperandType", OperandType), ("ErrorStatus (HAL)", hal.ErrorStatus)]
)
def test_tables_are_those_of_the_reference(
    shared: Path, heading: str, type: type[enum.IntEnum]
) -> None:
    rows = re.findall(r"^\|(\d+)\|(\w+)[ |]", section(shared, heading), re.MULTILINE)
    assert members(type) == {name: int(value) for value, name in rows}


def test_element_sizes_are_those_of_the_reference(shared: Path) -> None:
    table = section(shared, "OperandType")
    rows = re.findall(r"^\|\d+\|(\w+)\|[^|]+\|(\d+)\|", table, re.MULTILINE)
    sizes = {OperandType[name]: int(size) for name, size in rows if name != "SUBGRAPH"}
    assert {type: hal.dtype_of(type).itemsize for type in sizes} == sizes


@pytest.mark.parametrize(
    ("type", "values"),
    [
        (hal.Priority, {"LOW": 0, "MEDIUM": 1, "HIGH": 2}),
        (hal.DeviceType, {"OTHER": 1, "CPU": 2, "GPU": 3, "ACCELERATOR": 4}),
        (hal.DeviceStatus, {"AVAILABLE": 0, "BUSY": 1, "OFFLINE": 2, "UNKNOWN": 3}),
        (hal.FusedActivationFunc, {"NONE": 0, "RELU": 1, "RELU1": 2, "RELU6": 3}),
        (hal.PaddingScheme, {"NONE": 0, "SAME": 1, "VALID": 2}),
        (
            hal.ExecutionPreference,
            {"LOW_POWER": 0, "FAST_SINGLE_ANSWER": 1, "SUSTAINED_SPEED": 2},
        ),
        (
            OperandLifeTime,
            {
                "TEMPORARY_VARIABLE": 0,
                "SUBGRAPH_INPUT": 1,
                "SUBGRAPH_OUTPUT": 2,
                "CONSTANT_COPY": 3,
                "CONSTANT_REFERENCE": 4,
                "NO_VALUE": 5,
                "SUBGRAPH": 6,
            },
        ),
    ],
)
def test_values_cross_process_borders_unchanged(
    type: type[enum.IntEnum], values: dict[str, int]
) -> None:
    assert members(type) == values


def test_versions_are_ordered() -> None:
    assert list(hal.HalVersion) == sorted(hal.HalVersion)


@pytest.mark.parametrize("struct", STRUCTS)
def test_structs_are_frozen_and_told(struct: type[hal.Struct]) -> None:
    assert struct.__doc__
    assert struct.__struct_config__.frozen
    for field in msgspec.structs.fields(struct):
        assert not isinstance(field.default, list | dict | set), field.name


def test_struct_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        hal.DataLocation().offset = 4  # type: ignore[misc]


def test_equal_structs_are_equal_and_hash_alike() -> None:
    operand = hal.Operand(OperandType.TENSOR_FLOAT32, (1, 2), name="x")
    assert operand == copy.copy(operand)
    assert len({operand, copy.copy(operand)}) == 1


def test_description_survives_encoding() -> None:
    operand = hal.Operand(
        OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL,
        (2, 3),
        lifetime=OperandLifeTime.CONSTANT_REFERENCE,
        location=hal.DataLocation(1, 64, 6),
        extra_params=hal.ChannelQuant((0.5, 0.25), 0),
    )
    subgraph = hal.Subgraph((operand,), (hal.Operation(OperationType.ABS, (0,), (0,)),), (0,), (0,))
    encoded = msgspec.msgpack.encode(subgraph)
    assert msgspec.msgpack.decode(encoded, type=hal.Subgraph) == subgraph


@pytest.mark.parametrize("type", TENSORS)
@given(dimensions=dimensions)
def test_byte_size_is_numpy_s(type: OperandType, dimensions: hal.Shape) -> None:
    known = hal.is_fully_specified(type, dimensions)
    assert known == (len(dimensions) > 0 and all(dimensions))
    if known:
        size = int(np.prod(dimensions, dtype=object)) * hal.dtype_of(type).itemsize
        assert hal.byte_size(type, dimensions) == size
    else:
        assert hal.byte_size(type, dimensions) == 0


def test_scalars_have_no_dimensions_and_a_size() -> None:
    scalars = {type for type in OperandType if hal.is_scalar(type)}
    assert {type.name for type in scalars} == {
        "FLOAT32",
        "INT32",
        "UINT32",
        "BOOL",
        "FLOAT16",
        "SUBGRAPH",
        "OEM",
    }
    assert all(hal.is_fully_specified(type, ()) for type in scalars)
    assert hal.byte_size(OperandType.FLOAT16, ()) == 2
    assert hal.byte_size(OperandType.SUBGRAPH, ()) == 0


def test_extension_types_have_no_numpy_type() -> None:
    extension = (3 << hal.EXTENSION_PREFIX_SHIFT) | 7
    assert hal.is_extension(extension)
    assert not hal.is_extension(OperandType.TENSOR_OEM_BYTE)
    assert not hal.has_dtype(extension)
    with pytest.raises(KeyError):
        hal.dtype_of(extension)


@pytest.mark.parametrize("lifetime", OperandLifeTime)
def test_constants_are_the_two_lifetimes_of_constants(lifetime: OperandLifeTime) -> None:
    operand = hal.Operand(OperandType.TENSOR_FLOAT32, (1,), lifetime=lifetime)
    assert hal.is_constant(operand) == lifetime.name.startswith("CONSTANT")


def test_messages_name_types_they_know_and_number_the_others() -> None:
    assert hal.type_name(OperandType.TENSOR_BOOL8) == "TENSOR_BOOL8"
    assert hal.type_name(0x30007) == "operand type 0x30007"
    assert hal.operation_name(OperationType.CONV_2D) == "CONV_2D"
    assert hal.operation_name(0x30007) == "operation type 0x30007"


@pytest.mark.parametrize(
    ("since", "types", "operations"),
    [
        (hal.HalVersion.V1_0, (*range(6), 10000, 10001), (*range(29), 10000)),
        (hal.HalVersion.V1_1, (), range(29, 38)),
        (hal.HalVersion.V1_2, (*range(6, 14), 0x10000, 0x7FFFFFFF), (*range(38, 95), 0x10000)),
        (hal.HalVersion.V1_3, (14, 15), range(95, 102)),
        (None, (-1, 16, 9999, 10002, 0xFFFF), (-1, 102, 9999, 10001, 0xFFFF)),
    ],
)
def test_versions_of_types_and_operations(
    since: hal.HalVersion | None, types: Iterable[int], operations: Iterable[int]
) -> None:
    assert {hal.operand_type_since(type) for type in types} <= {since}
    assert {hal.operation_since(type) for type in operations} == {since}


def test_version_names() -> None:
    assert hal.version_name(hal.HalVersion.V1_2) == "HAL 1.2"


def test_zero_points_are_those_of_the_reference(shared: Path) -> None:
    table = section(shared, "OperandType")
    rows = re.findall(r"^\|\d+\|(\w+)\|[^|]+\|\d+\|[^|]+\|>0\|([^|]+)\|", table, re.MULTILINE)
    wanted = {}
    for name, span in rows:
        low, _, high = span.partition("..")
        wanted[OperandType[name]] = (int(low), int(high or low))
    assert {t: hal.zero_points(t) for t in OperandType if hal.zero_points(t)} == wanted
    assert len(wanted) == 5
