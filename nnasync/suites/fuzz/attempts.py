"""One input on one device, by the calls of the HAL, and whether the device keeps its promises.

Whatever comes in runs, or ends with an error of `errors`. What runs, runs twice: before each
execution the outputs, what lies around them and, where the C library offers it, all memory that is
allocated are filled, with another byte each time. So outputs that depend on what was in memory
before are not the same, and what is written beside them is seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random

import anyio

from nnasync import hal
from nnasync._core.clock import now_ns
from nnasync._core.importers import load
from nnasync._core.validation import validate_model
from nnasync.device import Device, PreparedModel
from nnasync.errors import (
    CallerError,
    DeviceDied,
    DeviceUnavailable,
    InvalidArgument,
    ModelError,
    NNError,
    ResourceExhausted,
)
from nnasync.hal import ExecutionConfig, ExecutionResult, Model, OperationType, Request
from nnasync.suites.fuzz.cache_attempts import reloaded
from nnasync.suites.fuzz.edits import Editor
from nnasync.suites.fuzz.fills import FILLS, fill_allocations
from nnasync.suites.fuzz.inputs import Entry, FuzzInput, FuzzKind
from nnasync.suites.fuzz.kept_model import KeptModel
from nnasync.suites.fuzz.memory_attempts import with_buffers
from nnasync.suites.fuzz.requests import changed_request, request_for
from nnasync.suites.fuzz.samples import FuzzSample
from nnasync.suites.fuzz.verdicts import Broken, BrokenPromise, Ending

__all__ = ["attempt"]

LOOP_TIMEOUT_NS = 10_000_000
DEADLINE_NS = 5_000_000_000
MOST_OPERAND_BYTES = 1 << 28
"""What the operands of a model may take that is prepared: a device may need it several times."""
_LARGEST = 1 << 24
Outputs = tuple[bytes, ...]


async def attempt(device: Device, given: FuzzInput, folder: Path, kept: KeptModel) -> Ending:
    """Take an input through a device; raises BrokenPromise.

    `kept` has the prepared model of the input before, where the inputs leave it as it is.
    """
    try:
        return await _attempt(device, given, folder, kept)
    except DeviceDied:
        kept.forget()
        return Ending.DIED
    except (BrokenPromise, NNError):
        raise
    except Exception as error:
        raise BrokenPromise(Broken.ERROR, f"{type(error).__name__}: {error}") from error


async def _attempt(device: Device, given: FuzzInput, folder: Path, kept: KeptModel) -> Ending:
    found = await kept.take(given.subject)
    sample = found[0] if found else given.sample or _loaded(given, folder)
    if sample is None:
        return Ending.REFUSED
    request = given.request if given.sample else _request_of(sample, given)
    prepared = found[1] if found else await _prepared(device, sample.model)
    if isinstance(prepared, Ending):
        return prepared
    try:
        if given.kind is FuzzKind.MEMORY:
            return await with_buffers(device, prepared, sample.model, request, given.acts)
        if request is None:
            return Ending.NOT_RUN
        ending, outputs = await _executed(prepared, sample.model, request, given)
    finally:
        if given.leaves_model:
            kept.keep(given.subject, sample, prepared)
        else:
            await prepared.close()
    if given.kind is FuzzKind.CACHE and outputs is not None:
        await _from_cache(device, sample.model, request, given, outputs)
    return ending


def _loaded(given: FuzzInput, folder: Path) -> FuzzSample | None:
    """The model of a changed file; None where the importer refuses it.

    It takes the loop's time: nothing else waits for that in this process.
    """
    path = folder / f"changed{given.kind.suffix}"
    path.unlink(missing_ok=True)  # The file before may be mapped by a model still.
    path.write_bytes(given.file)
    try:
        return FuzzSample(load(path), {})
    except NNError:
        return None
    except Exception as error:
        text = f"load: {type(error).__name__}: {error}"
        raise BrokenPromise(Broken.ERROR, text) from error


def _request_of(sample: FuzzSample, given: FuzzInput) -> Request | None:
    """A request for a model of a file; None where it would be too large."""
    main = sample.model.main
    for index in (*main.input_indexes, *main.output_indexes):
        operand = main.operands[index]
        if hal.has_dtype(operand.type) and (
            hal.byte_size(operand.type, [size or 1 for size in operand.dimensions]) > _LARGEST
        ):
            return None
    editor = Editor(Random(given.feeds_seed))
    request = request_for(sample, editor)
    return request if given.is_fitting else changed_request(editor, request)


async def _prepared(device: Device, model: Model) -> PreparedModel | Ending:
    """The model on the device, or how else that ended."""
    illegal = _why_illegal(model)
    try:
        supported = await device.get_supported_operations(model)
        if not illegal and not all(supported):
            return Ending.UNSUPPORTED
        if not illegal and _operand_bytes(model) > MOST_OPERAND_BYTES:
            return Ending.TOO_LARGE
        prepared = await device.prepare_model(model)
    except DeviceDied:
        raise
    except InvalidArgument:
        return Ending.REFUSED if illegal else Ending.UNSUPPORTED
    except (ResourceExhausted, DeviceUnavailable):
        return Ending.NO_ROOM
    except NNError:
        return Ending.UNSUPPORTED
    except Exception as error:
        text = f"prepare_model: {type(error).__name__}: {error}"
        raise BrokenPromise(Broken.ERROR, text) from error
    if illegal:
        await prepared.close()
        raise BrokenPromise(Broken.ACCEPTED, f"the device takes a model in which {illegal}")
    return prepared


def _operand_bytes(model: Model) -> int:
    """Returns the total size of the operands whose shapes are known."""
    return sum(
        hal.byte_size(operand.type, operand.dimensions)
        for graph in (model.main, *model.referenced)
        for operand in graph.operands
        if hal.has_dtype(operand.type)
    )


def _why_illegal(model: Model) -> str:
    try:
        validate_model(model)
    except ModelError as error:
        return str(error)
    except Exception as error:
        text = f"validate_model: {type(error).__name__}: {error}"
        raise BrokenPromise(Broken.ERROR, text) from error
    return ""


async def _executed(
    prepared: PreparedModel, model: Model, request: Request, given: FuzzInput
) -> tuple[Ending, Outputs | None]:
    """Run twice, over memory that is filled differently; raises BrokenPromise."""

    async def once(fill: int) -> Outputs | None:
        return await _run(prepared, model, request, given.entry, fill, given.is_fitting)

    try:
        first = await once(FILLS[0])
        second = await once(FILLS[1])
        if first == second:
            return Ending.RAN, first
        third = await once(FILLS[0])
    except DeviceDied:
        raise
    except CallerError:
        return Ending.NOT_RUN, None
    except NNError:
        return Ending.FAILED, None
    except (BrokenPromise, anyio.get_cancelled_exc_class()):
        raise
    except Exception as error:
        text = f"an execution: {type(error).__name__}: {error}"
        raise BrokenPromise(Broken.ERROR, text) from error
    how = "what was in memory before" if first == third else "something that differs in every run"
    raise BrokenPromise(Broken.UNDEFINED, f"outputs depend on {how}")


async def _run(
    prepared: PreparedModel,
    model: Model,
    request: Request,
    entry: Entry,
    fill: int,
    is_fitting: bool,
) -> Outputs | None:
    """The outputs of one execution; None where it is not known where they are.

    The first output of an LSTM is its scratch memory, whose content means nothing.
    """
    pool = request.pools[0] if request.pools else 0
    if not is_fitting or isinstance(pool, int) or _takes_the_rest(request):
        with fill_allocations(fill):
            await _entered(prepared, request, entry)
        return None
    regions = _regions(request)
    _fill(pool.view, regions, fill)
    before = bytes(pool.view)
    with fill_allocations(fill):
        result = await _entered(prepared, request, entry)
    after = bytes(pool.view)
    sizes = _sizes(model, result, [end - start for start, end in regions])
    _check_beside(before, after, regions)
    if sizes is None:
        return None
    meaningless = {
        operation.outputs[0]
        for operation in model.main.operations
        if operation.type == OperationType.LSTM
    }
    return tuple(
        after[start : start + size]
        for (start, _), size, index in zip(regions, sizes, model.main.output_indexes, strict=True)
        if index not in meaningless
    )


async def _entered(prepared: PreparedModel, request: Request, entry: Entry) -> ExecutionResult:
    config = ExecutionConfig(loop_timeout_ns=LOOP_TIMEOUT_NS, deadline_ns=now_ns() + DEADLINE_NS)
    if entry is Entry.SYNC:
        return await prepared.execute_synchronously(request, config)
    if entry is Entry.QUEUED:
        return await prepared.execute(request, config)
    launched = await prepared.execute_fenced(request, config=config)
    await launched.fence
    return ExecutionResult()


def _takes_the_rest(request: Request) -> bool:
    """Returns whether an input begins somewhere and takes what it needs, which may be outputs."""
    return any(
        not each.has_no_value and not each.location.length and 0 not in each.dimensions
        for each in (*request.inputs, *request.outputs)
    )


def _regions(request: Request) -> list[tuple[int, int]]:
    """Returns the places of a fitting request's outputs in its one pool."""
    places = [argument.location for argument in request.outputs]
    return [(place.offset, place.offset + place.length) for place in places]


