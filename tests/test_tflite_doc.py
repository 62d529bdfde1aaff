"""docs/tflite.md says of each operator how it is run."""

from __future__ import annotations

import importlib
from typing import Any

from nnasync._core.importers.tflite.operators import OPERATORS
from scripts import tflite_doc


def test_page_is_current() -> None:
    text = tflite_doc.PATH.read_text(encoding="utf-8")
    assert text == tflite_doc.page(), "run python -m scripts.tflite_doc"


def test_every_operator_of_the_schema_is_there() -> None:
    schema: Any = importlib.import_module("tflite")
    names = {name for name in vars(schema.BuiltinOperator) if not name.startswith("_")}
    left_out = {"CUSTOM", "DELEGATE", "PLACEHOLDER_FOR_GREATER_OP_CODES"}
    rows = [line.split("|")[1].strip() for line in tflite_doc.page().splitlines() if "|" in line]
    assert names - left_out <= set(rows)
    assert set(OPERATORS) <= set(rows)
