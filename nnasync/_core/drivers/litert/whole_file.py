"""A `.tflite` file that LiteRT runs as it is: the operation GRAPH of org.nnasync.litert.

Its inputs are the file's, then its variable tensors, which are states of the model: they are
written before each run and read after it, so that nothing stays in the interpreter.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from nnasync import hal
from nnasync._core import validation
from nnasync._core.drivers.litert.litert_program import Copy, Feed, Fetch, LiteRTProgram, Shapes
from nnasync._core.drivers.litert.session import open_interpreter
from nnasync._core.formats.whole import file_of, graph_of, is_file
from nnasync.errors import GeneralFailure, ModelError, NNError
from nnasync.extensions import LITERT, type_within
from nnasync.hal import Model, Shape
from nnasync.hal.file_operands import FileOperand

_TRIED_SIZES = (32, 128, 512)
"""Of what is open, where a file states what it cannot have."""


def is_whole(model: Model) -> bool:
    """Returns whether a model is one TFLite file and nothing else, whatever the order of ports."""
    operation = graph_of(model, LITERT.name)
    return operation is not None and sorted(_given(model, operation)) == sorted(
        model.main.input_indexes
    )


def is_part(model: Model, operation: hal.Operation) -> bool:
    """Returns whether an operation is a file that is to be cut out as a model of its own."""
    return is_file(model, operation, LITERT.name)


class WholeFile:
    """Makes the program of a file for the shapes of its inputs.

    A file gives the first answer of a model, so it does not run before that.
    """

    warms_up = False

    def __init__(self, model: Model, *, delegated: bool) -> None:
        operation = graph_of(model, LITERT.name)
        if operation is None:
            raise ModelError("is no TFLite file that is kept whole")
        self._model = model
        self._content = file_of(model, operation)
        self._delegated = delegated
        main, given = model.main, _given(model, operation)
        self._sources = [main.input_indexes.index(index) for index in given]
        self._targets = [main.output_indexes.index(index) for index in operation.outputs]
        self._states = () if len(given) + 1 == len(operation.inputs) else _numbers(model, operation)

    def usual(self) -> Shapes:
        """The shapes that the model states; those of the file where it leaves them open.

        A file may state sizes that it cannot have, as 1 for a picture's height: then others are
        tried. Raises GeneralFailure where LiteRT refuses all of them.
        """
        shapes = [_dimensions(self._model, index) for index in self._model.main.input_indexes]
        if not self.why_open():
            return tuple(shapes)
        try:
            return self._taken(shapes, None)
        except GeneralFailure as failure:
            for size in _TRIED_SIZES:
                with contextlib.suppress(GeneralFailure):
                    return self._taken(shapes, tuple(_filled(shape, size) for shape in shapes))
            raise failure from None

    def _taken(self, stated: Sequence[Shape], given: Shapes | None) -> Shapes:
        """The stated shapes, but where they are open those of an interpreter with these inputs."""
        with _refusals():
            found, _ = self._interpreter(given, 1)
            actual = _in_order(_shapes(self._inputs(found)), self._sources)
        return tuple(
            shape if 0 not in shape else known for shape, known in zip(stated, actual, strict=True)
        )

    def why_open(self) -> str:
        """Returns why inputs may come in other shapes; empty where they may not."""
        for position, index in enumerate(self._model.main.input_indexes):
            if 0 in _dimensions(self._model, index):
                return f"the model leaves the shape of input {position} open"
        return ""

    def opened(self, shapes: Shapes, threads: int) -> tuple[LiteRTProgram, Any]:
        """The file with inputs of these shapes, and the interpreter that it was looked at in.

        Raises GeneralFailure where LiteRT refuses it.
        """
        with _refusals():
            runner, resizes = self._interpreter(shapes, threads)
            return self._program(runner, shapes, resizes), runner

    def _program(
        self, runner: Any, shapes: Shapes, resizes: tuple[tuple[int, Shape], ...]
    ) -> LiteRTProgram:
        inputs, outputs = self._inputs(runner), self._outputs(runner)
        main = self._model.main
        kinds = [main.operands[index].type for index in main.input_indexes]
        results = [main.operands[index].type for index in main.output_indexes]
        if len(inputs) != len(self._sources) or len(outputs) != len(self._targets):
            raise GeneralFailure("the file has other inputs and outputs than the model")
        finds_shapes = any(_is_dynamic(runner, each["index"]) for each in outputs)
        found = _in_order(_shapes(outputs), self._targets)
        if not finds_shapes:
            self._check_shapes(found)
        return LiteRTProgram(
            content=self._content,
            feeds=tuple(
                Feed(each["index"], source, copy=_copy(each, kinds[source]))
                for each, source in zip(inputs, self._sources, strict=True)
            ),
            fetches=tuple(
                Fetch(target, each["index"], copy=_copy(each, results[target]))
                for each, target in zip(outputs, self._targets, strict=True)
            ),
            input_shapes=shapes,
            output_shapes=found,
            delegated=self._delegated,
            finds_shapes=finds_shapes,
            resizes=resizes,
        )

    def _check_shapes(self, found: Sequence[Shape]) -> None:
        """Raise GeneralFailure where results have other shapes than the model states."""
        for position, (index, shape) in enumerate(
            zip(self._model.main.output_indexes, found, strict=True)
        ):
            stated = _dimensions(self._model, index)
            if 0 not in stated and math.prod(stated) != math.prod(shape):
                raise GeneralFailure(
                    f"LiteRT gives output {position} the shape {list(shape)}, the model states"
                    f" {list(stated)}"
                )

    def _interpreter(
        self, shapes: Shapes | None, threads: int
    ) -> tuple[Any, tuple[tuple[int, Shape], ...]]:
        """An interpreter, and which of its inputs got other shapes."""
        runner = open_interpreter(self._content, threads, delegated=self._delegated)
        resizes = () if shapes is None else self._resizes(self._inputs(runner), shapes)
        for tensor, shape in resizes:
            runner.resize_tensor_input(tensor, shape)
        runner.allocate_tensors()
        return runner, resizes

    def _resizes(
        self, inputs: Sequence[dict[str, Any]], shapes: Shapes
    ) -> tuple[tuple[int, Shape], ...]:
        pairs = zip(inputs, (shapes[source] for source in self._sources), strict=True)
        return tuple(
            (each["index"], shape)
            for each, shape in pairs
            if shape is not None and (tuple(each["shape"]) or (1,)) != shape
        )

    def _inputs(self, runner: Any) -> list[dict[str, Any]]:
        return [*runner.get_input_details(), *self._variables(runner)]

    def _outputs(self, runner: Any) -> list[dict[str, Any]]:
        return [*runner.get_output_details(), *self._variables(runner)]

    def _variables(self, runner: Any) -> list[dict[str, Any]]:
        if not self._states:
            return []
        known = {each["index"]: each for each in runner.get_tensor_details()}
        if not set(self._states) <= known.keys():
            raise GeneralFailure("the model names states that the file does not have")
        return [known[number] for number in self._states]


@contextmanager
def _refusals() -> Iterator[None]:
    """Turns LiteRT's errors about a file into GeneralFailure."""
    try:
        yield
    except (LookupError, RuntimeError, TypeError, ValueError) as error:
        if isinstance(error, NNError):
            raise
        raise GeneralFailure(f"LiteRT refuses the model: {error}") from error


