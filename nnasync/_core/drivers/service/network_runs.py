"""One execution on another machine: its inputs are sent, its outputs come with the answer.

It needs no event loop: answers come on the thread of the link. What nobody waits for any more is
cancelled there, and nothing is written to its memory from then on.
"""

from __future__ import annotations

from collections.abc import Callable

from nnasync._core.clock import now_ns
from nnasync._core.drivers.service.link import LATE_NS, ControlCall, Link
from nnasync._core.drivers.service.network_requests import Parcel
from nnasync._core.drivers.service.network_source import NetworkPeer
from nnasync._core.wire.framing import Landing
from nnasync._core.wire.messages import decode
from nnasync._core.wire.network_connection import NetworkConnection
from nnasync._core.wire.network_messages import Run, travelling
from nnasync._core.workers import contained
from nnasync.burst import Outcome
from nnasync.errors import GeneralFailure, MissedDeadlineTransient
from nnasync.fences import Fence
from nnasync.hal import NEVER_NS, ExecutionConfig, ExecutionResult


class NetworkRun:
    """One execution, from when it is sent; `fence` is settled with its answer."""

    def __init__(self, link: Link, prepared: int, parcel: Parcel, config: ExecutionConfig) -> None:
        """Raises what keeps it from being sent."""
        self._link = link
        peer = link.peer
        trip_ns = peer.trip_ns if isinstance(peer, NetworkPeer) else 0
        self._landings = peer.landings if isinstance(peer, NetworkPeer) else {}
        self._number = 0
        given = [each.view("the memory of an input", writable=False) for each in parcel.inputs]
        wanted = [each.view("the memory of an output", writable=True) for each in parcel.outputs]
        self._landing = Landing(wanted)

        def run(number: int) -> Run:
            self._number = number
            self._landings[number] = self._landing
            return Run(number, prepared, parcel.form, travelling(config, now_ns(), trip_ns))

        try:
            self.call: ControlCall = link.begin(run, given)
        except BaseException:
            self._landings.pop(self._number, None)
            raise
        self.call.fence.add_callback(lambda _: self._landings.pop(self._number, None))

    @property
    def fence(self) -> Fence:
        """Settled with the answer."""
        return self.call.fence

    def result(self) -> ExecutionResult:
        """Returns the device's answer, once the fence is signaled."""
        result: ExecutionResult = decode(self.call.value, ExecutionResult)
        if self._landing.views and not self._landing.is_filled:
            raise GeneralFailure(f"{self._link.who} answered without the values of the outputs")
        return result

    def outcome(self) -> Outcome:
        """Returns the device's answer, or the error that the run ended with."""
        try:
            return self.result() if self.fence.error is None else _typed(self.fence.error)
        except Exception as error:
            return _typed(error)

    def give_up(self) -> None:
        """Have nothing written any more, and tell the service; from any thread."""
        self._landings.pop(self._number, None)
        connection = self._link.connection
        if isinstance(connection, NetworkConnection):
            connection.abandon(self._landing)
        self._link.give_up(self.call)

    def end(self, error: Exception) -> None:
        """Give it up, with this as its outcome unless it has one."""
        if self.fence.fail(error):
            self.give_up()

    def limit(self, deadline_ns: int) -> None:
        """End it soon after the deadline if the service does not; raises ResourceExhausted."""
        if deadline_ns == NEVER_NS:
            return
        text = f"{self._link.who} did not answer by the deadline"
        alarm = self._link.alarm(
            deadline_ns + LATE_NS, lambda: self.end(MissedDeadlineTransient(text))
        )
        if alarm is not None:
            self.fence.add_callback(lambda _: alarm.disarm())


def started(
    link: Link,
    prepared: int,
    parcel: Parcel,
    config: ExecutionConfig,
    done: Callable[[NetworkRun | None, Outcome], object],
) -> NetworkRun | None:
    """Begin an execution, from any thread; `done` hears what comes of it, on any thread.

    Nothing is raised; None where it could not begin.
    """
    try:
        link.check_time(config.deadline_ns)
        run = NetworkRun(link, prepared, parcel, config)
    except Exception as error:
        done(None, _typed(error))
        return None
    run.fence.add_callback(lambda _: done(run, run.outcome()))
    try:
        run.limit(config.deadline_ns)
    except Exception as error:
        run.end(error)
    return run


def _typed(error: Exception) -> Outcome:
    return contained(error, "an execution on another machine")
