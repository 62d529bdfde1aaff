"""A graph on disk: its model as `.nnm`, and beside it as `.npz` its inputs and its criteria."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

import msgspec
import numpy as np

from nnasync._core.model import load_nnm, save
from nnasync.conformance.random_graphs.graph import RandomGraph, graph_of, model_of
from nnasync.errors import InvalidArgument
from nnasync.hal import Array
from nnasync.kernels.facts import CriterionClass

_INPUT = "input_{}"
_CRITERIA = "criteria"


def save_graph(graph: RandomGraph, folder: Path) -> Path:
    """Write a graph into a folder, which is made if it is not there; returns the model's path.

    A model that is not legal cannot be written: raises ModelError, and OSError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / (re.sub(r"[^a-z0-9]+", "_", graph.name.lower()).strip("_") + ".nnm")
    save(model_of(graph), path)
    inputs = {_INPUT.format(i): value for i, value in enumerate(graph.input_values)}
    if graph.criteria is not None:
        inputs[_CRITERIA] = np.asarray(graph.criteria.value)
    with path.with_suffix(".npz").open("wb") as file:
        np.savez(file, **inputs)  # type: ignore[arg-type]
    return path


def load_graph(path: Path) -> RandomGraph:
    """The graph of a model file and the inputs beside it.

    Raises ModelError for what is no model, InvalidArgument for what are no inputs of it, OSError.
    """
    model = load_nnm(path)
    inputs, criteria = _load_inputs(path.with_suffix(".npz"))
    return msgspec.structs.replace(graph_of(model, inputs), criteria=criteria)


def _load_inputs(path: Path) -> tuple[list[Array], CriterionClass | None]:
    try:
        with path.open("rb") as file, np.lib.npyio.NpzFile(file, allow_pickle=False) as archive:
            criteria = None
            if _CRITERIA in archive.files:
                criteria = CriterionClass(str(archive[_CRITERIA]))
            count = len(archive.files) - (criteria is not None)
            return [archive[_INPUT.format(i)] for i in range(count)], criteria
    except (ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise InvalidArgument(f"{path}: does not hold inputs: {error}") from error
