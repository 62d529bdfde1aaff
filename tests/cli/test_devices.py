"""`nnasync devices`."""

from __future__ import annotations

import msgspec
import pytest

from nnasync.cli import main
from nnasync.cli.text import milliseconds, table


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["devices", "--json"]) == 0
    devices = {device["name"]: device for device in msgspec.json.decode(capsys.readouterr().out)}
    reference = devices["nnasync-reference"]
    assert reference["type"] == "CPU"
    assert reference["version"]
    assert (reference["feature_level"], reference["hal_version"]) == (30, "1.3")
    assert set(reference["cache_files"]) == {"model", "data"}
    assert reference["performance"]["TENSOR_FLOAT32"]["exec_time"] > 0


def test_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["devices"]) == 0
    told = capsys.readouterr().out
    assert "nnasync-reference" in told
    assert "30 (HAL 1.3)" in told
    assert "performance of nnasync-reference" in told


def test_table_is_aligned_and_wrapped() -> None:
    text = table(("name", "n"), [("a, b, c, d", "1"), ("x", "22")], wide=5)
    assert text.splitlines() == ["name   n", "-----  --", "a, b,  1", "c, d", "x      22"]


def test_milliseconds() -> None:
    assert milliseconds(1_234_567) == "1.235 ms"
    assert milliseconds(12_345_678) == "12.3 ms"
