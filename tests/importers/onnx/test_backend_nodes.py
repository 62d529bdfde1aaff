"""ONNX's own tests of its operators: what they give once they are loaded, one test per operator."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("onnx", reason="needs the package onnx")
pytest.importorskip("onnxruntime", reason="needs the package onnxruntime")

from scripts import onnx_doc, onnx_nodes

KNOWN = {
    "test_attention_4d_causal_fp16": "numbers of float16 that are off by a last digit",
    "test_dft": "by ONNX Runtime: 1e-4 where 0 is expected, of numbers up to 100",
    "test_stft": "by ONNX Runtime: 1e-5 where 0 is expected",
    "test_training_dropout": "the numbers that drop out come from another random generator",
    "test_maxunpool_export_with_output_shape": "by ONNX Runtime: indices count in the input there",
}
"""Beginnings of the names of tests whose result is another than ONNX expects, and why."""


@pytest.mark.parametrize("family", onnx_nodes.families())
def test_results_are_what_onnx_expects_and_the_table_is_current(
    family: str, tmp_path: Path
) -> None:
    outcomes = onnx_nodes.outcomes(family, tmp_path)
    found = {
        outcome.name: f"{outcome.way}: {outcome.fault}"
        for outcome in outcomes
        if outcome.fault and not outcome.name.startswith(tuple(KNOWN))
    }
    assert not found, "\n".join(f"{name} {fault}" for name, fault in found.items())
    text = onnx_doc.PATH.read_text(encoding="utf-8")
    for row in onnx_doc.rows(outcomes):
        assert row in text, f"run python -m scripts.onnx_doc: {row}"
