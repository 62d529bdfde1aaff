"""The sources of a stream at an address, which outlive its connections."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable

import anyio

from nnasync._core.arguments import check_function, or_none
from nnasync.hal import Array
from nnasync.streaming.network.backoff import Backoff
from nnasync.streaming.network.connection import Address
from nnasync.streaming.network.keeper import Keeper, NetworkStatistics, SourceEvent
from nnasync.streaming.network.outlets import AudioOutlet, Outlet, VideoOutlet
from nnasync.streaming.sources.pictures import PixelFormat, Size
from nnasync.streaming.sources.source import LiveSource


class NetworkStream:
    """The stream at an address; made by `network`. Its sources share one connection.

    A source of what the stream has not got raises InvalidArgument; the others go on.

    The connection is made when the first source is read, and closed when all are. A stream of
    which all sources are closed is at its end.
    """

    def __init__(
        self,
        address: Address,
        retry: Backoff | None,
        on_event: Callable[[SourceEvent], object] | None,
        uniform: Callable[[], float],
    ) -> None:
        or_none(check_function, "on_event", on_event, "a function of a SourceEvent")
        check_function("uniform", uniform, "a function that returns a number from 0 to 1")
        self._keeper = Keeper(address, retry, on_event, uniform)

    def video(
        self,
        *,
        size: Size | None = None,
        pixels: PixelFormat = "gray",
        rate_hz: float | None = None,
    ) -> LiveSource:
        """Its pictures, as `camera` has them, at most `rate_hz` a second.

        Reading raises InvalidArgument where the address can never be read, DeviceUnavailable where
        there is no connection in time. In a graph, pictures that were not taken in time are dropped
        in the account of the source, those beyond `rate_hz` filtered, packets that cannot be
        decoded failed. Raises InvalidArgument for another format or rate.
        """
        outlet = VideoOutlet(size, pixels)
        if rate_hz is not None:
            outlet.limit_rate(rate_hz)
        return self._source(outlet)

    def audio(self, *, rate_hz: int = 16000, hop: int = 160) -> LiveSource:
        """Its sound, as `microphone` has it: hops of `hop` samples at `rate_hz`; see `video`."""
        return self._source(AudioOutlet(rate_hz, hop))

    @property
    def statistics(self) -> NetworkStatistics:
        """Counters so far."""
        return self._keeper.statistics()

    def _source(self, outlet: Outlet) -> LiveSource:
        self._keeper.add(outlet)
        pulled = _Taken(self._keeper, outlet)
        return _NetworkSource(pulled, outlet)


class _NetworkSource(LiveSource):
    """The source of an outlet's items; a `rate` stage behind it limits what the outlet makes."""

    def __init__(self, pulled: _Taken, outlet: Outlet) -> None:
        super().__init__(pulled, outlet.mailbox.take_losses, lambda: pulled.epoch)
        self.limit_rate = outlet.limit_rate


class _Taken:
    """Pulls the items of one outlet for its source."""

    def __init__(self, keeper: Keeper, outlet: Outlet) -> None:
        self._keeper = keeper
        self._outlet = outlet
        self.epoch = 0
        # What is dropped without being closed must not keep its connection.
        weakref.finalize(self, keeper.drop, outlet).atexit = False

    async def __anext__(self) -> tuple[int, Array]:
        self._keeper.start()
        mailbox = self._outlet.mailbox
        while True:
            # What is there is given also where the time to wait for more has passed.
            left_s = self._keeper.left_s() if mailbox.must_wait else math.inf
            with anyio.move_on_after(left_s):
                captured_ns, data, self.epoch = await mailbox.take()
                return captured_ns, data
            self._keeper.look_after()

    async def aclose(self) -> None:
        self._outlet.mailbox.end()
        self._outlet.mailbox.discard()
        await self._keeper.leave(self._outlet)
