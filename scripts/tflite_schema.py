"""Write nnasync/_core/formats/tflite_schema.py: the part of TFLite's schema that is needed.

The package tflite has the schema as generated code. To import it takes longer than to read and run
a small model, so its functions are asked here for the numbers, types and defaults of fields, which
become tables of texts. `python -m scripts.tflite_schema` writes the module, `--check` says whether
it is current.
"""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import tflite
from flatbuffers import number_types

__all__ = ["main", "module"]

PATH = Path(__file__).resolve().parent.parent / "nnasync" / "_core" / "formats" / "tflite_schema.py"

_HEAD = '''"""TFLite's schema, as far as it is needed: written by `python -m scripts.tflite_schema`.

The tables are those of the file itself and the parameters of operators. A table's fields stand in
their order, as `Name:type=default`; "-" is a field that is not used any more. A type is a letter of
the module struct, with a star for a list of them, or `text`, `table`, `tables` or `union`.
"""

from __future__ import annotations
'''

_FILE_TABLES = (
    "Model",
    "OperatorCode",
    "SubGraph",
    "Tensor",
    "QuantizationParameters",
    "Operator",
    "Buffer",
    "Metadata",
    "SignatureDef",
    "TensorMap",
)
_LETTERS = {
    number_types.BoolFlags: "?",
    number_types.Int8Flags: "b",
    number_types.Uint8Flags: "B",
    number_types.Int16Flags: "h",
    number_types.Uint16Flags: "H",
    number_types.Int32Flags: "i",
    number_types.Uint32Flags: "I",
    number_types.Int64Flags: "q",
    number_types.Uint64Flags: "Q",
    number_types.Float32Flags: "f",
    number_types.Float64Flags: "d",
}
_KINDS = {flags.__name__.removesuffix("Flags"): letter for flags, letter in _LETTERS.items()}


class _Slots:
    """A builder that only notes which field a function writes, and with which default."""

    def __init__(self) -> None:
        self.noted: tuple[str, int, Any] = ("", 0, 0)

    def __getattr__(self, name: str) -> Callable[[int, Any, Any], None]:
        kind = name.removeprefix("Prepend").removesuffix("Slot")

        def note(slot: int, value: object, default: Any) -> None:
            self.noted = kind, slot, default

        return note


class _Read(Exception):
    """How a field that is no number is read."""


class _Fields:
    """A table that stops who reads it, and says how that was done."""

    Bytes, Pos = b"\0" * 16, 0

    def Offset(self, place: int) -> int:  # noqa: N802  # what flatbuffers calls it
        return 4

    def __getattr__(self, name: str) -> Callable[..., None]:
        def stop(*given: Any) -> None:
            raise _Read({"String": "text", "Indirect": "table"}.get(name, name), *given)

        return stop


def _kind(table: Any, field: str) -> str:
    """The type of a field that is no number."""
    reader = table()
    reader._tab = _Fields()
    try:
        if hasattr(table, f"{field}AsNumpy"):
            getattr(reader, f"{field}AsNumpy")()
        elif hasattr(table, f"{field}Length"):
            return "tables"
        else:
            getattr(reader, field)()
    except _Read as found:
        name, *given = found.args
        if name == "GetVectorAsNumpy":
            return f"*{_LETTERS[given[0]]}"
        return "union" if name == "Union" else str(name)
    raise ValueError(f"{table.__name__}: what is {field}?")


def _fields(name: str) -> str:
    """The fields of a table, in their order."""
    table, found = getattr(tflite, name), {}
    functions = vars(sys.modules[f"tflite.{name}"])
    for function in [each for each in functions if each.startswith(f"{name}Add")]:
        field, slots = function.removeprefix(f"{name}Add"), _Slots()
        functions[function](slots, 0)
        kind, slot, default = slots.noted
        if kind == "UOffsetTRelative":
            found[slot] = f"{field}:{_kind(table, field)}"
        else:
            number = int(default) if kind == "Bool" else default
            found[slot] = f"{field}:{_KINDS[kind]}" + (f"={number}" if number else "")
    return " ".join(found.get(slot, "-") for slot in range(max(found, default=-1) + 1))


