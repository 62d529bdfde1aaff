"""The writing end of a message queue."""

from __future__ import annotations

from nnasync._core.message_queue.doorbell import Doorbell
from nnasync._core.message_queue.ends import QueueEnd, died
from nnasync._core.message_queue.ring import CLOSED, Producer
from nnasync.errors import GeneralFailure


class QueueWriter(QueueEnd[Producer, Doorbell]):
    """Puts packets in; made by `create` or `attach`.

    `try_write` may be called from any thread; packets of several threads come in some order.
    """

    __slots__ = ()

    _side = Producer
    _end = Doorbell
    _writes = True

    def try_write(self, message: bytes) -> bool:
        """Put a packet in; False if there is no space for it now.

        Raises InvalidArgument for a packet larger than the queue, DeviceDied when it is closed,
        GeneralFailure when the reader broke it.
        """
        ring, doorbell = self._ring, self._waker
        try:
            with self._lock:
                if self.closed or doorbell.peer_closed:
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
            doorbell.ring()
        return True

    def tell_core(self, core: int) -> None:
        """Tell the reader on which core its answers are waited for; -1: on any."""
        with self._lock:
            if not self.closed:
                self._ring.tell_core(core)
