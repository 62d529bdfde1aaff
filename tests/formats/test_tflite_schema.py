"""The tables of TFLite's schema are those of the published package."""

from __future__ import annotations

from nnasync._core.formats.flatbuffer import fields
from nnasync._core.formats.tflite_schema import OPTIONS, PARAMETERS, TABLES
from scripts.tflite_schema import PATH, module


def test_the_module_is_what_the_script_writes() -> None:
    assert PATH.read_text() == module()


def test_tables_of_parameters_are_those_of_the_file() -> None:
    assert set(PARAMETERS.values()) <= set(OPTIONS.split()) & set(TABLES)


def test_fields_have_their_places_and_defaults() -> None:
    assert fields(TABLES["ResizeBilinearOptions"])["AlignCorners"] == (2, "?", False)
    assert fields(TABLES["Conv2DOptions"])["DilationHFactor"] == (5, "i", 1)