def _given(model: Model, operation: hal.Operation) -> tuple[int, ...]:
    """The operands that a file reads: not itself, nor the numbers of its states before it."""
    rest = operation.inputs[:-1]
    return rest[:-1] if rest and hal.is_constant(model.main.operands[rest[-1]]) else rest


def _in_order(shapes: Sequence[Shape], places: Sequence[int]) -> tuple[Shape, ...]:
    """Shapes in the order of the model, of which these are the places."""
    return tuple(shape for _, shape in sorted(zip(places, shapes, strict=True)))


def _numbers(model: Model, operation: hal.Operation) -> tuple[int, ...]:
    value = validation.operand_value(model, model.main.operands[operation.inputs[-2]])
    return () if value is None else tuple(int(n) for n in value.reshape(-1))


def _filled(shape: Shape, size: int) -> Shape:
    """A shape with this size where it is open, and 1 for the number of examples."""
    return tuple(n or (size if place else 1) for place, n in enumerate(shape))


def _dimensions(model: Model, index: int) -> Shape:
    return model.main.operands[index].dimensions


def _shapes(details: Sequence[dict[str, Any]]) -> tuple[Shape, ...]:
    return tuple(tuple(int(n) for n in each["shape"]) or (1,) for each in details)


def _is_dynamic(runner: Any, index: int) -> bool:
    """Returns whether only a run gives a tensor its memory."""
    try:
        runner.tensor(index)()
    except ValueError:
        return True
    return False


def _copy(details: dict[str, Any], kind: int) -> Copy:
    """Returns how a tensor is copied; LiteRT's wider types are those of the extension."""
    inside = np.dtype(details["dtype"])
    if not hal.is_extension(kind):
        return Copy.BYTES if inside == hal.dtype_of(kind) else Copy.CONVERT
    outside = FileOperand(type_within(kind)).name.lower()
    if outside != inside.name:
        raise GeneralFailure(f"the file has {inside} where the model has {outside}")
    return Copy.BYTES
