"""docs/operations.md says what the signatures say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from nnasync.hal import OperationType
from nnasync.kernels import OPERATIONS
from scripts import operations_doc


def test_page_is_current() -> None:
    text = operations_doc.PATH.read_text(encoding="utf-8")
    assert text == operations_doc.page(), "run python -m scripts.operations_doc"


def test_page_has_every_operation_and_version() -> None:
    sections = dict(
        re.findall(
            r"^## (\w+)\n(.*?)(?=^## |^# |\Z)", operations_doc.page(), re.MULTILINE | re.DOTALL
        )
    )
    assert set(sections) >= {type.name for type in OperationType}
    for type, operation in OPERATIONS.items():
        text = sections[type.name]
        versions = {f"| 1.{signature.since - 27} " for signature in operation.signatures}
        assert all(version in text for version in versions)
        for signature in operation.signatures:
            for parameter in (*signature.inputs, *signature.outputs):
                assert re.search(rf"[`*]{re.escape(parameter.name)}[`*]", text)


def test_check_finds_an_old_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations_doc, "PATH", tmp_path / "operations.md")
    assert operations_doc.main(["--check"]) == 1
    assert operations_doc.main([]) == 0
    assert operations_doc.main(["--check"]) == 0
    operations_doc.PATH.write_text("# Operations\n", encoding="utf-8")
    assert operations_doc.main(["--check"]) == 1
