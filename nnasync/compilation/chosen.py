"""What a compilation came to: the contender that was chosen, made into something that runs.

It may be a first stage: then the compilation says what remains to be done, which the runtime does
while the network is in use already.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Awaitable, Callable

import anyio
import anyio.to_thread
import msgspec

from nnasync.compilation.contenders import (
    Choosing,
    Contender,
    EngineContender,
    PlanContender,
    Wish,
)
from nnasync.compilation.recalling import Found, Recall
from nnasync.compilation.report import Compilation, Report
from nnasync.engine import EnginePreparedModel
from nnasync.engine.staged import StagedPlan
from nnasync.errors import GeneralFailure

__all__ = ["NO_CACHE", "Chosen", "recalled"]

_PATIENCE_S = 0.3

NO_CACHE = "no cache: no cache_dir was given"


class Chosen:
    """A contender that was chosen and is ready, with the report of why."""

    def __init__(
        self,
        choosing: Choosing,
        wish: Wish,
        report: Report,
        staged: StagedPlan | None = None,
    ) -> None:
        """`staged` is the contender's plan where another one may follow."""
        self._choosing = choosing
        self._wish = wish
        self._report = report
        self._staged = staged

    def compilation(
        self,
        best: Callable[[], Awaitable[Chosen]] | None = None,
        *,
        patience_s: float = math.inf,
    ) -> Compilation:
        """What runs; `best` makes what is to follow, where something may.

        That begins when the first plan was used enough, or has been there for `patience_s`.
        """
        contender, median_ns = self._choosing.contender, self._choosing.median_ns
        prepared = contender.finish()
        if isinstance(prepared, EnginePreparedModel) and median_ns is not None:
            prepared.estimate.observe(int(median_ns))
        later = None
        if best is not None and self._staged is not None:
            later = functools.partial(_follow, self._staged, best, patience_s)
        compilation = Compilation(self._wish.model, prepared, contender.device, self._report, later)
        fallbacks = self._wish.fallbacks
        if fallbacks is None:
            return compilation
        parts = self._report.partitions
        operations = sorted({index for part in parts for index in part.operations})
        told = functools.partial(fallbacks.told, operations)
        return msgspec.structs.replace(compilation, fallbacks=told)

    async def take_over(self, staged: StagedPlan) -> Report:
        """Have executions run this contender's plan from now on."""
        contender = self._choosing.contender
        if not isinstance(contender, PlanContender):
            raise GeneralFailure(f"{contender.name} is in another process: the first plan stays")
        await anyio.to_thread.run_sync(staged.replace, contender.plan())
        return self._report


async def _follow(
    staged: StagedPlan, best: Callable[[], Awaitable[Chosen]], patience_s: float
) -> Report:
    """Wait for the first plan to be used enough, make the best one, and bring it in."""
    with anyio.move_on_after(patience_s):
        await staged.ripe
    return await (await best()).take_over(staged)


def recalled(
    found: Found,
    recall: Recall,
    choose: Callable[[], Awaitable[Chosen]],
) -> Compilation:
    """What was found in the cache; where the best stage cannot be loaded `choose` makes it anew."""
    manifest, following = found.manifest, found.manifest.stages[found.stage + 1 :]

    def chosen(contender: Contender, number: int, staged: StagedPlan | None) -> Chosen:
        reason = "hit"
        if staged is not None:
            reason = f"hit; {following[0].choice.parts[0].device} follows when it is loaded"
        report = Report(
            partitions=manifest.stages[number].partitions,
            candidates=manifest.candidates,
            rejections=manifest.rejections,
            cache_hit=True,
            cache_reason=reason,
            pin=manifest.pin,
        )
        choosing = Choosing(contender, manifest.reason, manifest.stages[number].median_ns)
        return Chosen(choosing, found.wish, report, staged)

    async def best() -> Chosen:
        contender = await recall.load(following[0], found.wish, None)
        if contender is None:
            return await choose()
        return chosen(contender, found.stage + 1, None)

    staged = None
    if following and isinstance(found.contender, EngineContender):
        staged = found.contender.stage(ripe_after=1)
    return chosen(found.contender, found.stage, staged).compilation(best, patience_s=_PATIENCE_S)