def _numbered(enumeration: Any) -> Iterator[str]:
    """The names of an enumeration in the order of their numbers."""
    names: Mapping[int, str] = {
        number: name for name, number in vars(enumeration).items() if not name.startswith("_")
    }
    return (names.get(number, "-") for number in range(max(names) + 1))


def _lines(words: str, indent: str) -> str:
    """Words as literals of lines that are not too long."""
    parts = textwrap.wrap(words, 99 - len(indent) - 3, break_long_words=False) or [""]
    parts = [*(f"{part} " for part in parts[:-1]), parts[-1]]
    return "\n".join(f'{indent}"{part}"' for part in parts)


def _words(name: str, words: Iterator[str], doc: str) -> str:
    return f'{name} = (\n{_lines(" ".join(words), "    ")}\n)\n"""{doc}"""\n'


_SHARED = {
    "CONV_3D_TRANSPOSE": "Conv3DOptions",
    "L2_NORMALIZATION": "L2NormOptions",
    "UNIDIRECTIONAL_SEQUENCE_RNN": "SequenceRNNOptions",
    **dict.fromkeys(("AVERAGE_POOL_2D", "L2_POOL_2D", "MAX_POOL_2D"), "Pool2DOptions"),
    **dict.fromkeys(("MULTINOMIAL", "RANDOM_STANDARD_NORMAL", "RANDOM_UNIFORM"), "RandomOptions"),
    **dict.fromkeys(
        ("MEAN", "REDUCE_ALL", "REDUCE_ANY", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_PROD", "SUM"),
        "ReducerOptions",
    ),
}
"""Tables of parameters that are not named like their operators."""


def _parameters(options: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Each operator that has parameters, and their table."""
    by_name = {name.lower(): name for name in options}
    for operator in _numbered(tflite.BuiltinOperator):
        alike = by_name.get(f"{operator.replace('_', '')}Options".lower(), "")
        table = _SHARED.get(operator, alike)
        if table and _fields(table):
            yield operator, table


def module() -> str:
    """The text of the module."""
    options = list(_numbered(tflite.BuiltinOptions))
    parts = [_HEAD]
    parts += [
        _words("FILE_TABLES", iter(_FILE_TABLES), "The tables that make up a file."),
        _words(
            "TENSOR_TYPES",
            _numbered(tflite.TensorType),
            "Their names, in the order of their numbers.",
        ),
        _words(
            "OPERATORS",
            _numbered(tflite.BuiltinOperator),
            "Their names, in the order of their numbers.",
        ),
        _words(
            "OPTIONS", iter(options), "The tables of parameters, in the order of their numbers."
        ),
    ]
    lines = ["TABLES = {"]
    for name in (*_FILE_TABLES, *options[1:]):
        fields = _fields(name)
        line = f'    "{name}": "{fields}",'
        if len(line) > 100:
            line = f'    "{name}": (\n{_lines(fields, " " * 8)}\n    ),'
        lines.append(line)
    parts.append("\n".join([*lines, "}", '"""The fields of each table."""', ""]))
    lines = [f'    "{operator}": "{table}",' for operator, table in _parameters(options)]
    doc = '"""The table of parameters of each operator that has some."""'
    parts.append("\n".join(["PARAMETERS = {", *lines, "}", doc, ""]))
    return "\n".join(parts)


def main(arguments: list[str] | None = None) -> int:
    """Write the module, or compare it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only say whether it is current")
    if parser.parse_args(arguments).check:
        return int(PATH.read_text() != module())
    PATH.write_text(module())
    return 0


if __name__ == "__main__":
    sys.exit(main())
