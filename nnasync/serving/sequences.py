"""Sequences: requests that belong together, and the state that a network carries between them.

A sequence is a burst: its requests run in the order in which they came, each on the state that the
last one left. One that is answered with an error leaves the state as it was, so that a client may
send it again; but a sequence whose first request fails has not begun, and those that were sent
behind that one are not run.

A sequence belongs to the client that began it, and to the version of the model that was served
then: a newer one is for the sequences that begin after it. It ends with the request that says so,
when nothing has come for a time that the settings of its model state, when its model is unloaded,
and when its device fails. Then the next request has to begin another one.

The state can be taken elsewhere: a request with the parameter `export_state` is answered with the
states, too, as tensors that have the names of the network's states. Given as inputs beside those
of the first request of another sequence, on this server or another one with the same model, that
one begins with them instead of zeroes.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import anyio

from nnasync._core.clock import Deadline
from nnasync._core.execution.burst import Burst
from nnasync.errors import (
    BadState,
    DeviceError,
    MissedDeadlinePersistent,
    ResourceExhaustedTransient,
    because,
)
from nnasync.hal import Array, Priority
from nnasync.serving.deadlines import remaining_s, set_in_time, until_passed
from nnasync.serving.messages import InferRequest
from nnasync.serving.problems import ServingError, invalid
from nnasync.serving.served_model import ServedModel
from nnasync.serving.tensors import Signature

EXPORT_STATE = "export_state"
"""The parameter of a request that wants the states after it, too."""

_DEPTH = 64
_Key: TypeAlias = tuple[str, str, int | str]


def signature_in_sequence(model: ServedModel, request: InferRequest) -> Signature:
    """Returns the inputs and outputs of a request in a sequence, with the states that it carries.

    Raises ServingError for a model that carries no state, for a request to one that does but is of
    no sequence, and where states are asked for that cannot be given.
    """
    if not request.sequence_id:
        raise invalid(
            f"inference request to model '{model.name}' must specify a non-zero or non-empty "
            "correlation ID"
        )
    if not model.is_stateful:
        raise invalid(f"model '{model.name}' carries no state, and knows no sequences")
    names = {state.name for state in model.states}
    brings = any(tensor.name in names for tensor in request.inputs)
    exports = request.parameters.get(EXPORT_STATE) is True
    if exports and not names:
        raise invalid(f"the states of model '{model.name}' have names of its inputs or outputs")
    if not (brings or exports):
        return model.signature
    return model.signature_for(brings_states=brings, exports_state=exports)


class Sequences:
    """Runs the requests of the sequences that are open, for all clients and models."""

    def __init__(
        self,
        per_client: int = 64,
        most: int = 4096,
        now_ns: Callable[[], int] = time.monotonic_ns,
        on_end: Callable[[], object] = lambda: None,
    ) -> None:
        """A client may have `per_client` sequences open at once, all clients `most`.

        `on_end` is called whenever one has ended.
        """
        self._on_end = on_end
        self._per_client = per_client
        self._most = most
        self._now_ns = now_ns
        self._open: dict[_Key, _OpenSequence] = {}
        self._counts: Counter[str] = Counter()
        self._changed = anyio.Event()

    def __len__(self) -> int:
        return len(self._open)

    def model_of(self, request: InferRequest, client: str) -> ServedModel | None:
        """Returns the version that began the open sequence which a request continues.

        Returns None where it begins one, names another version, or there is no such sequence.
        """
        if not request.sequence_id or request.sequence_start:
            return None
        sequence = self._open.get((client, request.model, request.sequence_id))
        if sequence is None or request.version not in ("", sequence.model.version):
            return None
        return sequence.model

    async def run(
        self,
        model: ServedModel,
        request: InferRequest,
        arrays: Sequence[Array],
        *,
        deadline: Deadline | None,
        priority: Priority,
        client: str,
    ) -> Sequence[Array]:
        """Runs a request in its sequence; returns the outputs, then the states if it exports them.

        Behind the inputs the arrays of a first request may have the states that it begins with.
        Raises ServingError, and what a burst raises.
        """
        key = (client, model.name, request.sequence_id)
        count = len(model.signature.inputs)
        arrays, given = arrays[:count], arrays[count:]
        states = dict(zip((state.name for state in model.states), given, strict=False))
        if request.sequence_start:
            sequence = self._begun(key, model, states)
        else:
            sequence = self._found(key, request, states)
        with self._used(key, sequence, is_first=request.sequence_start):
            if request.sequence_start:
                async with sequence.line:
                    await sequence.open()
                    found = await sequence.run(request, arrays, deadline, priority)
            else:
                await sequence.turn(deadline)
                if sequence.has_failed_first:
                    raise _no_start(key)
                found = await sequence.run(request, arrays, deadline, priority)
        if request.sequence_end:
            self._end(key, sequence)
        return found

    def _begun(self, key: _Key, model: ServedModel, states: Mapping[str, Array]) -> _OpenSequence:
        """Returns a new sequence; ends the one under the same key that its client did not end."""
        if key in self._open:
            self._end(key, self._open[key])
        client = key[0]
        if self._counts[client] >= self._per_client or len(self._open) >= self._most:
            raise ResourceExhaustedTransient(
                f"there are {self._counts[client]} open sequences of this client and "
                f"{len(self._open)} in all, and at most {self._per_client} and {self._most} are "
                "allowed: end one of them with 'sequence_end'"
            )
        sequence = _OpenSequence(model, states)
        self._open[key] = sequence
        self._counts[client] += 1
        self._changed.set()
        return sequence

    def _found(
        self, key: _Key, request: InferRequest, states: Mapping[str, Array]
    ) -> _OpenSequence:
        sequence = self._open.get(key)
        if sequence is None or request.version not in ("", sequence.model.version):
            raise _no_start(key)
        if states:
            raise invalid(
                f"inference request for sequence {key[2]} to model '{key[1]}' has states "
                f"({', '.join(states)}), which only the first request of a sequence may have"
            )
        return sequence

    @contextlib.contextmanager
    def _used(self, key: _Key, sequence: _OpenSequence, *, is_first: bool) -> Iterator[None]:
        """Keeps the sequence open while a request of it is in flight, unless its device failed."""
        sequence.enter()
        try:
            yield
        except BaseException as error:
            sequence.has_failed_first |= is_first
            if is_first or isinstance(error, DeviceError):
                self._end(key, sequence)
            raise
        finally:
            sequence.leave(self._now_ns())

    def _end(self, key: _Key, sequence: _OpenSequence) -> None:
        if self._open.get(key) is sequence:
            del self._open[key]
            self._counts[key[0]] -= 1
            if not self._counts[key[0]]:
                del self._counts[key[0]]
        sequence.end()
        self._on_end()

    def end_idle(self) -> int | None:
        """Ends sequences that are idle too long.

        Returns when the next may be due, in clock nanoseconds. Returns None if no sequence is left.
        """
        now_ns, next_ns = self._now_ns(), None
        for key, sequence in list(self._open.items()):
            due_ns = sequence.due_ns(now_ns)
            if due_ns <= now_ns:
                self._end(key, sequence)
            else:
                next_ns = due_ns if next_ns is None else min(due_ns, next_ns)
        return next_ns

    async def end_idle_forever(self) -> None:
        """Ends idle sequences whenever one is due, as a task of the server."""
        while True:
            self._changed = anyio.Event()
            next_ns = self.end_idle()
            left_s = math.inf if next_ns is None else (next_ns - self._now_ns()) * 1e-9
            with anyio.move_on_after(left_s):
                await self._changed.wait()

    def close_model(self, name: str) -> None:
        """End the sequences of a model, of all its versions; requests in flight are answered."""
        for key, sequence in list(self._open.items()):
            if key[1] == name:
                self._end(key, sequence)

    def close(self) -> None:
        """End all sequences."""
        for key, sequence in list(self._open.items()):
            self._end(key, sequence)


class _OpenSequence:
    """One sequence from its first request to its end."""

    def __init__(self, model: ServedModel, states: Mapping[str, Array]) -> None:
        model.enter()
        self.model = model
        self._states = states
        self.line = anyio.Lock()
        """The first request has it until it is answered; the others pass in their order."""
        self.has_failed_first = False
        self._burst: Burst[Any] | None = None
        self._in_flight = 0
        self._is_ended = self._is_closed = False
        self._last_ns = 0

    async def open(self) -> None:
        """Opens the sequence's burst, for the first request."""
        burst: Burst[Any] = self.model.net.burst(depth=_DEPTH, on_full="refuse")
        await burst.__aenter__()
        try:
            if self._states:
                await burst.load_state(self._states)
        except BaseException:
            burst.close()
            raise
        self._burst = burst

    async def turn(self, deadline: Deadline | None) -> None:
        """Wait until the first request is answered, and those that came before have gone on.

        Raises MissedDeadline where the deadline passes before.
        """
        with anyio.move_on_after(remaining_s(deadline)):
            async with self.line:
                return
        if deadline is not None:
            await until_passed(deadline)
        raise _late()

    async def run(
        self,
        request: InferRequest,
        arrays: Sequence[Array],
        deadline: Deadline | None,
        priority: Priority,
    ) -> Sequence[Array]:
        """Returns the outputs, and the states if the request exports them.

        Raises what a burst raises.
        """
        burst = self._burst
        if burst is None:
            raise BadState(f"a sequence of model {self.model.name!r} is not open")
        value = await burst(*arrays, deadline=deadline, priority=priority)
        found = self.model.listed(value)
        if request.parameters.get(EXPORT_STATE) is True:
            exported = await burst.state()
            found = [*found, *(exported[state.name] for state in self.model.states)]
        return found

    def enter(self) -> None:
        """Counts a request in."""
        self._in_flight += 1

    def leave(self, now_ns: int) -> None:
        """Counts a request out, and notes when."""
        self._in_flight -= 1
        self._last_ns = now_ns
        self._look()

    def end(self) -> None:
        """Closes the burst once no request of the sequence is in flight."""
        self._is_ended = True
        self._look()

    def due_ns(self, now_ns: int) -> int:
        """Returns when the sequence is idle for too long if no request comes before."""
        idle_ns = int(self.model.settings.sequences.idle_s * 1e9)
        return idle_ns + (now_ns if self._in_flight else self._last_ns)

    def _look(self) -> None:
        if not self._is_ended or self._in_flight or self._is_closed:
            return
        self._is_closed = True
        if self._burst is not None:
            self._burst.close()
        self.model.leave()


async def until_set(event: anyio.Event, deadline: Deadline | None) -> None:
    """Wait for an event; raises MissedDeadline where the deadline passes before it is set."""
    if not await set_in_time(event, deadline):
        raise _late()


def _late() -> MissedDeadlinePersistent:
    text = "the deadline passed while the request waited for the one before it"
    return because("queue", MissedDeadlinePersistent(text))


def _no_start(key: _Key) -> ServingError:
    return invalid(
        f"inference request for sequence {key[2]} to model '{key[1]}' must specify the START flag "
        "on the first request of the sequence"
    )
