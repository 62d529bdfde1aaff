"""Group "memory domains": driver-managed buffers, from their allocation to executions with them.

A device need not have such buffers, nor for every description: what it refuses to allocate with
GeneralFailure or for want of memory is skipped. Descriptions that are not legal it must refuse with
InvalidArgument in any case.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

import anyio
import numpy as np

from nnasync.conformance.cases import Case
from nnasync.conformance.hal_suite.check import Check, Skipped, refused
from nnasync.conformance.hal_suite.domain_rig import FORMS, Domain, pool_of, two_outputs
from nnasync.conformance.hal_suite.domain_roles import illegal_allocations
from nnasync.conformance.hal_suite.fixture import Bench
from nnasync.conformance.paths import Path
from nnasync.conformance.trial import Fault
from nnasync.device import Buffer
from nnasync.errors import GeneralFailure, InvalidArgument, NNError, OutputInsufficientSize
from nnasync.hal import Array, DataLocation, Request, RequestArgument, Shape
from nnasync.memory import Pool

GROUP = "memory domains"
PATHS = (Path.ASYNC, Path.SYNC, Path.FENCED, Path.BURST)
_RACERS = 8

Act = Callable[[Domain], Awaitable[None]]
OnPath = Callable[[Domain, Path], Awaitable[None]]


def domains(bench: Bench) -> Iterator[Check]:
    """The checks of the group."""
    for form in FORMS:
        case = form.sum()
        open_form = form.like(name=f"{form.name} of open shape", shape=(0, 3))
        open_case = open_form.sum()
        for what, act in illegal_allocations(form):
            yield _check(bench, case, f"allocate/{form.name}: {what}", act)
        for what, act in _COPIES.items():
            yield _check(bench, case, f"copy/{form.name}: {what}", act)
        for what, act in _OPEN_COPIES.items():
            yield _check(bench, open_case, f"copy/{open_form.name}: {what}", act)
        for path in PATHS:
            for what, on_path in _EXECUTIONS.items():
                name = f"execute/{path.value}/{form.name}: {what}"
                yield _check(bench, case, name, _on(on_path, path))
    case, open_case = two_outputs(), FORMS[0].like(name="open shape", shape=(0, 3)).sum()
    for path in PATHS:
        name = f"execute/{path.value}/twice as output"
        yield _check(bench, case, name, _on(_twice_as_output, path))
        if path is not Path.FENCED:
            name = f"execute/{path.value}/other output too small"
            yield _check(bench, case, name, _on(_other_too_small, path))
            name = f"execute/{path.value}/shape of the run does not fit"
            yield _check(bench, open_case, name, _on(_does_not_fit, path))
        for subject in bench.legal_subjects:
            name = f"execute/{path.value}/{subject.name}: all in buffers"
            yield _check(bench, subject, name, _on(_all_in_buffers, path))


def _check(bench: Bench, case: Case, name: str, act: Act) -> Check:
    async def run() -> None:
        async with Domain(bench, case) as domain:
            await act(domain)

    return Check(GROUP, name, run)


def _on(act: OnPath, path: Path) -> Act:
    async def run(domain: Domain) -> None:
        await act(domain, path)

    return run


def _value(domain: Domain) -> Array:
    value = domain.case.inputs[0]
    if value is None:
        raise Skipped("the case has no first input")
    return value


def _same(found: Array, expected: Array) -> None:
    if not np.array_equal(found, expected):
        raise Fault(f"a buffer holds {found.tolist()}, not {expected.tolist()}")


# -- copies


async def _round_trip(domain: Domain) -> None:
    """Copies in and out, from each kind of memory and to each."""
    value = _value(domain)
    buffer = await domain.allocate(inputs=[0])
    with pool_of(value) as pool, Pool.from_fd(pool.fd, value.nbytes) as same:
        for source in (pool, same):
            for dimensions in ((), value.shape):
                await buffer.copy_from(source, dimensions)
                _same(await domain.contents(buffer, value), value)
        pool.view[:] = bytes(value.nbytes)
        await buffer.copy_to(same)
        _same(pool.array(value.dtype, value.shape), value)


async def _wrong_sizes(domain: Domain) -> None:
    value = _value(domain)
    buffer = await domain.allocate(inputs=[0])
    for size in (value.nbytes // 2, value.nbytes - 1, value.nbytes + 1, value.nbytes * 2):
        with Pool.allocate(size) as pool:
            await refused(buffer.copy_from(pool), InvalidArgument)
            await refused(buffer.copy_from(pool, value.shape), InvalidArgument)
            await domain.fill(buffer, value)
            await refused(buffer.copy_to(pool), InvalidArgument)


async def _uninitialized(domain: Domain) -> None:
    """Before the first copy there is nothing, and after one that failed."""
    value = _value(domain)
    buffer = await domain.allocate(inputs=[0])
    with Pool.allocate(value.nbytes) as pool, Pool.allocate(1) as small:
        await refused(buffer.copy_to(pool), GeneralFailure)
        await domain.fill(buffer, value)
        await refused(buffer.copy_from(small), InvalidArgument)
        await refused(buffer.copy_to(pool), GeneralFailure)


async def _wrong_dimensions(domain: Domain) -> None:
    value = _value(domain)
    buffer = await domain.allocate(inputs=[0])
    await _refuses_dimensions(buffer, value, [(6,), (3, 2), (2, 0), (2, 3, 1), (2, -3), (2**32, 3)])


async def _refuses_dimensions(buffer: Buffer, value: Array, wrong: Sequence[Shape]) -> None:
    with pool_of(value) as pool:
        for dimensions in wrong:
            await refused(buffer.copy_from(pool, dimensions), InvalidArgument)


async def _unmappable(domain: Domain) -> None:
    """Memory that is closed, and memory that cannot be written."""
    value = _value(domain)
    buffer = await domain.allocate(inputs=[0])
    pool = pool_of(value)
    with Pool.from_fd(pool.fd, value.nbytes, writable=False) as readable:
        await buffer.copy_from(readable)
        await refused(buffer.copy_to(readable), GeneralFailure)
    pool.close()
    await refused(buffer.copy_to(pool), GeneralFailure)
    await refused(buffer.copy_from(pool), GeneralFailure)


async def _races_of_copies(domain: Domain) -> None:
    """Copies at once all return, and leave nothing behind that could not be used."""
    value = _value(domain)
    buffer = await domain.allocate(inputs=[0])
    await domain.fill(buffer, value)

    async def write(number: int) -> None:
        await domain.fill(buffer, np.full_like(value, number))

    await _at_once(write)
    await domain.fill(buffer, value)
    _same(await domain.contents(buffer, value), value)


async def _open_dimensions(domain: Domain) -> None:
    value = _value(domain)
    buffer = await domain.allocate(inputs=[0])
    await _refuses_dimensions(buffer, value, [(), (6,), (3, 2), (0, 3), (2, 0), (2, 3, 1)])
    for rows in (value, value[:1], np.concatenate([value, value])):
        await domain.fill(buffer, rows)
        _same(await domain.contents(buffer, rows), rows)


_COPIES: dict[str, Act] = {
    "round trip": _round_trip,
    "wrong sizes": _wrong_sizes,
    "not initialized": _uninitialized,
    "wrong dimensions": _wrong_dimensions,
    "memory that cannot be mapped": _unmappable,
    "at once": _races_of_copies,
}
_OPEN_COPIES: dict[str, Act] = {"dimensions": _open_dimensions}


# -- executions


async def _states(domain: Domain, path: Path) -> None:
    """A buffer is no input before it was an output, or was copied to."""
    value = _value(domain)
    buffer = await domain.allocate(inputs=[0], outputs=[0])
    reads = domain.request(inputs={0: buffer.token})
    await refused(domain.execute(path, reads), GeneralFailure)
    domain.memory.clear()
    await domain.execute(path, domain.request(outputs={0: buffer.token}))
    total = await domain.contents(buffer, value)
    domain.memory.clear()
    await domain.execute(path, domain.request())
    _same(total, domain.memory.output(0, value.shape))
    await domain.execute(path, reads)
    with pool_of(value) as pool:
        await buffer.copy_from(pool)
    await domain.execute(path, reads)
    _same(domain.memory.output(0, value.shape), total)


async def _no_roles(domain: Domain, path: Path) -> None:
    """Another prepared model, another input, an output instead of an input."""
    buffer = await domain.allocate(inputs=[0])
    await domain.fill(buffer, _value(domain))
    token = buffer.token
    other = await domain.prepare(domain.case)
    right = domain.request(inputs={0: token})
    await domain.execute(path, right)
    await refused(domain.execute(path, right, other), InvalidArgument)
    for wrong in (domain.request(inputs={1: token}), domain.request(outputs={0: token})):
        await refused(domain.execute(path, wrong), InvalidArgument)
    await domain.execute(path, right)


async def _closed(domain: Domain, path: Path) -> None:
    """The token of a buffer that is closed is none; nor are others that nobody gave out."""
    buffer = await domain.allocate(inputs=[0])
    await domain.fill(buffer, _value(domain))
    request = domain.request(inputs={0: buffer.token})
    await domain.execute(path, request)
    await buffer.close()
    await refused(domain.execute(path, request), InvalidArgument)
    for token in (0, -1, buffer.token, 2**63 - 1):
        wrong = domain.request(inputs={0: token})
        await refused(domain.execute(path, wrong), InvalidArgument)
    await domain.execute(path, domain.request())


async def _input_and_output(domain: Domain, path: Path) -> None:
    buffer = await domain.allocate(inputs=[0, 1], outputs=[0])
    await domain.fill(buffer, _value(domain))
    token = buffer.token
    both = domain.request(inputs={0: token}, outputs={0: token})
    await refused(domain.execute(path, both), InvalidArgument)
    await domain.execute(path, domain.request(inputs={0: token, 1: token}))
    expected = domain.memory.output(0, _value(domain).shape)
    domain.memory.clear()
    await domain.execute(path, domain.request())
    _same(domain.memory.output(0, _value(domain).shape), expected)


async def _contradictions(domain: Domain, path: Path) -> None:
    """Dimensions of a request that are not the buffer's; a piece of a buffer."""
    buffer = await domain.allocate(inputs=[0], outputs=[0])
    await domain.fill(buffer, _value(domain))
    token = buffer.token
    for shape in ((6,), (3, 2), (2, 4), (2, 3, 1)):
        for wrong in (
            domain.request(inputs={0: token}, input_dimensions=shape),
            domain.request(outputs={0: token}, output_dimensions=shape),
        ):
            await refused(domain.execute(path, wrong), InvalidArgument)
    whole = domain.request(inputs={0: token})
    place = DataLocation(whole.inputs[0].location.pool_index, 0, 1)
    piece = Request(
        (RequestArgument(location=place), *whole.inputs[1:]), whole.outputs, whole.pools
    )
    await refused(domain.execute(path, piece), InvalidArgument)
    await domain.execute(path, whole)


