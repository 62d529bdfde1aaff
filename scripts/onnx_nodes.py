"""ONNX's own node tests, run through the importer: which way each file goes, and what comes out.

The package onnx brings the tests of its standard. Each is a file of one operator (or of the
operators that its definition consists of), with inputs and outputs. `outcomes` loads those of an
operator as `nnasync.load` does and runs what was translated on the reference, the rest on ONNX
Runtime. A file that is not translated is tried again with all inputs but the first as constants,
which is what exporters make of shapes, axes and weights. Files that state a newer opset than
`NEWEST` are read as if of that one, where they are legal there.
"""

from __future__ import annotations

import importlib
import pkgutil
import warnings
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from nnasync._core.drivers.cpu import ReferenceEngine
from nnasync._core.drivers.onnxruntime import OnnxRuntimeEngine
from nnasync._core.importers import onnx as importer
from nnasync.engine import Engine, OutputBuffer, StopFlag, Target
from nnasync.errors import GeneralFailure, InvalidArgument, ModelError
from nnasync.extensions import ONNX, operation_label, sized
from nnasync.hal import Array, ExecutionPreference, Model, dtype_of, is_fully_specified

__all__ = ["NEWEST", "Outcome", "Way", "families", "outcomes", "run"]

NEWEST = 23
_OLDEST = 7
_CONSTANTS_APART = 4
"""Before this version of the format constants had to be inputs, too."""
_PACKAGE = "onnx.backend.test.case.node"
_STANDARD = ("", "ai.onnx")

Way = str
"""translated, frozen (translated with constants), whole, or refused."""


class Outcome(msgspec.Struct, frozen=True):
    """What became of a test: the way it went, why not a better one, what is wrong with the result.

    Of a refused one the first reason is why it does not run whole.
    `operations` are those it was translated to, and `type` is that of its first input. `fault` is
    empty where the result is what ONNX expects.
    """

    name: str
    operator: str
    type: str
    way: Way
    operations: tuple[str, ...]
    reason: str
    fault: str


@cache
def families() -> tuple[str, ...]:
    """The modules of the tests, one for each operator."""
    package = importlib.import_module(_PACKAGE)
    return tuple(
        info.name
        for info in pkgutil.iter_modules(package.__path__)
        if not info.ispkg and not info.name.startswith(("_", "ai_onnx_ml", "utils"))
    )


@cache
def outcomes(family: str, folder: Path) -> tuple[Outcome, ...]:
    """What becomes of the tests of a family; `folder` is for files."""
    with np.errstate(all="ignore"):
        found: list[Outcome] = []
        for case in _cases(family):
            nodes = case.model.graph.node
            is_plain = len(nodes) == 1 and "_expanded" not in case.name
            operator = nodes[0].op_type if is_plain or not found else found[-1].operator
            found.append(_outcome(case, operator, folder))
        return tuple(found)


def _cases(family: str) -> Iterator[Any]:
    """The tests of a family that state an opset which is translated, or could."""
    found = importlib.import_module(_PACKAGE)._NodeTestCases
    before = len(found)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        importlib.import_module(f"{_PACKAGE}.{family}")
        for case in found[before:]:
            if _is_named(case.model) and _lowered(case.model):
                yield case


def _is_named(model: Any) -> bool:
    return all(entry.domain in _STANDARD for entry in model.opset_import)


def _lowered(model: Any) -> bool:
    """Whether the file has an opset from 7 to 23, or is legal if it states that it had."""
    onnx: Any = importlib.import_module("onnx")
    (opset,) = model.opset_import
    if opset.version <= NEWEST:
        return bool(opset.version >= _OLDEST)
    opset.version, model.ir_version = NEWEST, 11
    try:
        onnx.checker.check_model(model, full_check=True)
    except Exception:
        return False
    return True


