"""Files in the form that is translated: old ones raised, functions replaced by their parts.

Files of opset 7 to 10 are raised to 11 by the converter of the package onnx. Functions of a file,
and operators that no converter knows and whose definition is a function of others, are replaced by
the operators of that function.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from nnasync._core.importers.onnx.inference import check_lists
from nnasync._core.importers.onnx.onnx_file import OnnxGraph, package, read_graph
from nnasync.errors import ModelError

_OLDEST = 7
_TARGET = 11
_STANDARD = ("", "ai.onnx")
_MOST_LEVELS = 4
"""How deep functions may consist of functions."""
_MOST_BYTES = 2**30
"""Files that are larger are not rewritten."""


def raised(message: Any, graph: OnnxGraph, known: Callable[[str], bool]) -> tuple[Any, OnnxGraph]:
    """The file and graph to translate: themselves, or rewritten ones with the same ports.

    `known` says whether there is a converter for an operator. Raises ModelError that says what
    hinders.
    """
    found = message
    if graph.opset < _TARGET:
        found = _newer(found, graph)
    if found.functions:
        check_lists(found, graph)
        found = _rewritten(found, "its functions", _without_own)
    for _ in range(_MOST_LEVELS):
        names = sorted({node.op_type for node in _functions(found.graph, known)})
        if not names:
            break
        found = _rewritten(found, ", ".join(names), lambda file: _expanded(file, known))
    if found is message:
        return message, graph
    again = read_graph(found)
    return found, msgspec.structs.replace(again, inputs=graph.inputs, outputs=graph.outputs)


def _newer(message: Any, graph: OnnxGraph) -> Any:
    opset = graph.opset
    if opset < _OLDEST:
        raise ModelError(f"has opset {opset}, the oldest that is translated is {_OLDEST}")
    _check_size(message)
    check_lists(message, graph)
    converter = importlib.import_module("onnx.version_converter")
    try:
        return converter.convert_version(message, _TARGET)
    except Exception as error:
        raise ModelError(f"has opset {opset}, and cannot be raised to 11: {error}") from error


def _functions(graph: Any, known: Callable[[str], bool]) -> Iterator[Any]:
    """Operators without a converter whose definition is a function, of subgraphs too."""
    defs = package().defs
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from _functions(inner, known)
        if node.domain not in _STANDARD or known(node.op_type):
            continue
        try:
            schema = defs.get_schema(node.op_type)
        except Exception:
            continue
        if schema.has_function or schema.has_context_dependent_function:
            yield node


def _rewritten(message: Any, what: str, rewrite: Callable[[Any], Any]) -> Any:
    _check_size(message)
    try:
        return rewrite(message)
    except Exception as error:
        raise ModelError(f"cannot be rewritten without {what}: {error}") from error


def _without_own(message: Any) -> Any:
    """The file without functions of its own."""
    inliner = importlib.import_module("onnx.inliner")
    return inliner.inline_local_functions(message, convert_version=True)


def _expanded(message: Any, known: Callable[[str], bool]) -> Any:
    """The file with operators that no converter knows replaced by what they consist of.

    Their definitions depend on types, which are inferred, and on attributes, which get their
    defaults, since the inliner takes those that are left out for missing.
    """
    inliner = importlib.import_module("onnx.inliner")
    inference = importlib.import_module("onnx.shape_inference")
    found = inference.infer_shapes(message)
    names = set()
    for node in _functions(found.graph, known):
        names.add(("", node.op_type))
        stated = {attribute.name for attribute in node.attribute}
        for name, entry in package().defs.get_schema(node.op_type).attributes.items():
            if name not in stated and entry.default_value.name:
                node.attribute.append(entry.default_value)
    return inliner.inline_selected_functions(found, sorted(names), False, True)


def _check_size(message: Any) -> None:
    size = message.ByteSize()
    if size > _MOST_BYTES:
        raise ModelError(f"has {size} bytes, of which {_MOST_BYTES} at most are rewritten")
