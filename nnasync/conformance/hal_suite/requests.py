"""Group "requests": legal requests are carried out on every path, others are refused on every path.

Whatever was refused, the prepared model goes on serving.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from nnasync.conformance.cases import Case
from nnasync.conformance.hal_suite.check import Check, refused
from nnasync.conformance.hal_suite.fixture import PATHS, Bench, Ready, check_timing
from nnasync.conformance.paths import CaseBuffers, Path
from nnasync.conformance.trial import Fault, error_text
from nnasync.errors import InvalidArgument, NNError, OutputInsufficientSize
from nnasync.hal import DataLocation, Request, RequestArgument

GROUP = "requests"
Malformed = tuple[str, Request]


def requests(bench: Bench) -> Iterator[Check]:
    """The checks of the group, for each subject on each path."""
    for case in bench.subjects:
        for path in PATHS:
            if case.expect_failure:
                yield _failing(bench, case, path)
            else:
                yield from _of_path(bench, case, path)


def _of_path(bench: Bench, case: Case, path: Path) -> Iterator[Check]:
    async def ready() -> Ready:
        found = await bench.ready(case)
        found.check_path(path)
        return found

    async def legal() -> None:
        found = await ready()
        for measure in (False, True):
            check_timing((await found.run(path, measure=measure)).timing, measure=measure)

    async def too_small() -> None:
        await _too_small(await ready(), path)

    yield Check(GROUP, f"{path.value}/{case.name}: as it should be", legal)
    if path is not Path.FENCED:
        yield Check(GROUP, f"{path.value}/{case.name}: output too small", too_small)
    buffers = CaseBuffers(case)
    for what, request in malformed(buffers.request(), with_tokens=path is not Path.BURST):

        async def wrong(request: Request = request) -> None:
            found = await ready()
            await refused(found.execute(path, request), InvalidArgument)
            await found.run(path)

        yield Check(GROUP, f"{path.value}/{case.name}: {what}", wrong)


def malformed(request: Request, *, with_tokens: bool = True) -> Iterator[Malformed]:
    """Forms of a request that are not legal, and what is wrong with them."""
    for kind in ("inputs", "outputs"):
        arguments: Sequence[RequestArgument] = getattr(request, kind)
        for position, argument in enumerate(arguments):
            rest = (*arguments[:position], *arguments[position + 1 :])
            yield f"{kind}[{position}] removed", _with(request, kind, rest)
            if not argument.has_no_value:
                for what, changed in _malformed_argument(request, argument):
                    others = (*arguments[:position], changed, *arguments[position + 1 :])
                    yield f"{kind}[{position}] {what}", _with(request, kind, others)
        if arguments:
            more = (*arguments, arguments[-1])
            yield f"{kind} with one more", _with(request, kind, more)
    for position in range(len(request.outputs)):
        omitted = list(request.outputs)
        omitted[position] = RequestArgument(has_no_value=True)
        yield f"outputs[{position}] omitted", _with(request, "outputs", tuple(omitted))
    yield "no pools", _with(request, "pools", ())
    if with_tokens:
        for token in (0, 1 << 20):
            changed_pools = (*request.pools[:-1], token)
            yield f"token {token} for a pool", _with(request, "pools", changed_pools)


def _malformed_argument(
    request: Request, argument: RequestArgument
) -> Iterator[tuple[str, RequestArgument]]:
    location = argument.location
    pool = request.pools[location.pool_index]
    size = 0 if isinstance(pool, int) else pool.size
    for what, place in (
        ("in a pool that is not there", _moved(location, pool_index=len(request.pools))),
        ("beyond its pool", _moved(location, offset=size, length=max(location.length, 1))),
        ("longer than its pool", _moved(location, length=size + 1)),
        ("far beyond its pool", _moved(location, offset=2**32 - 1, length=2**32 - 1)),
        ("at a negative offset", _moved(location, offset=-1)),
    ):
        yield what, msgspec.structs.replace(argument, location=place)
    yield "omitted, but somewhere", msgspec.structs.replace(argument, has_no_value=True)
    yield "of rank 9", msgspec.structs.replace(argument, dimensions=(1,) * 9)


async def _too_small(ready: Ready, path: Path) -> None:
    """Checks that an output whose memory lacks a byte is reported as too small."""
    for position, argument in enumerate(ready.request.outputs):
        length = argument.location.length
        if length > 1 and ready.case.outputs[position].value.nbytes > 1:
            outputs = list(ready.request.outputs)
            outputs[position] = RequestArgument(
                location=_moved(argument.location, length=length - 1)
            )
            request = _with(ready.request, "outputs", tuple(outputs))
            error = await refused(ready.execute(path, request), OutputInsufficientSize)
            shapes = getattr(error, "output_shapes", ())
            sufficient = [shape.is_sufficient for shape in shapes]
            expected = [each != position for each in range(len(outputs))]
            if sufficient != expected:
                raise Fault(f"outputs[{position}] is too small, but what is told is {sufficient}")
    await ready.run(path)


def _failing(bench: Bench, case: Case, path: Path) -> Check:
    """A case that is there to fail: refused, or failing when it is run."""

    async def run() -> None:
        try:
            await bench.check_supported(case.model)
            prepared = await bench.device.prepare_model(case.model)
        except NNError:
            return
        ready = Ready(case, prepared)
        try:
            ready.check_path(path)
            await ready.execute(path, ready.request)
        except NNError as error:
            if getattr(error, "output_shapes", ()) and not isinstance(
                error, OutputInsufficientSize
            ):
                raise Fault(f"output shapes are told with {error_text(error)}") from error
            return
        finally:
            await ready.close()
        raise Fault("must fail, but succeeded")

    return Check(GROUP, f"{path.value}/{case.name}: must fail", run)


def _with(request: Request, field: str, value: object) -> Request:
    changed: Request = msgspec.structs.replace(request, **{field: value})
    return changed


def _moved(location: DataLocation, **changes: int) -> DataLocation:
    moved: DataLocation = msgspec.structs.replace(location, **changes)
    return moved
