"""A model on its way to a service: a description on the socket, all that is large beside it."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence

import numpy as np

from nnasync.drivers.service.connection import MAX_DESCRIPTORS
from nnasync.drivers.service.memories import handle_of
from nnasync.drivers.service.messages import ModelForm, OfferModel, PoolForm, decode, encode
from nnasync.errors import (
    GeneralFailure,
    InvalidArgument,
    ResourceExhaustedPersistent,
)
from nnasync.hal import Memory, Model
from nnasync.memory import Pool

__all__ = ["Offer", "model_of", "pool_of"]

_COPIED_BYTES = 64 << 10
"""Operand values up to this size travel in the message."""


class Offer:
    """What a model needs to be sent; `fds` are valid as long as it lives."""

    def __init__(self, model: Model) -> None:
        """Raises InvalidArgument, GeneralFailure for a constant that cannot be handed on."""
        self._kept: list[Pool] = []
        self.fds: list[int] = []
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
        """The message that goes with the descriptors."""
        return OfferModel(call, number, self._form, self._values, self._pools)

    def _add(self, pool: Memory) -> PoolForm:
        if not isinstance(pool, Pool):
            # Constants in plain memory, of which nobody expects that it be shared.
            kind, pool = pool.name, self._copied(np.frombuffer(pool.view, np.uint8))
            form, fd = handle_of(pool)
            form = PoolForm(kind, form.size, form.offset, form.writable)
        else:
            form, fd = handle_of(pool)
        self.fds.append(fd)
        return form

    def _copied(self, values: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> Pool:
        pool = Pool.allocate(max(values.nbytes, 1))
        np.frombuffer(pool.view, np.uint8)[: values.nbytes] = values
        self._kept.append(pool)
        return pool


def _encoded(model: Model) -> bytes:
    form = ModelForm(
        model.name,
        model.main,
        model.referenced,
        model.relax_computation_float32_to_float16,
        model.extension_name_to_prefix,
        model.state,
    )
    try:
        return encode(form)
    except (TypeError, OverflowError, ValueError) as error:
        raise InvalidArgument(f"a model cannot be sent to a service: {error}") from error


def model_of(message: OfferModel, fds: Sequence[int], *, trusts: bool) -> Model:
    """The model that a client sent; its constants are copied unless the client is trusted.

    A copy is what the client can neither shrink nor change afterwards. Raises InvalidArgument for
    what is no model, GeneralFailure for constants that cannot be read. May block.
    """
    try:
        form: ModelForm = decode(message.form, ModelForm)
    except GeneralFailure as error:
        raise InvalidArgument(f"no legal model: {error}") from error
    rest = list(fds)
    values = message.values
    if isinstance(values, PoolForm):
        values = bytes(pool_of(values, rest.pop(0), copies=True).view)
    pools = tuple(
        pool_of(each, fd, copies=not trusts) for each, fd in zip(message.pools, rest, strict=True)
    )
    return Model(
        main=form.main,
        referenced=form.referenced,
        operand_values=values,
        pools=pools,
        relax_computation_float32_to_float16=form.relaxed,
        extension_name_to_prefix=form.extensions,
        state=form.state,
        name=form.name,
    )


def pool_of(form: PoolForm, fd: int, *, copies: bool = False, sealed: bool = False) -> Pool:
    """Memory that a client sent, mapped or copied; the descriptor stays the caller's.

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
            )
    except (InvalidArgument, OSError, OverflowError) as error:
        raise GeneralFailure(f"memory of a client cannot be used: {error}") from error
    pool.name = form.kind
    return pool


def _copy(form: PoolForm, fd: int) -> Pool:
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode) or form.offset + form.size > found.st_size:
        raise InvalidArgument(
            f"{form.size} bytes from offset {form.offset} are more than the file has"
        )
    pool = Pool.allocate(form.size)
    done = 0
    while done < form.size:
        count = os.preadv(fd, [pool.view[done:]], form.offset + done)
        if count == 0:
            raise InvalidArgument(f"a file ended {form.size - done} bytes early")
        done += count
    return pool
