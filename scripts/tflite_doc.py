"""Write the table of operators in docs/tflite.md: every operator of TFLite, and how it is run.

`python -m scripts.tflite_doc` writes it, `--check` says whether it is current.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nnasync._core.importers.tflite.folding import FOLDS
from nnasync._core.importers.tflite.operators import OPERATORS
from nnasync._core.importers.tflite.wrapping import CUSTOM_OPERATORS, MEDIAPIPE_OPERATORS

__all__ = ["main", "page"]

PATH = Path(__file__).resolve().parent.parent / "docs" / "tflite.md"

_MARK = "<!-- The table is written by `python -m scripts.tflite_doc`. -->\n"
_LEFT_OUT = ("CUSTOM", "DELEGATE", "PLACEHOLDER_FOR_GREATER_OP_CODES")
_STATES = ("ASSIGN_VARIABLE", "READ_VARIABLE", "VAR_HANDLE")
_REFUSED = {"HASHTABLE": "refused: values would stay in LiteRT"}


def page() -> str:
    """The page with the table as it should be."""
    head = PATH.read_text(encoding="utf-8").partition(_MARK)[0]
    return f"{head}{_MARK}\n{_table()}"


def _table() -> str:
    schema: Any = importlib.import_module("tflite")
    numbered = (name for name in vars(schema.BuiltinOperator) if not name.startswith("_"))
    names = sorted(name for name in numbered if name not in _LEFT_OUT)
    custom = [f"CUSTOM {name}" for name in (*CUSTOM_OPERATORS, *MEDIAPIPE_OPERATORS)]
    lines = [f"| {name} | {_types(name)} | {_others(name)} |" for name in (*names, *custom)]
    return "\n".join(("| operator | translated | otherwise |", "| --- | --- | --- |", *lines, ""))


def _types(name: str) -> str:
    """The types of first inputs that are translated, and what is computed while reading."""
    converters = OPERATORS.get(name, ())
    kinds = [kind[0] for converter in converters for kind in converter.kinds]
    found = ", ".join(dict.fromkeys(kinds)) or ("any" if converters else "")
    folded = "while reading" if name in FOLDS or name == "SHAPE" else ""
    return "; ".join(filter(None, (found, folded)))


def _others(name: str) -> str:
    return _REFUSED.get(name, "whole, as states" if name in _STATES else "whole")


def main(argv: Sequence[str] | None = None) -> int:
    """Write the page, or check it; the exit code is 1 if it is not current."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, only compare")
    arguments = parser.parse_args(argv)
    text = page()
    if arguments.check:
        return int(PATH.read_text(encoding="utf-8") != text)
    PATH.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
