"""A plan in two cache files: what is copied before and after a run, and what LiteRT is to run.

Only a plan whose inputs always have the same shapes is kept: another one needs the model to make
files for the shapes that come.
"""

from __future__ import annotations

import math

import msgspec
import numpy as np

from nnasync import hal
from nnasync._core import validation
from nnasync._core.drivers.litert.litert_program import Copy, Feed, Fetch, LiteRTProgram, Shapes
from nnasync._core.drivers.litert.plan import LiteRTPlan
from nnasync.engine import CacheFiles
from nnasync.errors import BadState, GeneralFailure, InvalidArgument
from nnasync.hal import Array, Model, Shape, Struct
from nnasync.hal.decoders import msgpack_decoder


class FixedSource:
    """The source of a plan that came from a cache: one file, for inputs of its shapes.

    Who loads it wants the first answer soon, so it does not run before that.
    """

    warms_up = False

    def __init__(self, program: LiteRTProgram) -> None:
        self._program = program

    def usual(self) -> Shapes:
        """The shapes of the inputs."""
        return self._program.input_shapes

    def program(self, shapes: Shapes) -> LiteRTProgram:
        """The file; raises InvalidArgument for other shapes."""
        expected = self._program.input_shapes
        if shapes != expected:
            raise InvalidArgument(f"inputs have the shapes {shapes}, the model takes {expected}")
        return self._program

    def opened(self, shapes: Shapes, threads: int) -> tuple[LiteRTProgram, None]:
        """Returns the program for these shapes, without an interpreter."""
        return self.program(shapes), None

    def why_open(self) -> str:
        """Returns an empty text, since nothing is open."""
        return ""


class _Constant(Struct, frozen=True):
    dtype: str
    shape: Shape
    data: bytes


class _Feed(Struct, frozen=True):
    tensor: int
    source: int
    copy: Copy
    columns: int
    constant: _Constant | None


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    threads: int
    delegated: bool
    feeds: tuple[_Feed, ...]
    fetches: tuple[Fetch, ...]
    input_shapes: Shapes
    output_shapes: tuple[Shape, ...]


def why_open(model: Model) -> str:
    """Returns why inputs may come in other shapes than stated; empty where they may not."""
    main = model.main
    for position, index in enumerate(main.input_indexes):
        operand = main.operands[index]
        if not hal.is_fully_specified(operand.type, operand.dimensions):
            return f"the model leaves the shape of input {position} open"
    for operation in main.operations:
        known = validation.find_operation(model, operation.type)
        if known is None:
            continue
        signature = known.signature([main.operands[index].type for index in operation.inputs])
        parameters = signature.parameters(len(operation.inputs)) or ()
        for index, parameter in zip(operation.inputs, parameters, strict=True):
            if parameter.optional and index in main.input_indexes:
                return f"input {main.input_indexes.index(index)} may be omitted"
    return ""


def pack(plan: LiteRTPlan) -> CacheFiles:
    """The files of a plan; raises BadState for one that needs its model when it runs."""
    reason = plan.source.why_open()
    if reason:
        raise BadState(f"a plan of this model is not kept: {reason}")
    program = plan.program
    if program.is_open or program.resizes:
        raise BadState("a plan of this model is not kept: shapes of outputs depend on values")
    file = _File(
        threads=plan.threads,
        delegated=program.delegated,
        feeds=tuple(map(_packed, program.feeds)),
        fetches=program.fetches,
        input_shapes=program.input_shapes,
        output_shapes=program.output_shapes,
    )
    return CacheFiles(model=(msgspec.msgpack.encode(file), program.content))


def get_ready() -> None:
    """Make what `unpack` needs, which would else do it."""
    msgpack_decoder(_File)


def unpack(files: CacheFiles, threads: int | None) -> LiteRTPlan:
    """The plan of two files, with this number of threads or that of the first.

    Raises GeneralFailure for bytes that are no such files.
    """
    if (len(files.model), len(files.data)) != (2, 0):
        raise GeneralFailure(f"{len(files.model)} model and {len(files.data)} data cache files")
    try:
        file = msgpack_decoder(_File).decode(files.model[0])
        program = LiteRTProgram(
            content=bytes(files.model[1]),
            feeds=tuple(map(_unpacked, file.feeds)),
            fetches=file.fetches,
            input_shapes=file.input_shapes,
            output_shapes=file.output_shapes,
            delegated=file.delegated,
        )
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, TypeError, ValueError) as e:
        raise GeneralFailure(f"these bytes are no plan: {e}") from e
    return LiteRTPlan(FixedSource(program), threads or file.threads)


def _packed(feed: Feed) -> _Feed:
    constant = None
    if feed.constant is not None:
        array = np.ascontiguousarray(feed.constant)
        constant = _Constant(array.dtype.str, feed.constant.shape, array.tobytes())
    return _Feed(feed.tensor, feed.source, feed.copy, feed.columns, constant)


def _unpacked(feed: _Feed) -> Feed:
    return Feed(
        tensor=feed.tensor,
        source=feed.source,
        constant=None if feed.constant is None else _array(feed.constant),
        copy=feed.copy,
        columns=feed.columns,
    )


def _array(constant: _Constant) -> Array:
    dtype = np.dtype(constant.dtype)
    if dtype.hasobject or len(constant.data) != math.prod(constant.shape) * dtype.itemsize:
        raise ValueError(f"a constant has {len(constant.data)} bytes")
    return np.frombuffer(constant.data, dtype).reshape(constant.shape)
