"""Sending a model to a service: its description on the socket, large data as shared memory."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np

from nnasync._core.model.description import ModelDescription, describe
from nnasync._core.wire.connection import MAX_DESCRIPTORS
from nnasync._core.wire.messages import OfferModel, PoolForm, decode, encode
from nnasync.errors import (
    BadState,
    CallerError,
    DeviceError,
    GeneralFailure,
    InvalidArgument,
    ResourceExhaustedPersistent,
)
from nnasync.hal import Memory, Model
from nnasync.memory import Pool, Unusable

_COPIED_BYTES = 64 << 10
"""Operand values up to this size travel in the message."""


class Offer:
    """A model in sendable form; `fds` go with it, and are valid as long as this object lives."""

    def __init__(self, model: Model) -> None:
        """A constant that cannot be handed on is sent as that; raises InvalidArgument."""
        self._kept: list[Pool] = []
        self.fds: list[Any] = []
        self._form = _encoded(model)
        values = bytes(model.operand_values)
        self._values: bytes | PoolForm = values
        if len(values) > _COPIED_BYTES:
            self._values = self._add(self._copied(np.frombuffer(values, np.uint8)))
        if len(model.pools) >= MAX_DESCRIPTORS:
            raise ResourceExhaustedPersistent(
                f"a service takes models of at most {MAX_DESCRIPTORS - 1} pools, "
                f"this has {len(model.pools)}"
            )
        self._pools = tuple(self._add(pool) for pool in model.pools)

    def message(self, call: int, number: int) -> OfferModel:
        """Returns the message that goes with the descriptors."""
        return OfferModel(call, number, self._form, self._values, self._pools)

    def _add(self, pool: Memory) -> PoolForm:
        try:
            form, fd = self._handle_of(pool)
        except (CallerError, DeviceError, OSError, ValueError) as error:
            # The service tells then which operations it does not support for that.
            return PoolForm(pool.name, max(pool.size, 1), 0, False, None, str(error) or "unusable")
        self.fds.append(fd)
        return form

    def _handle_of(self, pool: Memory) -> tuple[PoolForm, int]:
        if not isinstance(pool, Pool):
            # Constants in plain memory, of which nobody expects that it be shared.
            kind, pool = pool.name, self._copied(np.frombuffer(pool.view, np.uint8))
            form, fd = handle_of(pool)
            return PoolForm(kind, form.size, form.offset, form.writable), fd
        return handle_of(pool)

    def _copied(self, values: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> Pool:
        pool = Pool.allocate(max(values.nbytes, 1))
        np.frombuffer(pool.view, np.uint8)[: values.nbytes] = values
        self._kept.append(pool)
        return pool


def _encoded(model: Model) -> bytes:
    form = describe(msgspec.structs.replace(model, operand_values=b""))
    try:
        return encode(form)
    except (TypeError, OverflowError, ValueError) as error:
        raise InvalidArgument(f"a model cannot be sent to a service: {error}") from error


def model_of(message: OfferModel, fds: Sequence[int], *, trusts: bool) -> Model:
    """Returns the model that a client sent; copies its constants unless the client is trusted.

    A copy is what the client can neither shrink nor change afterwards. Constants that cannot be
    read are `Unusable`: the device says what that means. Raises InvalidArgument for what is no
    model, GeneralFailure for copied operand values that cannot be read. May block.
    """
    rest = list(fds)
    return assembled(
        message,
        lambda form: pool_of(form, rest.pop(0), copies=True),
        lambda form: _constants_of(form, rest.pop(0), copies=not trusts),
    )


def assembled(
    message: OfferModel,
    values_of: Callable[[PoolForm], Pool],
    constants_of: Callable[[PoolForm], Memory],
) -> Model:
    """Builds the model of a message; the functions read its memory in the order of sending.

    Raises InvalidArgument for what is no model.
    """
    try:
        form: ModelDescription = decode(message.form, ModelDescription)
    except GeneralFailure as error:
        raise InvalidArgument(f"no legal model: {error}") from error
    values = message.values
    if isinstance(values, PoolForm):
        if values.refusal:
            raise InvalidArgument(f"no legal model: its operand values: {values.refusal}")
        values = bytes(values_of(values).view)
    pools = tuple(
        Unusable(each.kind, each.size, each.refusal) if each.refusal else constants_of(each)
        for each in message.pools
    )
    return msgspec.structs.replace(form, operand_values=values).model(pools)


def _constants_of(form: PoolForm, fd: int, *, copies: bool) -> Memory:
    try:
        return pool_of(form, fd, copies=copies)
    except GeneralFailure as error:
        return Unusable(form.kind, form.size, str(error))


def pool_of(form: PoolForm, fd: int, *, copies: bool = False, sealed: bool = False) -> Pool:
    """Returns memory that a client sent, mapped or copied; the descriptor stays the caller's.

    Raises GeneralFailure where that is not possible.
    """
    try:
        if form.size < 1 or form.offset < 0:
            raise InvalidArgument(f"{form.size} bytes from offset {form.offset} are no memory")
        if copies:
            pool = _copy(form, fd)
        else:
            pool = Pool.from_fd(
                fd,
                form.size,
                offset=form.offset,
                writable=form.writable,
                require_sealed=sealed,
                kind=form.kind,
                image_layout=form.image_layout,
            )
    except (InvalidArgument, OSError, OverflowError) as error:
        raise GeneralFailure(f"memory of a client cannot be used: {error}") from error
    return pool


def _copy(form: PoolForm, fd: int) -> Pool:
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode) or form.offset + form.size > found.st_size:
        raise InvalidArgument(
            f"{form.size} bytes from offset {form.offset} are more than the file has"
        )
    pool = Pool.allocate(form.size)
    pool.name = form.kind
    done = 0
    while done < form.size:
        count = os.preadv(fd, [pool.view[done:]], form.offset + done)
        if count == 0:
            raise InvalidArgument(f"a file ended {form.size - done} bytes early")
        done += count
    return pool


def handle_of(pool: Memory) -> tuple[PoolForm, int]:
    """Returns the form and the descriptor of a pool for another process; the pool keeps both.

    Raises GeneralFailure where it has none to hand on.
    """
    if not isinstance(pool, Pool):
        raise GeneralFailure(
            f"memory of kind {pool.name!r} has no file descriptor to hand to a service; "
            "use memory.Pool"
        )
    try:
        fd = pool.fd
    except BadState as error:
        raise GeneralFailure(f"closed memory cannot be handed to a service: {error}") from error
    except InvalidArgument as error:
        raise GeneralFailure(f"memory cannot be handed to a service: {error}") from error
    if not pool.readable:
        raise GeneralFailure(f"{pool!r} cannot be used: its handle is not for reading")
    return PoolForm(pool.name, pool.size, pool.offset, pool.writable, pool.image_layout), fd
