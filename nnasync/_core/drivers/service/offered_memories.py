"""The memory of a client's requests: handed to the service once, then named by a number.

A memory is forgotten when the client drops its last reference to the pool.
"""

from __future__ import annotations

import threading
import weakref

from nnasync._core.drivers.service.link import Link
from nnasync._core.wire.messages import (
    ForgetMemory,
    OfferMemory,
    encode,
)
from nnasync._core.wire.model_transfer import handle_of
from nnasync.burst import BurstArguments
from nnasync.errors import InvalidArgument, ResourceExhausted
from nnasync.hal import Memory, Request
from nnasync.memory import Pool

_LARGEST_TOKEN = 2**63 - 1


class OfferedMemories:
    """Numbers of the pools that a service knows, and the encoded forms of requests."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._numbers: dict[int, tuple[weakref.ref[Pool], int]] = {}
        self._forms: dict[int, tuple[weakref.ref[Request], bytes]] = {}
        self._lock = threading.Lock()

    def form(self, request: Request) -> bytes:
        """The arguments of a request as they are sent: memories are named by number.

        Pools that are new to the service are handed to it.

        Raises GeneralFailure for a pool that cannot be handed on.
        """
        known = self._forms.get(id(request))
        if known is not None:
            return known[1]
        self._link.run_deferred()
        pools = tuple(self._pool(pool) for pool in request.pools)
        try:
            form = encode(BurstArguments(request.inputs, request.outputs, pools))
        except (TypeError, OverflowError) as error:
            raise InvalidArgument(f"a request cannot be sent to a service: {error}") from error
        key, forms = id(request), self._forms
        forms[key] = (weakref.ref(request, lambda _: forms.pop(key, None)), form)
        return form

    def number_of(self, pool: Memory) -> int:
        """The number of a pool; from any thread."""
        known = self._numbers.get(id(pool))
        if known is not None:
            return known[1]
        shared, fd = handle_of(pool)
        with self._lock:
            known = self._numbers.get(id(pool))
            if known is not None:
                return known[1]
            link, key, numbers = self._link, id(pool), self._numbers
            number = link.number()
            link.notify(OfferMemory(number, shared), [fd])

            def forget(_: object) -> None:
                numbers.pop(key, None)
                link.notify_soon(ForgetMemory(number))

            # The protocol of memory does not say that references to it may be weak; all may.
            numbers[key] = (weakref.ref(pool, forget), number)  # type: ignore[arg-type]
        return number

    def refused(self, request: Request, error: ResourceExhausted) -> None:
        """Hand the pools of a request over again, the next time, if there was no room for one.

        Other requests that are under way may name what was not refused.
        """
        for pool in request.pools if error.reason == "memory" else ():
            if not isinstance(pool, int):
                self.renew_pool(pool)

    def renew_pool(self, pool: Memory) -> None:
        """Hand one pool over again, the next time that it is named; from any thread."""
        known = self._numbers.pop(id(pool), None)
        if known is None:
            return
        for key, (reference, _) in self._forms.copy().items():
            request = reference()
            if request is not None and any(each is pool for each in request.pools):
                self._forms.pop(key, None)
        self._link.notify(ForgetMemory(known[1]))

    def _pool(self, pool: Memory | int) -> int:
        if not isinstance(pool, int):
            return self.number_of(pool)
        if not 0 < pool <= _LARGEST_TOKEN:
            raise InvalidArgument(f"{pool} is no memory token; tokens are above 0")
        return -pool
