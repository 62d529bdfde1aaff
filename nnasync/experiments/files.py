"""Experiments as files: TOML, every key of which is checked.

What is wrong is told with the path of its key, as it is written in the file: `streams[0].arrivals`.
Traces and models are found from the folder of the file.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from nnasync.errors import InvalidArgument
from nnasync.experiments.experiment import Experiment, experiment_of


def read_experiment(path: str | Path) -> Experiment:
    """Reads an experiment from a TOML file.

    Raises:
        InvalidArgument: The file is no TOML, or a key or a value is not legal; the message begins
            with the file's name and has the path of the key.
        OSError: The file cannot be read.
    """
    path = Path(path)
    content = path.read_bytes()
    try:
        document = tomllib.loads(content.decode("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"{path}: {error}") from None
    document.setdefault("name", path.stem)
    _find_from(path.parent, document)
    try:
        experiment = experiment_of(document)
        experiment.points()
    except InvalidArgument as error:
        raise InvalidArgument(f"{path}: {error}") from None
    return experiment


def _find_from(folder: Path, document: dict[str, Any]) -> None:
    """Makes paths of traces and models relative to the folder of the file that names them."""
    streams = document.get("streams")
    for stream in streams if isinstance(streams, list) else ():
        for part, key in (("arrivals", "path"), ("cost", "model")):
            inner = stream.get(part) if isinstance(stream, dict) else None
            if isinstance(inner, dict) and isinstance(inner.get(key), str):
                inner[key] = str(folder / inner[key])