def _fill(view: memoryview, regions: Sequence[tuple[int, int]], fill: int) -> None:
    for start, end in regions:
        view[start:end] = bytes((fill,)) * (end - start)


def _check_beside(before: bytes, after: bytes, regions: Sequence[tuple[int, int]]) -> None:
    """Raise BrokenPromise where something else than the outputs was written."""
    if len(before) != len(after):
        return
    start = 0
    for first, last in (*sorted(regions), (len(before), len(before))):
        if before[start:first] != after[start:first]:
            text = f"bytes {start} to {first} of the pool are no output, and were written"
            raise BrokenPromise(Broken.WRONG, text)
        start = max(start, last)


def _sizes(model: Model, result: ExecutionResult, room: Sequence[int]) -> list[int] | None:
    """Returns how many bytes each output has, as far as that is known."""
    main, sizes = model.main, []
    for place, index in enumerate(main.output_indexes):
        operand = main.operands[index]
        shape = operand.dimensions
        if place < len(result.output_shapes):
            shape = result.output_shapes[place].dimensions
        if not hal.is_fully_specified(operand.type, shape):
            return None
        size = hal.byte_size(operand.type, shape)
        if size > room[place]:
            return None
        sizes.append(size)
    return sizes


async def _from_cache(
    device: Device, model: Model, request: Request, given: FuzzInput, outputs: Outputs
) -> None:
    """Load a damaged compilation: it is refused, or gives what the whole one gives."""
    prepared = await reloaded(device, model, given.edits)
    if prepared is None:
        return
    try:
        again = await _run(prepared, model, request, given.entry, FILLS[0], given.is_fitting)
    except DeviceDied:
        raise
    except NNError:
        return
    finally:
        await prepared.close()
    if again != outputs:
        raise BrokenPromise(Broken.WRONG, "a damaged compilation is loaded, and computes otherwise")
