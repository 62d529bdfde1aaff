"""The signatures are those of the reference's table of operations."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from nnasync.hal import HalVersion, OperandType, OperationType
from nnasync.kernels import OPERATIONS

T = OperandType
NAMES = {
    "F32": T.TENSOR_FLOAT32,
    "F16": T.TENSOR_FLOAT16,
    "I32": T.TENSOR_INT32,
    "Q8": T.TENSOR_QUANT8_ASYMM,
    "Q8S": T.TENSOR_QUANT8_ASYMM_SIGNED,
    "B8": T.TENSOR_BOOL8,
    "Q16A": T.TENSOR_QUANT16_ASYMM,
}
WITHOUT_TABLE = {"DEQUANTIZE", "QUANTIZE", "CAST", "RANK", "FILL", "IF", "WHILE"}
"""Operations whose row says more than the types of the main tensor; see their own tests."""
MAIN_INPUT = {
    OperationType.EMBEDDING_LOOKUP: 1,
    OperationType.HASHTABLE_LOOKUP: 2,
    OperationType.SELECT: 1,
}


COUNTS = {"LOGICAL_AND": {2}, "LOGICAL_OR": {2}, "LOGICAL_NOT": {1}}
"""Numbers of inputs where one row is for several operations that differ."""
VERSIONS = {
    "EMBEDDING_LOOKUP": "F32 I32@1.2 Q8@1.2 F16@1.3 Q8S@1.3",
}
"""Rows that are written in another manner."""


def rows(shared: Path) -> dict[str, tuple[HalVersion, str, str, str]]:
    """Since, inputs, outputs and types of each operation."""
    text = (shared / "reference" / "operations.md").read_text(encoding="utf-8")
    table = text.split("## J.", 1)[1]
    found = {}
    for line in re.findall(r"^\|([A-Z].*)\|$", table, re.MULTILINE):
        names, since, inputs, outputs, types = line.split("|")
        for name in re.findall(r"[A-Z][A-Z0-9_]+", names):
            found[name] = (version(since), inputs, outputs, types)
    return found


def version(text: str) -> HalVersion:
    return HalVersion["V" + text.strip().replace(".", "_")]


def numbers(text: str) -> set[int]:
    """The numbers in "7,8 / 10,11" and "3…6"."""
    found: set[int] = set()
    for part in re.split(r"[,/;]", re.sub(r"@[\d.]+|\(.*\)", "", text)):
        ends = [int(n) for n in re.findall(r"\d+", part)]
        found |= set(range(ends[0], ends[-1] + 1)) if ends else set()
    return found


def test_the_table_has_every_operation(shared: Path) -> None:
    known = {o.name for o in OperationType} - {"OEM_OPERATION"}
    assert set(rows(shared)) == known


@pytest.mark.parametrize("type", OPERATIONS, ids=lambda type: type.name)
def test_counts(shared: Path, type: OperationType) -> None:
    _, inputs, outputs, _ = rows(shared)[type.name]
    signatures = OPERATIONS[type].signatures
    if type == OperationType.CONCATENATION:
        assert all(signature.variadic and len(signature.inputs) == 2 for signature in signatures)
    else:
        wanted = COUNTS.get(type.name) or numbers(inputs)
        assert {len(signature.inputs) for signature in signatures} == wanted
    if type == OperationType.SPLIT:
        assert all(signature.variadic_outputs for signature in signatures)
    else:
        assert {len(signature.outputs) for signature in signatures} == numbers(outputs)


@pytest.mark.parametrize("type", OPERATIONS, ids=lambda type: type.name)
def test_main_types_and_versions(shared: Path, type: OperationType) -> None:
    since, _, _, types = rows(shared)[type.name]
    signatures = OPERATIONS[type].signatures
    assert OPERATIONS[type].since == since
    if type.name in WITHOUT_TABLE:
        return
    if types.startswith("as CONV_2D"):
        types = rows(shared)["CONV_2D"][3]
    types = VERSIONS.get(type.name, types)
    plain = re.sub(r"\(.*?\)(@[\d.]+)?|[a-z][a-z ]*\b", " ", types.split("/")[0])
    wanted = {
        NAMES[name]: version(number) if number else since
        for name, number in re.findall(r"\b([A-Z]\d+[SA]?)(?:@([\d.]+))?", plain)
    }
    position = MAIN_INPUT.get(type, 0)
    given: dict[int, HalVersion] = {}
    for signature in signatures:
        main = signature.inputs[position].type
        given[main] = min(signature.since, given.get(main, HalVersion.V1_3))
    assert given == {int(name): number for name, number in wanted.items()}
