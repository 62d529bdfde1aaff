"""Requests that fit a model, and changes to them."""

from __future__ import annotations

from nnasync import hal
from nnasync.hal import Array, DataLocation, Operand, Request, RequestArgument
from nnasync.memory import Pool
from nnasync.suites.fuzz.edits import NUMBERS, SMALL, Editor, is_small
from nnasync.suites.fuzz.samples import FuzzSample
from nnasync.suites.fuzz.small_models import replace

__all__ = ["changed_request", "request_for"]

_ROOM = 1 << 20


def request_for(sample: FuzzSample, editor: Editor) -> Request:
    """A request that fits a model where that can be done within a megabyte, in one pool."""
    main, source = sample.model.main, editor.random
    arrays, places, total = [], [], 0
    for index in main.input_indexes:
        operand = main.operands[index]
        array = _feed(operand, sample.feeds.get(index), editor)
        arrays.append(array)
        where = DataLocation(0, total, 0 if array is None else array.nbytes)
        shape = () if array is None or hal.is_scalar(operand.type) else array.shape
        keeps = 0 not in shape and shape == operand.dimensions and source.random() < 0.5
        places.append(RequestArgument(location=where, dimensions=() if keeps else shape))
        total += -(-where.length // 64) * 64
    inputs = tuple(places)
    outputs = []
    for index in main.output_indexes:
        operand = main.operands[index]
        size = hal.byte_size(operand.type, operand.dimensions) if hal.has_dtype(operand.type) else 4
        length = size if 0 < size <= _ROOM else source.choice((0, 64, *(65536,) * 8))
        outputs.append(RequestArgument(location=DataLocation(0, total, length)))
        total += -(-length // 64) * 64
    pool = Pool.allocate(max(total, 64))
    for argument, array in zip(inputs, arrays, strict=True):
        if array is not None:
            pool.array(array.dtype, array.shape, argument.location.offset)[...] = array
    return Request(inputs, tuple(outputs), (pool,))


def _feed(operand: Operand, known: Array | None, editor: Editor) -> Array | None:
    """A value for an input; None where it would be too large."""
    if not hal.has_dtype(operand.type):
        return None
    shape = operand.dimensions
    fits = (
        known is not None
        and known.dtype == hal.dtype_of(operand.type)
        and (not shape or len(shape) == known.ndim)
        and all(a in (0, b) for a, b in zip(shape, known.shape, strict=False))
    )
    if known is not None and fits and editor.random.random() < 0.9:
        return editor.array(operand.type, known.shape, known)
    if not shape and not hal.is_scalar(operand.type):
        shape = (0,) * editor.random.randint(1, 4)
    empty = editor.random.random() < 0.1
    shape = tuple(n or (0 if empty else editor.pick(SMALL)) for n in shape)
    return editor.array(operand.type, shape) if is_small(operand.type, shape) else None


def changed_request(editor: Editor, request: Request) -> Request:
    """A request with up to three changes."""
    for _ in range(editor.random.randint(1, 3)):
        field = editor.pick(("inputs", "inputs", "outputs", "outputs", "pools"))
        if field == "pools":
            others = (Pool.allocate(8), editor.pick(NUMBERS), editor.pick(NUMBERS))
            request = replace(request, pools=editor.listed(request.pools, others))
            continue
        arguments = list(getattr(request, field))
        if not arguments or editor.random.random() < 0.2:
            arguments = list(editor.listed(arguments, (RequestArgument(), *arguments)))
        else:
            index = editor.random.randrange(len(arguments))
            arguments[index] = _argument(editor, arguments[index])
        request = replace(request, **{field: tuple(arguments)})
    return request


def _argument(editor: Editor, argument: RequestArgument) -> RequestArgument:
    where = argument.location
    near = (where.offset + 1, where.length - 1, where.length + 1, 0, where.length // 2)
    kind = editor.random.randrange(6)
    if kind == 0:
        return RequestArgument(has_no_value=True)
    if kind == 1:
        return replace(argument, has_no_value=not argument.has_no_value)
    if kind == 2:
        return replace(argument, dimensions=editor.dimensions(argument.dimensions))
    if kind == 3:
        return replace(argument, dimensions=())
    field = editor.pick(("pool_index", "offset", "length", "length"))
    number = editor.pick((*NUMBERS, *near, *near, *near))
    return replace(argument, location=replace(where, **{field: number}))
