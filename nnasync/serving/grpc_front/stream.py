"""A stream of inferences: requests that come on one call, and their answers as they are ready.

Requests of one sequence run one after the other, in the order in which they came; all others
beside each other. Nothing more is read from a client while as many requests are in flight as one
stream may have, nor while it does not take its answers.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Awaitable, Callable

import anyio

from nnasync._core.clock import Deadline, now_ns
from nnasync.serving.grpc_front.conversion import answer_of, request_of, stream_error
from nnasync.serving.messages import InferRequest
from nnasync.serving.problems import ServingError
from nnasync.serving.server import ModelServer

IN_FLIGHT = 64
_of_stream = functools.partial(answer_of, is_streamed=True)


class InferStream:
    """Answers the requests that one client sends on one stream."""

    def __init__(
        self,
        server: ModelServer,
        client: str,
        deadline: Deadline | None,
        write: Callable[[bytes], Awaitable[None]],
        *,
        ends_at_error: bool,
    ) -> None:
        """`write` sends a message; with `ends_at_error` an error ends the stream."""
        self._server = server
        self._client = client
        self._deadline = deadline
        self._write = write
        self._ends_at_error = ends_at_error
        self._error: ServingError | None = None
        self._writing = anyio.Lock()
        self._room = anyio.Semaphore(IN_FLIGHT)
        self._last: dict[tuple[str, int | str], anyio.Event] = {}

    async def answer(self, messages: AsyncIterator[bytes]) -> None:
        """Answers all requests of the stream; raises the ServingError that ends the stream."""
        async with anyio.create_task_group() as tasks:
            async for message in messages:
                arrived_ns = now_ns()
                await self._room.acquire()
                try:
                    request = request_of(message)
                except ServingError as error:
                    self._room.release()
                    await self._tell(error, "", tasks.cancel_scope)
                    continue
                key = (request.model, request.sequence_id)
                before = self._last.get(key) if request.sequence_id else None
                done = anyio.Event()
                if request.sequence_id:
                    self._last[key] = done
                tasks.start_soon(self._run, request, arrived_ns, before, done, tasks.cancel_scope)
        if self._error is not None:
            raise self._error

    async def _run(
        self,
        request: InferRequest,
        arrived_ns: int,
        before: anyio.Event | None,
        done: anyio.Event,
        scope: anyio.CancelScope,
    ) -> None:
        try:
            found = self._server.start(
                request,
                client=self._client,
                deadline=self._deadline,
                arrived_ns=arrived_ns,
                behind=before,
                finish=_of_stream,
            )
            await self._send(found if isinstance(found, bytes) else await found, scope)
        except ServingError as error:
            await self._tell(error, request.id, scope)
        finally:
            done.set()
            self._room.release()
            key = (request.model, request.sequence_id)
            if self._last.get(key) is done:
                del self._last[key]

    async def _tell(self, error: ServingError, request_id: str, scope: anyio.CancelScope) -> None:
        if self._ends_at_error:
            self._error = error
            scope.cancel()
        else:
            await self._send(stream_error(error.text, request_id), scope)

    async def _send(self, message: bytes, scope: anyio.CancelScope) -> None:
        """Sends a message; gives the stream up where it cannot be written to."""
        async with self._writing:
            try:
                await self._write(message)
            except Exception:
                # The client hung up: gRPC has several errors for that, some without a public name.
                scope.cancel()
