"""The way of one request through a server of models, which knows no network.

It is checked, and its inputs become arrays; it is run; what was run becomes an answer; and its
account has exactly one outcome for it. What can be answered at once is, without a task or a
suspension: `start` gives the answer itself then. Else it gives what has to be awaited, and with
that the request is let in, or refused where too many are in flight.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Sequence
from http import HTTPStatus
from typing import Any

import anyio
import numpy as np

from nnasync._core.clock import Deadline, now_ns
from nnasync._core.execution.call_now import call_now, check_call
from nnasync.errors import (
    BadState,
    Cancelled,
    MissedDeadline,
    NNError,
    ResourceExhaustedTransient,
    because,
)
from nnasync.hal import Array
from nnasync.serving.accounts import UNKNOWN, ClientAccount, ClientAccounts
from nnasync.serving.messages import InferAnswer, InferRequest, RequestedOutput
from nnasync.serving.models import Models
from nnasync.serving.problems import ServingError, as_serving_error
from nnasync.serving.repeats import Repeat
from nnasync.serving.sequences import Sequences, signature_in_sequence, until_set
from nnasync.serving.serve_options import ServeOptions
from nnasync.serving.served_model import ServedModel
from nnasync.serving.shared_memory import ClientsMemory, SharedMemory
from nnasync.serving.tensors import arrays_of, outputs_of, target_of, wanted_outputs

logger = logging.getLogger(__name__)

ABOUT_TO_END = "the server is about to end"
_NEVER_NS = 2**62
"""A timeout that ends later is none."""
_ALL: Sequence[tuple[int, RequestedOutput]] = ()


class _Call:
    """One request for a model that is there, on its way through the server."""

    __slots__ = ("account", "arrays", "begun_ns", "behind", "client", "deadline", "finish",
                 "memory", "model", "out", "priority", "ready_ns", "request", "signature",
                 "wanted")  # fmt: skip

    arrays: Sequence[Array]
    ready_ns: int

    def __init__(
        self,
        model: ServedModel,
        account: ClientAccount,
        request: InferRequest,
        client: str,
        memory: SharedMemory,
        deadline: Deadline | None,
        begun_ns: int,
        behind: anyio.Event | None,
        finish: Callable[[InferAnswer], Any] | None,
    ) -> None:
        self.model = model
        self.account = account
        self.request = request
        self.client = client
        self.memory = memory
        self.deadline = deadline
        self.begun_ns = begun_ns
        self.behind = behind
        self.finish = finish
        self.signature = model.signature
        self.priority = model.priority
        self.wanted = _ALL
        self.out: Array | None = None


class _Answering:
    """The object that must be awaited once for an answer.

    If nobody awaits it, the request is given up. A coroutine alone would not do: of one that is
    dropped before its first step, nothing runs, and a server drops it so if the task that is to
    await it is cancelled before it has begun.
    """

    __slots__ = ("_call", "_inferences")

    def __init__(self, inferences: Inferences, call: _Call) -> None:
        self._inferences = inferences
        self._call: _Call | None = call

    def __await__(self) -> Generator[Any, Any, Any]:
        call, self._call = self._call, None
        if call is None:
            raise BadState("the answer to a request was awaited twice")
        return self._inferences._answer_later(call).__await__()

    def __del__(self) -> None:
        if self._call is not None:
            self._inferences._give_up(self._call)


class Inferences:
    """Runs the requests of all clients for all models of one server; to be used on its loop."""

    def __init__(
        self,
        models: Models,
        accounts: ClientAccounts,
        shared_memory: ClientsMemory,
        options: ServeOptions,
        cores: int,
    ) -> None:
        """Takes the server's parts; `cores` is the number of cores of the runtime."""
        self.is_open = False
        """Whether requests are taken that do not go on with a sequence."""
        self.sequences = Sequences(options.limits.sequences_per_client, on_end=self._look)
        self._models = models
        self._accounts = accounts
        self._shared_memory = shared_memory
        self._memory_of_all = None if options.api_keys else shared_memory.of("")
        self._limits = options.limits
        self._cores = cores
        self._in_flight: dict[str, int] = {}
        self._nothing_left: anyio.Event | None = None

    def memory_of(self, client: str) -> SharedMemory:
        """Returns the shared memory of a client.

        It is the client's own where keys tell clients apart, else one for all.
        """
        of_all = self._memory_of_all
        return self._shared_memory.of(client) if of_all is None else of_all

    def start(
        self,
        request: InferRequest,
        *,
        client: str = "",
        deadline: Deadline | None = None,
        arrived_ns: int = 0,
        behind: anyio.Event | None = None,
        finish: Callable[[InferAnswer], Any] | None = None,
    ) -> Any:
        """Returns the answer where it can be given at once, else an object to be awaited for it.

        `finish` makes of it what is sent, and is a part of the answering: where it raises, the
        request has failed. `arrived_ns` is when the request came, if that was not now; it is run
        once the event `behind` is set. Raises ServingError and nothing else.
        """
        model, goes_on = None, False
        try:
            if request.sequence_id:
                model = self.sequences.model_of(request, client)
                goes_on = model is not None
            if model is None:
                model = self._models.find(request.model, request.version)
        except ServingError as error:
            self._refuse_unknown(client, error)
            raise
        account = self._accounts.of(model.name, model.version, client)
        account.tally.calls += 1
        memory, begun_ns = self._memory_of_all or self.memory_of(client), arrived_ns or now_ns()
        call = _Call(model, account, request, client, memory, deadline, begun_ns, behind, finish)
        try:
            if not (self.is_open or goes_on):
                raise ServingError(HTTPStatus.SERVICE_UNAVAILABLE, ABOUT_TO_END)
            self._check(call)
            if behind is None and (answer := self._answer_now(call)) is not None:
                return answer
            self._enter(call)
        except Exception as error:
            raise self._failed(call, error) from error
        return _Answering(self, call)

    def again(
        self, repeat: Repeat, message: bytes, client: str, deadline: Deadline | None
    ) -> bytes | None:
        """Answers a message that is like an earlier one, where that can be done at once.

        Where it returns None nothing has happened, and `start` is to be called. Raises
        ServingError.
        """
        if not self.is_open:
            return None
        model, begun_ns = repeat.model, now_ns()
        if repeat.is_timed:
            deadline = _due(model, repeat.request, deadline, begun_ns)
        array = np.ndarray(repeat.shape, repeat.dtype, message, repeat.offset)
        account, ready_ns = self._accounts.of(model.name, model.version, client), now_ns()
        try:
            value = call_now(model.net, array, deadline)
            if value is None:
                return None
            ran_ns, heads = now_ns(), repeat.heads
            answer = b"".join((heads[0], value) if len(heads) == 1 else _in_turn(heads, value))
        except Exception as error:
            account.tally.calls += 1
            memory = self.memory_of(client)
            call = _Call(
                model, account, repeat.request, client, memory, deadline, begun_ns, None, None
            )
            raise self._failed(call, error) from error
        account.tally.calls += 1
        account.tally.completed += 1
        model.statistics.succeeded(1, 0, ready_ns - begun_ns, ran_ns - ready_ns, now_ns() - ran_ns)
        return answer

    def _refuse_unknown(self, client: str, error: ServingError) -> None:
        account = self._accounts.of(UNKNOWN, "", client)
        account.tally.calls += 1
        account.tally.ended(error)

    def _check(self, call: _Call) -> None:
        """Finds out the priority and the deadline of a request, and reads its inputs."""
        request, model = call.request, call.model
        if request.priority:
            call.priority = model.settings.priority_of(request.priority)
        if request.timeout_us or model.has_timeouts:
            call.deadline = _due(model, request, call.deadline, call.begun_ns)
        if request.sequence_id or model.is_stateful:
            call.signature = signature_in_sequence(model, request)
        if request.outputs:
            call.wanted = wanted_outputs(request, call.signature)
            if model.runs_plainly:
                call.out = target_of(call.wanted, call.signature, call.memory)
        call.arrays = arrays_of(request, call.signature, self._limits, call.memory)
        call.ready_ns = now_ns()

    def _answer_now(self, call: _Call) -> Any:
        """Returns the answer, if the network gives it without waiting."""
        model, arrays = call.model, call.arrays
        if len(arrays) != 1 or not model.runs_plainly or call.priority is not model.net.priority:
            return None
        value = call_now(model.net, arrays[0], call.deadline, call.out)
        return None if value is None else self._answer(call, model.listed(value), None)

    def _enter(self, call: _Call) -> None:
        """Counts in a request that has to wait; raises ServingError where too many do already."""
        in_flight = self._in_flight.get(call.client, 0)
        if in_flight >= self._limits.requests_per_client:
            text = f"a client has at most {self._limits.requests_per_client} requests in flight"
            raise because("queue_full", ResourceExhaustedTransient(text))
        call.model.admit(call.priority)
        try:
            if call.deadline is not None and call.model.runs_plainly:
                check_call(call.model.net, call.deadline, call.priority)
            call.model.enter()
        except BaseException:
            call.model.dismiss(call.priority)
            raise
        self._in_flight[call.client] = in_flight + 1

    def _leave(self, call: _Call) -> None:
        call.model.dismiss(call.priority)
        call.model.leave()
        left = self._in_flight[call.client] - 1
        if left:
            self._in_flight[call.client] = left
        else:
            del self._in_flight[call.client]
            self._look()

    async def _answer_later(self, call: _Call) -> Any:
        try:
            values, device_ns = await self._run(call)
            return self._answer(call, values, device_ns)
        except Exception as error:
            raise self._failed(call, error) from error
        except BaseException as error:
            call.account.tally.ended(error)
            raise
        finally:
            self._leave(call)

    def _give_up(self, call: _Call) -> None:
        """Ends a request that was counted in, and whose answer nobody awaits."""
        call.account.tally.ended(Cancelled("nobody awaits the answer"))
        self._leave(call)

    async def _run(self, call: _Call) -> tuple[Sequence[Array], int | None]:
        """Runs the network; returns its outputs, and how long the device took where it says so."""
        model, request = call.model, call.request
        if call.behind is not None:
            await until_set(call.behind, call.deadline)
        if request.sequence_id:
            values = await self.sequences.run(
                model, request, call.arrays, deadline=call.deadline, priority=call.priority,
                client=call.client,
            )  # fmt: skip
            return values, None
        return await model.run(call.arrays, call.deadline, call.priority, call.out)

    def _answer(self, call: _Call, values: Sequence[Array], device_ns: int | None) -> Any:
        model, ran_ns = call.model, now_ns()
        outputs = outputs_of(call.wanted, values, call.signature, call.memory, call.out)
        answer: Any = InferAnswer(model.name, model.version, call.request.id, outputs)
        if call.finish is not None:
            answer = call.finish(answer)
        ready_ns = call.ready_ns
        infer_ns = took_ns = ran_ns - ready_ns
        if device_ns is not None and device_ns < took_ns:
            infer_ns = device_ns
        model.statistics.succeeded(
            model.batch_size_of(call.arrays) if model.settings.max_batch_size else 1,
            took_ns - infer_ns,
            ready_ns - call.begun_ns,
            infer_ns,
            now_ns() - ran_ns,
        )
        call.account.tally.completed += 1
        return answer

    def _failed(self, call: _Call, error: Exception) -> ServingError:
        """Puts an error to the account of the request.

        Returns the error that the client is sent.
        """
        now, statistics = now_ns(), call.model.statistics
        call.account.tally.ended(error, call.deadline)
        statistics.failed(now - call.begun_ns)
        if isinstance(error, MissedDeadline) and call.deadline is not None:
            late_ns = now - call.deadline.at_ns
            if late_ns >= 0:
                statistics.late.observe(late_ns * 1e-9)
        if not isinstance(error, NNError):
            logger.error("a request for model %s failed", call.model.name, exc_info=error)
        if isinstance(error, ServingError):
            # Another one: an error that is its own cause would keep the request until a collection.
            return ServingError(error.code, error.text, retry_after_s=error.retry_after_s)
        return as_serving_error(error, retry_after_s=call.model.drain_s(self._cores))

    # -- the end

    @property
    def is_idle(self) -> bool:
        """Returns whether nothing is in flight."""
        return not self._in_flight

    async def drain(self, patience_s: float) -> bool:
        """Lets no new request begin, and waits at most so long for those that have begun.

        Requests of sequences that are open are answered until these end. Returns whether nothing
        that is in flight is left.
        """
        self.is_open = False
        if self._in_flight or len(self.sequences):
            self._nothing_left = anyio.Event()
            with anyio.move_on_after(patience_s):
                await self._nothing_left.wait()
        return not self._in_flight

    def _look(self) -> None:
        """Wakes `drain` if nothing is left that it waits for."""
        if self._nothing_left is not None and not self._in_flight and not len(self.sequences):
            self._nothing_left.set()


def _in_turn(heads: Sequence[bytes], values: Sequence[Array]) -> list[Any]:
    return [piece for pair in zip(heads, values, strict=True) for piece in pair]


def _due(
    model: ServedModel, request: InferRequest, deadline: Deadline | None, begun_ns: int
) -> Deadline | None:
    """Returns the earlier of the caller's deadline and that by the request's timeout.

    Where neither is stated the model's timeout holds, and its longest timeout limits all.
    """
    settings = model.settings
    limit_us: float = request.timeout_us
    if limit_us == 0 and deadline is None:
        limit_us = settings.timeout_ms * 1000
    if settings.longest_timeout_ms:
        longest_us = settings.longest_timeout_ms * 1000
        limit_us = min(limit_us or longest_us, longest_us)
    if not limit_us:
        return deadline
    own = Deadline(min(begun_ns + int(limit_us * 1000), _NEVER_NS))
    return own if deadline is None else min(own, deadline)
