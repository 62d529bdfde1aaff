"""A list for `nnasync suite benchmark` of a folder of real models.

`python -m scripts.benchmark_list FOLDER > list.json` writes it.

The folder has index.json, which names models and their golden cases, and perhaps images with
ground_truth.json and labels.txt, which models for image classification get as well. The list goes
to standard output; the names of its files are absolute.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_SPEECH = "speech synthesis"
_PICTURES = "image classification"
_SIGNAL = "noise suppression"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the list of a folder; 1 if it has no index."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args(arguments).folder.absolute()
    index = folder / "index.json"
    if not index.is_file():
        print(f"{folder} has no index.json: skipped", file=sys.stderr)
        return 1
    entries = json.loads(index.read_text(encoding="utf-8"))
    print(json.dumps({"models": [listed(entry, folder) for entry in entries]}, indent=1))
    return 0


def listed(entry: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The entry of an index as one of a list."""
    kind = entry["kind"]
    result: dict[str, Any] = {
        "name": entry["name"],
        "file": str(folder / entry["file"]),
        "cases": [_case(each, folder) for each in entry["cases"]],
    }
    if kind.startswith(_SPEECH):
        result["evaluator"] = "speech"
    elif kind.startswith(_SIGNAL):
        result["evaluator"] = "signal-to-noise"
    elif kind.startswith(_PICTURES) and (folder / "images" / "ground_truth.json").is_file():
        result["pictures"] = {
            "folder": str(folder / "images"),
            "labels": str(folder / "images" / "labels.txt"),
        }
    return result


def _case(case: dict[str, Any], folder: Path) -> dict[str, Any]:
    result = {way: [str(folder / name) for name in case.get(way, ())] for way in _WAYS}
    if "expect_argmax" in case:
        result["class"] = case["expect_argmax"]
    return result


_WAYS = ("inputs", "outputs")

if __name__ == "__main__":
    sys.exit(main())
