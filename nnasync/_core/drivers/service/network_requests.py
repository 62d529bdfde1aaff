"""The requests of a client whose memory is on another machine: what is sent, and where it returns.

The memory of a request is its client's own. Its inputs are sent from there, its outputs are written
there, and the service has one piece of memory that has room for all of them.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence

import msgspec

from nnasync._core.validation.request import validate_request
from nnasync._core.wire.messages import encode
from nnasync._core.wire.network_messages import RunForm
from nnasync.errors import GeneralFailure, InvalidArgument
from nnasync.hal import (
    DataLocation,
    Memory,
    Model,
    Operand,
    Request,
    RequestArgument,
    byte_size,
    has_dtype,
)
from nnasync.memory import IMAGE, mapped

_ALIGNMENT = 64


class Piece(msgspec.Struct, frozen=True):
    """A part of a pool of the client."""

    pool: Memory
    offset: int
    length: int

    def view(self, what: str, *, writable: bool) -> memoryview:
        """Returns the piece's bytes.

        Raises GeneralFailure where the pool cannot be used any more.
        """
        view = mapped(self.pool, what, writable=writable)
        return memoryview(view).cast("B")[self.offset : self.offset + self.length]


class Parcel(msgspec.Struct, frozen=True):
    """The values of a request that are sent, and those that come back."""

    form: bytes
    inputs: tuple[Piece, ...]
    outputs: tuple[Piece, ...]


class Parcels:
    """The parcels of the requests of one model, each made once."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._known: dict[int, tuple[weakref.ref[Request], Parcel]] = {}
        self._lock = threading.Lock()

    def of(self, request: Request) -> Parcel:
        """The parcel of a request.

        Raises InvalidArgument for one that does not fit the model, GeneralFailure for memory that
        cannot be sent.
        """
        key, known = id(request), self._known
        found = known.get(key)
        if found is not None:
            return found[1]
        validate_request(self._model, request)
        parcel = _parcel(self._model, request)
        with self._lock:
            known[key] = (weakref.ref(request, lambda _: known.pop(key, None)), parcel)
        return parcel


class _Packing:
    """Gives each value its place in the memory at the service."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._tokens: dict[int, int] = {}
        self.size = 0

    @property
    def tokens(self) -> tuple[int, ...]:
        return tuple(self._tokens)

    def packed(
        self, argument: RequestArgument, operand: Operand, pieces: list[Piece], *, is_input: bool
    ) -> RequestArgument:
        """An argument as it is sent; a piece of the client's memory is added if it has one."""
        if argument.has_no_value:
            return argument
        location = argument.location
        pool = self._request.pools[location.pool_index]
        if isinstance(pool, int):
            place = self._tokens.setdefault(pool, 1 + len(self._tokens))
            return msgspec.structs.replace(argument, location=DataLocation(place, 0, 0))
        if pool.name == IMAGE:
            raise GeneralFailure(
                "an image cannot be sent to a device on another machine; copy its pixels into "
                "memory of Pool.allocate"
            )
        length = location.length
        if is_input and not length and 0 not in argument.dimensions:
            # It takes the rest of its pool, of which the model says how much it reads.
            length = pool.size - location.offset
            if has_dtype(operand.type):
                shape = argument.dimensions or operand.dimensions
                length = min(length, byte_size(operand.type, shape))
        offset = self.size
        self.size += -(-length // _ALIGNMENT) * _ALIGNMENT
        if length:
            pieces.append(Piece(pool, location.offset, length))
        return msgspec.structs.replace(argument, location=DataLocation(0, offset, length))


def _parcel(model: Model, request: Request) -> Parcel:
    packing, main = _Packing(request), model.main
    given: list[Piece] = []
    wanted: list[Piece] = []

    def packed(
        arguments: Sequence[RequestArgument], indexes: Sequence[int], pieces: list[Piece]
    ) -> tuple[RequestArgument, ...]:
        return tuple(
            packing.packed(each, main.operands[index], pieces, is_input=pieces is given)
            for each, index in zip(arguments, indexes, strict=True)
        )

    inputs = packed(request.inputs, main.input_indexes, given)
    outputs = packed(request.outputs, main.output_indexes, wanted)
    try:
        form = encode(RunForm(inputs, outputs, packing.tokens, packing.size))
    except (TypeError, OverflowError) as error:
        raise InvalidArgument(f"a request cannot be sent to a service: {error}") from error
    return Parcel(form, tuple(given), tuple(wanted))