async def _readers(domain: Domain, path: Path) -> None:
    """Executions that read one buffer at once are all right."""
    value = _value(domain)
    buffer = await domain.allocate(inputs=[0])
    await domain.fill(buffer, value)
    await domain.execute(path, domain.request(inputs={0: buffer.token}))
    expected = domain.memory.output(0, value.shape)
    others = [Domain(domain.bench, domain.case) for _ in range(_RACERS)]

    async def read(number: int) -> None:
        mine = others[number]
        mine.memory.clear()
        request = mine.request(inputs={0: buffer.token})
        await domain.execute(path, request)
        _same(mine.memory.output(0, value.shape), expected)

    async with anyio.create_task_group() as group:
        for number in range(_RACERS):
            group.start_soon(read, number)
    for other in others:
        other.memory.close()


async def _writers(domain: Domain, path: Path) -> None:
    """Executions that write one buffer at once all return; it can be used afterwards."""
    value = _value(domain)
    buffer = await domain.allocate(inputs=[0], outputs=[0])
    request = domain.request(outputs={0: buffer.token})
    await domain.execute(path, request)
    expected = await domain.contents(buffer, value)

    async def write(number: int) -> None:
        await domain.execute(path, domain.request(outputs={0: buffer.token}))

    await _at_once(write)
    await domain.execute(path, request)
    _same(await domain.contents(buffer, value), expected)


