"""A burst that is served: two message queues, a thread that reads one, and the server half."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from nnasync._core.engine_device import EngineDevice
from nnasync._core.message_queue import Handover, QueueReader, QueueWriter
from nnasync._core.service.client_account import ClientAccount, Stopwatch
from nnasync._core.service.served_memories import Memories
from nnasync._core.wire.connection import close_all
from nnasync._core.wire.placement import SHORT_NS, Placement
from nnasync.burst import BurstContext, BurstRequest
from nnasync.burst.packets import UNDECODABLE, decode_request, encode
from nnasync.device import Device
from nnasync.errors import (
    BadState,
    InvalidArgument,
    NNError,
    ResourceExhaustedTransient,
)
from nnasync.hal import Memory, Priority
from nnasync.machine.here import HERE

logger = logging.getLogger(__name__)

_PATIENCE_S = 3.0
"""Memory is announced on the socket, which is read a second later at the most (`bucket`)."""
_RUNS = 64
"""Requests that ran at once are paid for by so many, since to look at the clock takes time too."""


class ServedBurst:
    """Serves a burst over its two channels; a thread of its own runs what is short."""

    def __init__(
        self,
        number: int,
        memories: Memories,
        fds: Sequence[int],
        account: ClientAccount,
        *,
        polls: bool,
        ordered: bool,
        most_urgent: Priority,
        check_tokens: Callable[[Sequence[int]], object],
    ) -> None:
        """Takes the descriptors over; raises InvalidArgument for what are no queues.

        Unless it is `ordered`, its requests are plain executions. None gets a priority above
        `most_urgent`. `check_tokens` raises InvalidArgument for tokens that are not of the client's
        buffers.
        """
        self._most_urgent = most_urgent
        self.ordered = ordered
        if len(fds) != 2 * Handover.COUNT:
            close_all(fds)
            raise InvalidArgument(f"{len(fds)} descriptors came for the two queues of a burst")
        results = Handover(fds[Handover.COUNT :])
        try:
            self._reader = QueueReader.attach(Handover(fds[: Handover.COUNT]))
            self._writer = QueueWriter.attach(results)
        except BaseException:
            results.close()
            raise
        self._polls = polls
        self._check_tokens = check_tokens
        self._reader.polling_ns = HERE.decisions.window_ns if polls and HERE.may_poll else 0
        self._number = number
        self._memories = memories
        self._account = account
        self._rests = threading.Event()
        self._patience_s = _PATIENCE_S
        self._forgotten: deque[int] = deque()
        self._receive: Callable[[bytes], None] | None = None
        self._context: BurstContext | None = None
        self._closed = False

    def begin(self, context: BurstContext, device: Device) -> None:
        """Serves from now on; raises ResourceExhaustedTransient where no thread is left."""
        self._context = context
        if self._closed:
            context.close()
            return
        name = f"nnasync-burst-{self._number}"
        turns = device.workers.turns if isinstance(device, EngineDevice) else None

        def run() -> None:
            watch, runs, inline_ns = Stopwatch(), 0, 0.0
            placement = None if self._polls else Placement()
            try:
                while True:
                    self._take(self._reader.read_blocking() or b"")
                    ran = turns is not None and turns.here.spent_ns > 0
                    if turns is not None and ran:
                        # The execution itself counts to the share.
                        runs += 1
                        inline_ns += turns.here.spent_ns
                        self._account.active()
                        # No loop turns on this thread: each packet is a turn of its own.
                        turns.here.turned(turns.here.number)
                    if placement is not None:
                        is_short = ran and inline_ns <= runs * SHORT_NS
                        placement.on(self._reader.writer_core if is_short else -1)
                    if not ran or runs == _RUNS:
                        self._rest(watch.lap() - inline_ns)
                        runs, inline_ns = 0, 0.0
            except NNError:
                self.end()
            except Exception:
                logger.exception("a burst ends")
                self.end()

        try:
            threading.Thread(target=run, name=name, daemon=True).start()
        except RuntimeError as error:
            raise ResourceExhaustedTransient(f"no thread for a burst: {error}") from error

    def end(self) -> None:
        """Ends the burst, from any thread."""
        self._closed = True
        self._rests.set()
        self._reader.close()
        self._writer.close()
        if self._context is not None:
            self._context.close()

    def _rest(self, cost_ns: float) -> None:
        """Pays for the reading, and rests where others are to have their share before."""
        seconds = self._account.paid(max(0.0, cost_ns))
        if seconds > 0:
            self._rests.wait(seconds)

    def _take(self, packet: bytes) -> None:
        """Answers a packet of the client."""
        receive, context = self._receive, self._context
        if receive is None or context is None:
            raise BadState("the burst is closed")
        while self._forgotten:
            context.free_memory(self._forgotten.popleft())
        receive(packet if self._most_urgent is Priority.HIGH else self._limited(packet))

    def _limited(self, packet: bytes) -> bytes:
        """Returns the packet with no higher priority than the client may have."""
        with contextlib.suppress(*UNDECODABLE):
            message = decode_request(packet)
            wanted = message.priority if isinstance(message, BurstRequest) else None
            if wanted is not None and wanted > self._most_urgent:
                return encode(msgspec.structs.replace(message, priority=self._most_urgent))
        return packet

    def forget(self, memory: int) -> None:
        """Drops a memory that no later request names."""
        context = self._context
        if context is not None:
            context.free_memory(memory)
        # A request that was being read just now may have named it.
        self._forgotten.append(memory)

    # -- what the server half sees

    def get_memories(self, slots: Sequence[int]) -> tuple[Memory, ...]:
        """Returns the memories of these numbers, which the client announced."""
        try:
            found = tuple(self._memories.awaited(slot, self._patience_s) for slot in slots)
        except InvalidArgument:
            # What was given back belonged to a request that nobody waits for any more.
            if not all(map(self._memories.is_decided, slots)):
                # Once is an error; who goes on like that shall not keep a thread waiting.
                self._patience_s = 0.0
                self._account.fine()
            raise
        self._patience_s = _PATIENCE_S
        return found

    def check_tokens(self, tokens: Sequence[int]) -> None:
        """Raises InvalidArgument unless each token stands for a buffer of this client."""
        self._check_tokens(tokens)

    def send(self, message: bytes) -> None:
        """Send an answer; raises ResourceExhaustedTransient where the client does not read."""
        if not self._writer.try_write(message):
            raise ResourceExhaustedTransient("the client does not take its answers")

    def listen(self, receive: Callable[[bytes], None]) -> None:
        """Sets the function that receives the requests."""
        self._receive = receive

    def close(self) -> None:
        """Closes the channels."""
        self._receive = None
