"""docs/devices.md: the table of what devices take is made from what they answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from nnasync._core.drivers import DRIVERS, Driver, cpu
from nnasync.hal import Model, OperationType
from scripts import devices_doc


class Adder(cpu.ReferenceEngine):
    """Takes additions only."""

    name = "adder"

    def supported_operations(self, model: Model) -> list[bool]:
        return [operation.type == OperationType.ADD for operation in model.main.operations]


def test_table_says_what_a_device_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DRIVERS, "adder", Driver("tests.test_devices_doc:Adder"))
    text = devices_doc.page(["adder"], rounds=1)
    rows = [line for line in text.splitlines() if line.startswith("| ")][2:]
    assert "| ADD | all | all | all | n/a | all | all |" in text
    assert [row.split(" | ")[0] for row in rows if " all " in row] == ["| ADD"]


def test_page_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices_doc, "PATH", tmp_path / "devices.md")
    monkeypatch.setattr(devices_doc, "computing_devices", list[str])
    assert devices_doc.main(["--rounds", "1"]) == 0
    assert devices_doc.PATH.read_text(encoding="utf-8").startswith("# Devices")