async def _at_once(act: Callable[[int], Awaitable[None]]) -> None:
    """Checks that calls at the same time return, though some may be refused."""

    async def one(number: int) -> None:
        try:
            await act(number)
        except NNError:
            return

    async with anyio.create_task_group() as group:
        for number in range(_RACERS):
            group.start_soon(one, number)


async def _twice_as_output(domain: Domain, path: Path) -> None:
    buffer = await domain.allocate(outputs=[0, 1])
    token = buffer.token
    twice = domain.request(outputs={0: token, 1: token})
    await refused(domain.execute(path, twice), InvalidArgument)
    await domain.execute(path, domain.request(outputs={1: token}))


async def _other_too_small(domain: Domain, path: Path) -> None:
    """An execution that fails for another output leaves nothing in the buffer."""
    value = _value(domain)
    buffer = await domain.allocate(outputs=[1])
    right = domain.request(outputs={1: buffer.token})
    await domain.execute(path, right)
    await domain.contents(buffer, value)
    first = right.outputs[0].location
    small = RequestArgument(location=DataLocation(first.pool_index, first.offset, 1))
    request = Request(right.inputs, (small, right.outputs[1]), right.pools)
    await refused(domain.execute(path, request), OutputInsufficientSize)
    await refused(domain.contents(buffer, value), GeneralFailure)
    await domain.execute(path, right)
    await domain.contents(buffer, value)


