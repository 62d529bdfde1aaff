"""Networks of one runtime that were compiled from the same model share one plan.

A second compilation on the same terms, whatever its priority, gets another prepared model over the
plan of a network that is there: neither a contest nor memory for weights is needed again. Each
network is closed on its own, and its executions have its own priority. Compilations on the same
terms wait for one another, so that those that are asked for at once share as well.

A device that does not share what it prepared (`SharingDevice`) prepares the model again.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import msgspec

from nnasync._core.clock import Deadline, Watchdog, now_ns
from nnasync._core.compilation import Compilation, CompileSpec, PlanTerms
from nnasync._core.execution import Net
from nnasync._core.execution.depth_limit import DepthLimit
from nnasync.device import Device, PreparedModel, SharingDevice
from nnasync.errors import MissedDeadlinePersistent, MissedDeadlineTransient, NNError
from nnasync.hal import Priority
from nnasync.scheduler import at_ns

logger = logging.getLogger(__name__)

T = TypeVar("T")
Share = Callable[[PreparedModel, Priority], Awaitable[PreparedModel]]
Compile = Callable[[], Awaitable[Compilation]]

_FRESH_NS = 600_000_000_000
"""The outcome of a contest that was held again counts for all networks of its plan for so long."""


class _Terms:
    """Compilations on the same terms: the networks that came of them, and whose turn it is."""

    def __init__(self, devices: Sequence[Device], watchdog: Watchdog) -> None:
        self.devices = devices
        """Kept, for the key has no more of them than their identities."""
        self.nets: weakref.WeakSet[Net] = weakref.WeakSet()
        self.turn = DepthLimit(1, "wait", watchdog)
        self.users = 0
        self.held_at_ns = -_FRESH_NS


class Claim:
    """The first turn on terms that are only found out on a thread; valid until it is ended."""

    def __init__(self, all_terms: dict[object, _Terms], watchdog: Watchdog) -> None:
        self.terms: _Terms | None = None
        """Those on which the turn was taken."""
        self._all = all_terms
        self._watchdog = watchdog
        self._lock = threading.Lock()
        self._is_over = False

    def take(self, spec: CompileSpec) -> bool:
        """Takes the turn if nobody compiles or has compiled on these terms; from any thread."""
        terms = _Terms(spec.devices, self._watchdog)
        terms.users = 1
        terms.turn.enter()
        with self._lock:
            if self._is_over or self._all.setdefault(_key(spec), terms) is not terms:
                return False
            self.terms = terms
            return True

    def end(self) -> None:
        """Gives the turn to the next; on the loop."""
        with self._lock:
            self._is_over = True
        if self.terms is not None:
            self.terms.users -= 1
            self.terms.turn.leave()


class SharedPlans:
    """The plans of one runtime that its networks share; to be used on its loop."""

    def __init__(self, watchdog: Watchdog) -> None:
        self._watchdog = watchdog
        self._terms: dict[object, _Terms] = {}

    def join(self, spec: CompileSpec, net: Net) -> None:
        """Notes a network that was compiled to a spec."""
        self._terms.setdefault(_key(spec), _Terms(spec.devices, self._watchdog)).nets.add(net)

    @contextlib.contextmanager
    def claim(self) -> Iterator[Claim]:
        """Yields a claim by which a thread takes the first turn before the loop knows the terms."""
        self._tidy()
        claim = Claim(self._terms, self._watchdog)
        try:
            yield claim
        finally:
            claim.end()
            self._tidy()

    async def compiled(
        self, spec: CompileSpec, compile: Compile, claim: Claim | None = None
    ) -> Compilation:
        """Returns a compilation over a plan that is there, or else a new one.

        Who has taken the first turn with its `claim` does not wait. Raises what `compile` raises,
        MissedDeadlineTransient where another compilation of the same model takes too long.
        """
        async with self._turn(spec, claim) as terms:
            for net in list(terms.nets):
                shared = await _shared(net, spec.priority)
                if shared is not None:
                    return shared
            compilation = await compile()
        if compilation.later is None:
            return compilation
        return msgspec.structs.replace(compilation, later=_Once(compilation.later, self._watchdog))

    async def compiled_again(self, spec: CompileSpec, compile: Compile, pin: str) -> Compilation:
        """Holds another contest for a network with this pin and those that share its plan.

        Returns the outcome, and raises what `compile` raises.
        """
        async with self._turn(spec) as terms:
            if now_ns() - terms.held_at_ns < _FRESH_NS:
                others = sorted(terms.nets, key=lambda net: net._report.pin == pin)
                for other in others:
                    shared = await _shared(other, spec.priority)
                    if shared is not None:
                        return shared
            compilation = await compile()
            terms.held_at_ns = now_ns()
            return compilation

    @contextlib.asynccontextmanager
    async def _turn(self, spec: CompileSpec, claim: Claim | None = None) -> AsyncIterator[_Terms]:
        """Holds the turn of a compilation: one at a time on the same terms."""
        if claim is not None and claim.terms is not None:
            yield claim.terms
            return
        key = _key(spec)
        terms = self._terms.setdefault(key, _Terms(spec.devices, self._watchdog))
        terms.users += 1
        try:
            async with _alone(terms.turn, spec.deadline):
                yield terms
        finally:
            terms.users -= 1
            self._tidy()

    def _tidy(self) -> None:
        """Forgets terms whose networks are all closed, and so have no plan."""
        for key, terms in list(self._terms.items()):
            if not terms.users and all(net._closed for net in terms.nets):
                del self._terms[key]


class _Once(Generic[T]):
    """Brings the better plan in once for all networks of a plan: who comes first does it.

    If that one is cancelled, since its network is closed, another one begins again.
    """

    def __init__(self, later: Callable[[], Awaitable[T]], watchdog: Watchdog) -> None:
        self._later = later
        self._limit = DepthLimit(1, "wait", watchdog)
        self._found: list[T | Exception] = []

    async def __call__(self) -> T:
        async with _alone(self._limit):
            if not self._found:
                try:
                    self._found.append(await self._later())
                except Exception as error:
                    self._found.append(error)
            (found,) = self._found
            if isinstance(found, Exception):
                raise found
            return found


@runtime_checkable
class _WithStandby(Protocol):
    """A prepared model of a device, and one of the device that stands by for it."""

    async def shared_by(self, share: Share, priority: Priority) -> PreparedModel: ...


@contextlib.asynccontextmanager
async def _alone(turn: DepthLimit, deadline: Deadline | None = None) -> AsyncIterator[None]:
    """Holds the turn while the block runs; raises MissedDeadlineTransient if that is too late."""
    if turn.is_full:
        try:
            await turn.wait(at_ns(deadline))
        except MissedDeadlinePersistent:
            text = "the deadline passed while the same model was compiled for another network"
            raise MissedDeadlineTransient(text) from None
    turn.enter()
    try:
        yield
    finally:
        turn.leave()


async def _shared(net: Net, priority: Priority) -> Compilation | None:
    """Returns a compilation over a network's plan; None where that cannot be shared, or is gone."""
    compilation, prepared = net._compilation, net._prepared
    device: Any = compilation.device
    if net._closed or not isinstance(device, SharingDevice):
        return None
    try:
        twin: PreparedModel
        if isinstance(prepared, _WithStandby):
            twin = await prepared.shared_by(device.share, priority)
        else:
            twin = await device.share(prepared, priority)
    except NNError as error:
        logger.debug("%s does not share %r: %s", device.name, net.model.name, error)
        return None
    return msgspec.structs.replace(compilation, prepared=twin, report=net._report)


def _key(spec: PlanTerms) -> object:
    """Returns a key that is equal for compilations that share a plan."""
    terms = {name: getattr(spec, name) for name in PlanTerms.__struct_fields__}
    terms["devices"] = tuple(map(id, spec.devices))
    terms["reference"] = id(spec.reference)
    terms["cache_dir"] = None if spec.cache_dir is None else os.fspath(spec.cache_dir)
    return tuple(terms.values())
