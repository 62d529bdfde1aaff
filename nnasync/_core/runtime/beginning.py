"""The first step of a compilation, on one thread: whose model it is, and what may answer first.

A loop that hands work to a thread and hears of its end pays for that each time, about as much as a
small network takes to be loaded. So all that needs nothing of the loop is one piece of work. It
stops behind the digest where something else is asked before: a cache, or networks of the same model
(`sharing`). The memory of the first call is bound there, too; that of other networks is bound by
another piece of work.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import msgspec

from nnasync._core.clock import Deadline
from nnasync._core.compilation import CompileSpec, fingerprints
from nnasync._core.deferred import deferred
from nnasync._core.execution import Net
from nnasync._core.execution.ahead import Ahead, bound_ahead
from nnasync._core.runtime.compile_request import Begin, ModelSource
from nnasync._core.runtime.sharing import Claim
from nnasync._core.workers.helper_threads import HelperThreads
from nnasync.errors import MissedDeadline

if TYPE_CHECKING:
    from nnasync._core.compilation import first_answer
    from nnasync._core.compilation.first_answer import Begun
else:
    first_answer = deferred("nnasync._core.compilation.first_answer")


class Beginning(msgspec.Struct, frozen=True):
    """The spec with the digests of model and drivers, and the first plan, if one may answer.

    ahead: memory for its first call.
    """

    spec: CompileSpec
    begun: Begun | None = None
    ahead: Ahead | None = None


def begin_compilation(
    source: ModelSource, spec: CompileSpec, claim: Claim, beside: Begin
) -> Beginning:
    """Digests model and drivers, and makes the plan that answers first, if one may.

    `beside` has another thread do something. Raises OSError where the file cannot be read, and what
    `first_answer` raises.
    """
    found = msgspec.structs.replace(
        spec,
        code=fingerprints(spec.devices),
        fingerprint=source.digest(beside if spec.wants_whole else None),
    )
    if spec.cache_dir is None and first_answer.may_follow(found) and claim.take(found):
        begun = first_answer.begin(found.with_fallbacks())
        return Beginning(found, begun, _first_call(begun))
    return Beginning(found)


def _first_call(begun: Begun) -> Ahead | None:
    """Binds memory for the first call of a plan that a better one may follow; None for others."""
    chosen = begun.chosen
    if chosen is None or chosen.staged is None or chosen.prepared is None:
        return None
    return bound_ahead(chosen.contender.spec.model, chosen.prepared)


async def get_ready(
    net: Net[Any], ahead: Ahead | None, helper_threads: HelperThreads, until: Deadline
) -> None:
    """Prepares the memory of a network's first call; gives up at the deadline."""
    if ahead is not None and ahead.prepared is net._prepared:
        net._slots.adopt(ahead.slot)
        return
    with contextlib.suppress(MissedDeadline):
        await helper_threads.run(net._get_ready, net.model.name or "a network", until)
