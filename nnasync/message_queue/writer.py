"""The writing end of a message queue."""

from __future__ import annotations

from nnasync.clock import now_ns
from nnasync.errors import GeneralFailure
from nnasync.message_queue.ends import QueueEnd, died, until
from nnasync.message_queue.ring import CLOSED, Producer

__all__ = ["QueueWriter"]


class QueueWriter(QueueEnd[Producer]):
    """Puts packets in; made by `create` or `attach`.

    `try_write` may be called from any thread, packets of several come in some order; one thread or
    task at a time may wait. All writing raises InvalidArgument for a packet larger than the queue,
    DeviceDied when it is closed, GeneralFailure when the reader broke it.
    """

    __slots__ = ()

    _side = Producer
    _rings_data = True

    def try_write(self, message: bytes) -> bool:
        """Put a packet in; False if there is no space for it now."""
        ring, ringer = self._ring, self._ringer
        try:
            with self._lock:
                if self._closed or self._bell.hung_up or ringer.hung_up:
                    died(ring.fault)
                since = ring.write(message)
        except GeneralFailure:
            self.close()
            raise
        if since < 0:
            if since == CLOSED:
                died(None)
            return False
        # To let go of the lock has ordered the store before this load.
        if ring.reader_waits(since):
            ringer.ring()
        return True

    def tell_core(self, core: int) -> None:
        """Tell the reader on which core its answers are waited for; -1: on any."""
        with self._lock:
            if not self._closed:
                self._ring.tell_core(core)

    def write_blocking(self, message: bytes, timeout_s: float | None = None) -> bool:
        """Wait in this thread until there is space, and put the packet in; False: out of time.

        Does not poll: a full queue has a slow reader. Raises BadState if somebody waits already.
        """
        if self.try_write(message):
            return True
        until_ns = until(timeout_s)
        while not self._wanted(message):
            if now_ns() >= until_ns:
                return False
            self._sleep(until_ns)
        return True

    async def write(self, message: bytes) -> None:
        """Let the loop run until there is space, and put the packet in.

        Cancelled, the packet was not put in. Raises BadState if somebody waits already.
        """
        await self._turn()
        if self.try_write(message):
            return
        while not self._wanted(message):
            await self._sleep_async()

    def _wanted(self, message: bytes) -> bool:
        """Have the reader ring when there is space for the packet, unless there is some now."""
        with self._lock:
            self._ring.want_space(len(message))
        return self.try_write(message)
