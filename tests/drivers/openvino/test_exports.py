"""The bytes of compiled networks, written while these are compiled."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest

from nnasync._core.drivers.openvino import OpenVinoEngine, exports
from nnasync._core.drivers.openvino.plan import OpenVinoPlan
from nnasync._core.workers import StopFlag
from nnasync.engine import CacheFiles
from nnasync.errors import GeneralFailure
from nnasync.hal import Array
from tests.drivers.openvino.rig import compiled_product


def answer_of(plan: OpenVinoPlan) -> Array:
    target = np.empty((2, 4), np.float32)
    assert plan.bind([np.ones((2, 3), np.float32)], [target]).run(StopFlag())
    return target


def test_they_are_there_without_asking_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who asks it keeps the interpreter lock until all is written."""

    def refused(network: object) -> memoryview:
        raise AssertionError("the network was asked")

    monkeypatch.setattr(exports, "_asked", refused)
    plan = compiled_product()
    written = plan.exported()
    monkeypatch.undo()
    assert written == exports._asked(plan.compiled)


def test_no_folder_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    plan = compiled_product()
    assert not list(tmp_path.iterdir())
    engine = OpenVinoEngine()
    again = engine.deserialize(engine.serialize(plan), None)
    assert np.array_equal(answer_of(again), answer_of(plan))


def test_where_nothing_can_be_written_the_network_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "is not there"))
    plan = compiled_product()
    assert plan.exported() == exports._asked(plan.compiled)


@pytest.mark.parametrize("content", [b"", b"\0" * 100, b'<?xml version="2"?>\n' + b"\0" * 100])
def test_bytes_of_another_form_are_not_taken(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "1.blob").write_bytes(content)
    assert exports._written_to(tmp_path) is None


def test_nor_is_one_of_several_files(tmp_path: Path) -> None:
    whole = b'<?xml a="1" header_size_alignment="0"/>\nbytes'
    (tmp_path / "1").write_bytes(whole)
    assert bytes(exports._written_to(tmp_path) or b"") == b"bytes"
    (tmp_path / "2").write_bytes(whole)
    assert exports._written_to(tmp_path) is None


def test_broken_bytes_are_an_error_of_the_engine() -> None:
    engine = OpenVinoEngine()
    description, _ = engine.serialize(compiled_product()).model
    with pytest.raises(GeneralFailure, match="importing"):
        engine.deserialize(CacheFiles(model=(description, b"\0" * 64)), None)
