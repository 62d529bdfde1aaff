"""The buffers of one device, by their tokens."""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Sequence

from nnasync import hal
from nnasync._core.engine_device.buffers.claims import Claims
from nnasync._core.engine_device.buffers.managed import ManagedBuffer
from nnasync._core.engine_device.buffers.rows import Role, Rows
from nnasync.errors import (
    DeviceUnavailable,
    GeneralFailure,
    InvalidArgument,
    ResourceExhaustedPersistent,
    ResourceExhaustedTransient,
)
from nnasync.hal import Array, Operand, Struct


class BuffersStatistics(Struct, frozen=True):
    """How many buffers a device has now, and their bytes."""

    buffers: int
    bytes: int


class Buffers:
    """The buffers of one device, by their tokens."""

    def __init__(self, limit_bytes: int | None = None) -> None:
        """Limits all of them together to `limit_bytes`; None stands for `default_limit_bytes()`."""
        self.limit_bytes = default_limit_bytes() if limit_bytes is None else limit_bytes
        self._buffers: dict[int, ManagedBuffer] = {}
        self._bytes = 0
        self._is_closed = False
        self.claims = Claims()
        self._rows = Rows()
        # As that of the claims.
        self._lock = threading.RLock()

    def allocate(self, operand: Operand, roles: Sequence[Role]) -> ManagedBuffer:
        """Allocates a buffer for what `validation.validate_buffer_desc` found, in these roles.

        Raises GeneralFailure for a type whose size is not known (of an extension),
        ResourceExhaustedPersistent for what is too large ever to fit, Transient for what does not
        fit now.
        """
        if not hal.has_dtype(operand.type):
            raise GeneralFailure(
                f"no buffer for {hal.type_name(operand.type)}: its size is not known; "
                "use shared memory"
            )
        if self._is_closed:
            raise DeviceUnavailable("the device of these buffers is closed")
        token = self._new_token()
        buffer = ManagedBuffer(token, operand, roles, self.claims, self._reserve, self._made)
        with self._lock:
            self._buffers[token] = buffer
        return buffer

    def find(self, token: int) -> ManagedBuffer:
        """Returns the buffer of a token; raises InvalidArgument where there is none."""
        buffer = self._buffers.get(token)
        if buffer is None:
            raise InvalidArgument("a memory token of the request stands for no buffer (any more)")
        return buffer

    def free(self, token: int) -> None:
        """Closes a buffer, whose token means nothing from now on.

        Does nothing where there is none.
        """
        with self._lock:
            buffer = self._buffers.pop(token, None)
        if buffer is not None:
            buffer.close()

    def close(self) -> None:
        """Close all of them."""
        self._is_closed = True
        for token in list(self._buffers):
            self.free(token)

    def statistics(self) -> BuffersStatistics:
        """Returns the buffers and bytes that there are now."""
        return BuffersStatistics(len(self._buffers), self._bytes)

    def _new_token(self) -> int:
        while True:
            token = secrets.randbits(63)
            if token and token not in self._buffers:
                return token

    def _made(self, roles: Sequence[Role], nbytes: int) -> Array:
        with self._lock:
            return self._rows.piece(roles, nbytes)

    def _reserve(self, nbytes: int) -> None:
        with self._lock:
            if nbytes > min(self.limit_bytes, hal.MAX_TENSOR_BYTES):
                raise ResourceExhaustedPersistent(
                    f"a buffer of {nbytes} bytes is too large: all together may have "
                    f"{self.limit_bytes} bytes, each {hal.MAX_TENSOR_BYTES}"
                )
            if nbytes > 0 and self._bytes + nbytes > self.limit_bytes:
                raise ResourceExhaustedTransient(
                    f"{nbytes} bytes do not fit: buffers take {self._bytes} of at most "
                    f"{self.limit_bytes} bytes"
                )
            self._bytes += nbytes


def default_limit_bytes() -> int:
    """Returns half of the machine's memory."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    except (ValueError, OSError):
        return hal.MAX_TENSOR_BYTES
