"""Packages of engines: their libraries are loaded before, their imports remembered."""

from __future__ import annotations

import ctypes
import os
import sys
from types import SimpleNamespace

import pytest

from nnasync._core.engine_packages import imported, load_library, loading_ns


def test_how_long_an_import_took_is_remembered(
    monkeypatch: pytest.MonkeyPatch, tmp_path: os.PathLike[str]
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    with open(os.path.join(tmp_path, "an_engine_of_mine.py"), "w") as file:
        file.write("import gc; looked = len(gc.callbacks)")
    module = imported("an_engine_of_mine")
    monkeypatch.delitem(sys.modules, "an_engine_of_mine")
    took_ns = loading_ns("an_engine_of_mine")
    assert module.looked
    assert took_ns
    monkeypatch.setitem(sys.modules, "an_engine_of_mine", module)
    assert imported("an_engine_of_mine") is module
    assert loading_ns("an_engine_of_mine") == took_ns


def test_what_was_imported_by_others_took_no_time() -> None:
    assert imported("ctypes") is ctypes
    assert loading_ns("ctypes") == 0


@pytest.mark.parametrize(
    ("package", "beginning"),
    [
        ("openvino", "_pyopenvino"),
        ("ai_edge_litert", "libpywrap_litert_common"),
        ("onnxruntime", "capi/onnxruntime_pybind11_state"),
    ],
)
def test_an_import_finds_the_library_loaded(
    monkeypatch: pytest.MonkeyPatch, package: str, beginning: str
) -> None:
    loaded: list[str] = []

    def dlopen(path: bytes, flags: int) -> None:
        loaded.append(os.fsdecode(path))

    monkeypatch.delitem(sys.modules, package, raising=False)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace(dlopen=dlopen))
    load_library(package, beginning)
    assert len(loaded) == 1
    assert f"/{package}/{beginning}" in loaded[0]
    load_library(package, "no/such_library")
    load_library("no_such_package", beginning)
    assert len(loaded) == 1


def test_the_library_of_a_package_that_is_imported_is_loaded_already(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: pytest.fail("loads something"))
    load_library("pytest", "")
