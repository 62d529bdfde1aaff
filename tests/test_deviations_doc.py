"""docs/deviations.md: what it says of devices, operations and bounds is so."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

import nnasync as nn
from nnasync._core.drivers import DRIVERS, is_installed
from nnasync.errors import ModelError
from nnasync.hal import OperandType, OperationType
from tests import test_golden

DOCS = Path(__file__).resolve().parent.parent / "docs"
TEXT = (DOCS / "deviations.md").read_text(encoding="utf-8")


def rows() -> dict[str, list[str]]:
    """The table of bounds: network, then the steps on each device."""
    lines = [line.strip("| ").split(" | ") for line in TEXT.splitlines() if line.startswith("| ")]
    return {name.strip("`"): steps for name, *steps in lines[2:]}


def test_the_conformance_page_leads_here() -> None:
    page = (DOCS / "conformance.md").read_text(encoding="utf-8")
    assert "(deviations.md)" in page


def test_bounds_of_the_reference_are_those_of_the_tests() -> None:
    table = rows()
    assert {name for name, steps in table.items() if steps[0] != "1"} == set(test_golden.STEPS)
    for name, steps in test_golden.STEPS.items():
        assert table[name][0] == str(steps)


@pytest.mark.parametrize(("column", "device"), [(1, "litert"), (2, "openvino")])
def test_bounds_of_engines_are_those_of_the_tests(column: int, device: str) -> None:
    if not is_installed(f"{device}-cpu"):
        pytest.skip(f"{device}-cpu is not installed")
    held: dict[str, int] = importlib.import_module(f"tests.drivers.{device}.test_models").STEPS
    stated = {name: steps[column] for name, steps in rows().items() if name != "others"}
    assert stated == {name: str(steps) for name, steps in held.items() if steps > 1}


@pytest.mark.parametrize(
    ("device", "is_exact"),
    [
        ("nnasync-reference", True),
        ("onnxruntime-cpu", True),
        ("litert-cpu", False),
        ("openvino-cpu", False),
    ],
)
def test_which_devices_have_exact_signed_twins(device: str, is_exact: bool) -> None:
    assert DRIVERS[device].exact_coupling is is_exact


def test_hash_tables_refuse_signed_quantization() -> None:
    signed = OperandType.TENSOR_QUANT8_ASYMM_SIGNED
    builder = nn.ModelBuilder("signed")
    values = builder.input("values", (3, 2), type=signed, scale=0.5)
    keys = builder.input("keys", (3,), type=OperandType.TENSOR_INT32)
    lookups = builder.input("lookups", (2,), type=OperandType.TENSOR_INT32)
    with pytest.raises(ModelError, match="HASHTABLE_LOOKUP"):
        builder.operation_outputs(OperationType.HASHTABLE_LOOKUP, lookups, keys, values)
    with pytest.raises(ModelError, match="LSH_PROJECTION"):
        builder.operation(
            OperationType.LSH_PROJECTION,
            builder.constant([[1.0, 2.0]]),
            values,
            None,
            2,
        )