def _outcome(case: Any, operator: str, folder: Path) -> Outcome:
    path = folder / "case.onnx"
    (inputs, expected), *_ = case.data_sets
    type = str(getattr(inputs[0], "dtype", "other")) if inputs else ""
    said: dict[str, str] = {}
    frozen = _frozen(case.model, inputs)
    for way, load, engine, message in (
        ("translated", importer.translate, ReferenceEngine, case.model),
        ("frozen", importer.translate, ReferenceEngine, frozen),
        ("whole", importer.wrap, OnnxRuntimeEngine, case.model),
    ):
        if message is None:
            continue
        try:
            path.write_bytes(message.SerializeToString())
            model = sized(load(path), (ONNX,), "ONNX Runtime")
            given = inputs[:1] if way == "frozen" else inputs
            results = _run(engine(), model, given)
        except (ModelError, InvalidArgument, GeneralFailure) as error:
            said[way] = str(error).removeprefix(f"{path}: ")
            continue
        fault = _difference(results, expected, case.rtol, case.atol)
        reason = said.get("frozen", said.get("translated", "")) if way == "whole" else ""
        return Outcome(case.name, operator, type, way, _operations(model), reason, fault)
    reason = f"{said['whole']}; {said.get('frozen', said['translated'])}"
    return Outcome(case.name, operator, type, "refused", (), reason, "")


def _operations(model: Model) -> tuple[str, ...]:
    """The operations of a model, each once."""
    labels = (
        operation_label(model.extension_name_to_prefix, operation.type)
        for operation in model.main.operations
    )
    return tuple(dict.fromkeys(label.rpartition(".")[2] for label in labels))


def _frozen(model: Any, inputs: Sequence[Any]) -> Any:
    """The file with all inputs but the first constant, as exporters write it; None if it is so."""
    onnx: Any = importlib.import_module("onnx")
    if len(inputs) < 2 or not all(isinstance(each, np.ndarray | np.generic) for each in inputs):
        return None
    frozen = type(model)()
    frozen.CopyFrom(model)
    frozen.ir_version = max(frozen.ir_version, _CONSTANTS_APART)
    ports = list(frozen.graph.input)
    del frozen.graph.input[1:]
    for port, array in zip(ports[1:], inputs[1:], strict=True):
        frozen.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array), port.name))
    return frozen


def _run(engine: Engine, model: Model, inputs: Sequence[Any]) -> list[Array]:
    """The outputs of a test's inputs, which become what the model takes."""
    main = model.main
    if not all(engine.supported_operations(model)):
        raise ModelError("the reference does not take what it was translated to")
    given = [
        np.ascontiguousarray(_numbers(array)).astype(dtype_of(main.operands[index].type))
        for index, array in zip(main.input_indexes, inputs, strict=True)
    ]
    return run(engine, model, [array.reshape(array.shape or (1,)) for array in given])


def run(engine: Engine, model: Model, inputs: Sequence[Array]) -> list[Array]:
    """The outputs of one execution; those of unknown shape get memory for plenty of elements."""
    model = sized(model, (ONNX,), "ONNX Runtime")
    main = model.main
    plan = engine.compile(model, ExecutionPreference.SUSTAINED_SPEED)
    targets: list[Target] = []
    for index in main.output_indexes:
        operand = main.operands[index]
        dtype = dtype_of(operand.type)
        if is_fully_specified(operand.type, operand.dimensions):
            targets.append(np.zeros(operand.dimensions, dtype))
        else:
            targets.append(OutputBuffer(np.zeros(1 << 20, np.uint8), dtype, operand.dimensions))
    if not plan.bind(list(inputs), targets).run(StopFlag()):
        raise GeneralFailure("the run was aborted")
    return [_array(target) for target in targets]


def _numbers(array: Any) -> Array:
    """The array of an input or output, which may be a message."""
    if hasattr(array, "data_type"):
        return np.asarray(importlib.import_module("onnx").numpy_helper.to_array(array))
    return np.asarray(array)


def _array(target: Target) -> Array:
    if not isinstance(target, OutputBuffer):
        return target
    array = target.array(target.shape)
    return np.zeros(target.shape, target.dtype) if array is None else array


def _difference(results: Sequence[Array], expected: Sequence[Any], rtol: float, atol: float) -> str:
    """How results differ from what is expected, or an empty string."""
    for place, (got, wanted) in enumerate(zip(results, expected, strict=True)):
        shape = _numbers(wanted).shape or (1,)
        if got.shape != shape:
            return f"output {place} has shape {list(got.shape)}, expected {list(shape)}"
        try:
            floats = _numbers(wanted).astype(np.float64).reshape(shape)
            np.testing.assert_allclose(got.astype(np.float64), floats, rtol, atol)
        except AssertionError as error:
            return f"output {place}: {' '.join(str(error).split())}"
    return ""