async def _does_not_fit(domain: Domain, path: Path) -> None:
    """A model of open shape, a buffer of a closed one, and inputs of another."""
    value = _value(domain)
    buffer = await domain.allocate(outputs=[0], dimensions=(value.shape[0] + 1, value.shape[1]))
    plain = domain.memory.request()
    inputs = tuple(
        RequestArgument(location=argument.location, dimensions=value.shape)
        for argument in plain.inputs
    )
    request = domain.request(outputs={0: buffer.token})
    request = Request(inputs, request.outputs, request.pools)
    await refused(domain.execute(path, request), GeneralFailure)


async def _all_in_buffers(domain: Domain, path: Path) -> None:
    """Checks that inputs and outputs in buffers of their own give what plain memory gives."""
    case = domain.case
    ready = await domain.bench.ready(case)
    ready.check_path(path)
    if any(output.value.size == 0 for output in case.outputs):
        raise Skipped("an output without elements is in no buffer")
    await ready.run(path)
    inputs: dict[int, Buffer] = {}
    for position, value in enumerate(case.inputs):
        if value is not None and value.size:
            inputs[position] = await domain.allocate(inputs=[position])
            await domain.fill(inputs[position], value)
    outputs = [await domain.allocate(outputs=[position]) for position in range(len(case.outputs))]
    request = domain.request(
        inputs={position: buffer.token for position, buffer in inputs.items()},
        outputs={position: buffer.token for position, buffer in enumerate(outputs)},
    )
    for _ in range(2):
        await domain.execute(path, request)
    found: list[Any] = []
    for buffer, output in zip(outputs, case.outputs, strict=True):
        found.append(await domain.contents(buffer, output.value))
    ready.compare(tuple(found), ready.outputs())


_EXECUTIONS: dict[str, OnPath] = {
    "states": _states,
    "no roles": _no_roles,
    "closed": _closed,
    "input and output": _input_and_output,
    "contradictions": _contradictions,
    "readers at once": _readers,
    "writers at once": _writers,
}
