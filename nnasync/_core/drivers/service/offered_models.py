"""The models that a client asks about: sent to the service once, then named by a number.

A model is forgotten when the client drops its last reference, or when the service has no room for
another one: what was prepared of a model does not need it any more.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import AsyncIterator

from nnasync._core.drivers.service.link import Link
from nnasync._core.wire.messages import ForgetModel
from nnasync._core.workers.anyio_threads import in_helper_thread
from nnasync.errors import ResourceExhaustedTransient
from nnasync.fences import Fence
from nnasync.hal import Model


class _Offered:
    """A model that the service knows, and how many calls name it now."""

    __slots__ = ("number", "reference", "users")

    def __init__(self, number: int, reference: weakref.ref[Model]) -> None:
        self.number = number
        self.reference = reference
        self.users = 0


class OfferedModels:
    """Numbers of the models that a service knows."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._offered: dict[int, _Offered] = {}
        self._under_way: dict[int, Fence] = {}
        self._times_forgotten = 0

    @contextlib.asynccontextmanager
    async def named(self, model: Model) -> AsyncIterator[int]:
        """The number of a model for calls inside `async with`; it is sent if the service needs it.

        Several may ask at once: one sends it, and the next tries where that one did not succeed.
        """
        key = id(model)
        while (offered := self._offered.get(key)) is None:
            sent = self._under_way.get(key)
            if sent is not None:
                await sent
                continue
            self._under_way[key] = sent = Fence()
            try:
                await self._offer_with_room(model)
            finally:
                del self._under_way[key]
                sent.signal()
        offered.users += 1
        try:
            yield offered.number
        finally:
            offered.users -= 1

    async def _offer_with_room(self, model: Model) -> None:
        """Offer it, and again where models were forgotten since, for this one or for another."""
        before = self._times_forgotten
        try:
            await self._offer(model)
        except ResourceExhaustedTransient:
            self._forget_idle()
            if self._times_forgotten == before:
                raise
            await self._offer(model)

    def _forget_idle(self) -> None:
        """Have the service forget what no call names."""
        idle = [key for key, each in self._offered.copy().items() if not each.users]
        for key in idle:
            offered = self._offered.pop(key, None)
            if offered is not None:
                self._link.notify(ForgetModel(offered.number))
        self._times_forgotten += bool(idle)

    async def _offer(self, model: Model) -> None:
        offer = await in_helper_thread(self._link.peer.offer, model)
        number, key = self._link.number(), id(model)
        try:
            await self._link.call(lambda n: offer.message(n, number), offer.fds)
        except BaseException:
            # It may have come all the same.
            self._link.notify_soon(ForgetModel(number))
            raise

        def forget(_: object) -> None:
            self._offered.pop(key, None)
            self._link.notify_soon(ForgetModel(number))

        self._offered[key] = _Offered(number, weakref.ref(model, forget))
