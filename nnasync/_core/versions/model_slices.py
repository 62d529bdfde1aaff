"""What a device of an older HAL version sees of a model: the whole, or a slice for its questions.

A version that cannot express a whole model is asked about the *slice* of the operations that it
can. What operations outside the slice would have written becomes inputs of the slice, and so do the
inputs of the model; two of them that look alike (type, dimensions, quantization) become one. What
only operations outside would have read becomes outputs. A slice is for asking; nothing is compiled
from it. It does not exist where it would have no operation or no output, or would not be legal.
"""

from __future__ import annotations

import threading
import weakref
from collections import Counter

import msgspec

from nnasync._core.endings import renewed_in_child
from nnasync._core.validation import noncompliance, older_model, validate_model
from nnasync._core.validation.versions import unknown_operand
from nnasync.errors import ModelError
from nnasync.hal import (
    DataLocation,
    HalVersion,
    Model,
    Operand,
    OperandLifeTime,
    Operation,
    Struct,
    Subgraph,
)

_FREE = (
    OperandLifeTime.CONSTANT_COPY,
    OperandLifeTime.CONSTANT_REFERENCE,
    OperandLifeTime.NO_VALUE,
)


class Slice(Struct, frozen=True):
    """Operations of a model as a model of their own; `operations` are their numbers in it."""

    model: Model
    operations: tuple[int, ...]


class View(Struct, frozen=True):
    """A model as a HAL version has it.

    `fault` says why the version cannot express it, empty if it can. `slice` is what it is asked
    about in place of the model, None if it is asked about nothing. `lost` is what it does not hear
    of a model that it can express.
    """

    fault: str
    slice: Slice | None
    lost: tuple[str, ...]


_Kept = dict[HalVersion, View]
_kept: dict[int, tuple[weakref.ref[Model], _Kept]] = {}
_lock = renewed_in_child(threading.Lock())


def view_of(model: Model, version: HalVersion) -> View:
    """Returns a model as a HAL version sees it, found once; raises ModelError."""
    with _lock:
        views = _views(model)
        view = views.get(version)
    if view is None:
        validate_model(model)
        view = _seen(model, version)
        with _lock:
            views[version] = view
    return view


def _views(model: Model) -> _Kept:
    entry = _kept.get(id(model))
    if entry is not None and entry[0]() is model:
        return entry[1]
    key, kept = id(model), _kept
    # Popping is atomic, and the lock may be held by the thread that collects.
    reference = weakref.ref(model, lambda gone: _forget(kept, key, gone))
    kept[key] = (reference, {})
    return kept[key][1]


def _forget(
    kept: dict[int, tuple[weakref.ref[Model], _Kept]], key: int, gone: weakref.ref[Model]
) -> None:
    entry = kept.get(key)
    if entry is not None and entry[0] is gone:
        kept.pop(key, None)


def _seen(model: Model, version: HalVersion) -> View:
    found = noncompliance(version, model)
    unknown = unknown_operand(version, model)
    if not found.reasons and unknown is None:
        return View("", None, older_model(version, model)[1])
    fault = found.reasons[0] if found.reasons else unknown or ""
    return View(fault, _sliced(model, version, found.operations), ())


def _sliced(model: Model, version: HalVersion, dropped: frozenset[int]) -> Slice | None:
    kept = tuple(index for index in range(len(model.main.operations)) if index not in dropped)
    if not kept:
        return None
    slice = _Slicing(model, kept).built()
    if not slice.main.output_indexes:
        return None
    try:
        validate_model(slice, version)
    except ModelError:
        return None
    return Slice(older_model(version, slice)[0], kept)


class _Slicing:
    """A slice in the making."""

    def __init__(self, model: Model, kept: tuple[int, ...]) -> None:
        self._model = model
        self._operations = [model.main.operations[index] for index in kept]
        self._consumers = Counter(i for each in self._operations for i in each.inputs)
        self._all_consumers = Counter(i for each in model.main.operations for i in each.inputs)
        self._operands: list[Operand] = []
        self._places: dict[int, int] = {}
        self._by_look: dict[Operand, int] = {}
        self._outputs: list[int] = []

    def built(self) -> Model:
        """The slice, not checked."""
        operations = [
            Operation(
                each.type,
                tuple(self._read(index) for index in each.inputs),
                tuple(self._written(index) for index in each.outputs),
            )
            for each in self._operations
        ]
        consumers = Counter(index for each in operations for index in each.inputs)
        operands = tuple(
            msgspec.structs.replace(operand, number_of_consumers=consumers[index])
            for index, operand in enumerate(self._operands)
        )
        inputs = tuple(sorted(self._by_look.values()))
        main = Subgraph(operands, tuple(operations), inputs, tuple(self._outputs))
        return msgspec.structs.replace(
            self._model, main=main, state=(), name=f"{self._model.name or 'model'}, slice"
        )

    def _read(self, index: int) -> int:
        """The place of an operand that a kept operation reads."""
        if index in self._places:
            return self._places[index]
        operand = self._model.main.operands[index]
        if operand.lifetime in _FREE:
            return self._put(index, operand)
        look = msgspec.structs.replace(
            operand,
            name="",
            number_of_consumers=0,
            location=DataLocation(),
            lifetime=OperandLifeTime.SUBGRAPH_INPUT,
        )
        if look not in self._by_look:
            self._by_look[look] = len(self._operands)
            self._operands.append(look)
        self._places[index] = self._by_look[look]
        return self._places[index]

    def _written(self, index: int) -> int:
        """The place of an operand that a kept operation writes."""
        operand = self._model.main.operands[index]
        ends = operand.lifetime == OperandLifeTime.SUBGRAPH_OUTPUT
        lost = self._all_consumers[index] > 0 and self._consumers[index] == 0
        lifetime = OperandLifeTime.SUBGRAPH_OUTPUT if ends or lost else operand.lifetime
        place = self._put(index, msgspec.structs.replace(operand, lifetime=lifetime))
        if ends or lost:
            self._outputs.append(place)
        return place

    def _put(self, index: int, operand: Operand) -> int:
        self._places[index] = len(self._operands)
        self._operands.append(operand)
        return self._places[index]
