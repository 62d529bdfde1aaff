"""The first step of a compilation, on one thread: whose model it is, and what may answer first.

A loop that hands work to a thread and hears of its end pays for that each time, about as much as a
small network takes to be loaded. So all that needs nothing of the loop is one piece of work. It
stops behind the digest where something else is asked before: a cache, or networks of the same model
(`sharing`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from nnasync._core.compilation import CompileSpec, fingerprints
from nnasync._core.deferred import deferred
from nnasync._core.runtime.compile_request import Begin, ModelSource
from nnasync._core.runtime.sharing import Claim

if TYPE_CHECKING:
    from nnasync._core.compilation import first_answer
    from nnasync._core.compilation.first_answer import Begun
else:
    first_answer = deferred("nnasync._core.compilation.first_answer")


def begin_compilation(
    source: ModelSource, spec: CompileSpec, claim: Claim, beside: Begin
) -> tuple[CompileSpec, Begun | None]:
    """The spec with the digests of model and drivers; and the plan that answers first, if it may.

    `beside` has another thread do something. Raises OSError where the file cannot be read, and what
    `first_answer` raises.
    """
    found = msgspec.structs.replace(
        spec,
        code=fingerprints(spec.devices),
        fingerprint=source.digest(beside if spec.wants_whole else None),
    )
    if spec.cache_dir is None and first_answer.may_follow(found) and claim.take(found):
        return found, first_answer.begin(found.with_fallbacks())
    return found, None
