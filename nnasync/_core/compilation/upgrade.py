"""A better plan follows: what runs at once, and what takes its place when it is there.

A contender that was chosen becomes a `Compilation`. Its `later` is there in three cases: the first
device that took the model answers until the choice is made; a plan out of the cache that is loaded
quickly answers until the best one is; a plan of several threads has its form with one loaded when
the first answers are out. The runtime awaits `later` while the network is in use (`bring_in`). How
calls change from one plan to the next is told in `plans.staged` and `plans.adaptive`.
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Protocol

import msgspec

from nnasync._core.clock import Watchdog, now_ns
from nnasync._core.compilation.contenders import (
    Chosen,
    Contender,
    EngineContender,
    PlanContender,
)
from nnasync._core.compilation.report import (
    Better,
    Compilation,
    Rejection,
    Report,
    devices_of,
)
from nnasync._core.compilation.whole_form import ends_of
from nnasync._core.engine_device import EngineDevice, EnginePreparedModel
from nnasync._core.plans.adaptive import AdaptivePlan
from nnasync._core.plans.limited import limited
from nnasync._core.plans.staged import StagedPlan
from nnasync._core.wakeup import yield_now
from nnasync.errors import GeneralFailure
from nnasync.fences import Fence
from nnasync.hal import Model
from nnasync.tracing import vlog

if TYPE_CHECKING:
    from nnasync._core.compilation.kept import KeptCompilation, KeptStage

logger = logging.getLogger(__name__)

PATIENCE_S = 0.3
"""How long a network is there before a better plan is made without waiting for its first use."""

NO_CACHE = "no cache: no cache_dir was given"


def compilation_of(
    chosen: Chosen,
    best: Callable[[], Awaitable[Chosen]] | None = None,
    *,
    patience_s: float = math.inf,
) -> Compilation:
    """Returns the compilation of a plan; `best` makes the plan that follows it, where one may.

    That begins when the first plan was used enough, or has been there for `patience_s`.
    """
    contender, median_ns = chosen.contender, chosen.median_ns
    prepared = contender.finish() if chosen.prepared is None else chosen.prepared
    if isinstance(prepared, EnginePreparedModel) and median_ns is not None:
        prepared.estimate.observe(int(median_ns))
    later = None
    if best is not None and isinstance(prepared, EnginePreparedModel):
        later = _follower(chosen, prepared, best, patience_s)
    spec, report = contender.spec, chosen.report
    compilation = Compilation(
        spec.model, prepared, contender.device, report, later, run_ns=median_ns
    )
    if spec.fallbacks is None:
        return compilation
    operations = sorted({index for part in report.partitions for index in part.operations})
    told = functools.partial(spec.fallbacks.of_operations, operations)
    return msgspec.structs.replace(compilation, fallbacks=told)


async def _take_over(
    chosen: Chosen, staged: StagedPlan, first: Contender, prepared: EnginePreparedModel
) -> Better:
    """Have executions run the plan of what was chosen, unless it is the first once more.

    With another form beside it, for runs beside others, it is not the same.
    """
    contender = chosen.contender
    model = contender.spec.model
    better = Better(model, chosen.report, chosen.median_ns)
    if ends_of(first.spec.model) != ends_of(model):
        raise GeneralFailure("translated, it has other inputs and outputs than the file")
    is_same = contender.choice == first.choice
    if is_same and isinstance(contender, EngineContender) and len(contender.shares()) == 1:
        await contender.discard()
        return better
    if not isinstance(contender, PlanContender):
        raise GeneralFailure(f"{contender.name} is in another process: the first plan stays")
    terms = contender.terms()
    plan = limited(contender.plan(), terms.concurrency)
    await contender.spec.on_thread(
        lambda: staged.replace(plan, lambda: prepared.change_terms(terms)),
        "nnasync-taking-over",
        enters_engine=True,
    )
    return better


def _follower(
    first: Chosen,
    prepared: EnginePreparedModel,
    best: Callable[[], Awaitable[Chosen]],
    patience_s: float,
) -> Callable[[], Awaitable[Better]] | None:
    """Returns a function that has the best plan take over once the first was used enough.

    It is None where the first plan cannot be replaced.
    """
    staged, device = first.staged, first.contender.device
    if staged is None or not isinstance(device, EngineDevice):
        return None
    watchdog = device.workers.watchdog

    async def follow() -> Better:
        await _at_last(staged.ripe, patience_s, watchdog)
        await yield_now()  # Whoever awaits the run that made it ripe goes on first.
        try:
            return await _take_over(await best(), staged, first.contender, prepared)
        finally:
            staged.finish()
            prepared.leave_stages()

    return follow


async def _at_last(fence: Fence, patience_s: float, watchdog: Watchdog) -> None:
    """Waits for a fence, which is signaled here when `patience_s` is over."""
    if patience_s == math.inf:
        await fence
        return
    alarm = watchdog.arm(now_ns() + int(patience_s * 1e9), fence.signal)
    try:
        await fence
    finally:
        alarm.disarm()


def found_again(
    kept: KeptCompilation,
    first: Contender,
    choose: Callable[[], Awaitable[Chosen]],
) -> Compilation:
    """Returns the compilation that was found in the cache.

    Where its best stage cannot be loaded, `choose` makes that anew.

    The first answer does not wait for what comes after it: a plan that is faster but takes longer
    to load, or the form of a plan for runs beside others.
    """
    stage, *following = kept.stages

    async def best() -> Chosen:
        contender = await kept.load(following[0])
        if contender is None:
            return await choose()
        if isinstance(contender, EngineContender) and following[0].narrow is not None:
            await _complete(contender.narrow_later(), contender, following[0], kept)
        return kept.chosen(contender, following[0])

    if not isinstance(first, EngineContender):
        return compilation_of(kept.chosen(first, stage))
    if following:
        reason = f"hit; {following[0].choice.parts[0].device} follows when it is loaded"
        staged = first.stage(ripe_after=1)
        chosen = msgspec.structs.replace(kept.chosen(first, stage, reason), staged=staged)
        return compilation_of(chosen, best, patience_s=PATIENCE_S)
    if stage.narrow is None:
        return compilation_of(kept.chosen(first, stage))
    plan = first.narrow_later()
    compilation = compilation_of(kept.chosen(first, stage))

    async def later() -> Better:
        await _at_last(Fence(), PATIENCE_S, first.engine_device.workers.watchdog)
        await _complete(plan, first, stage, kept)
        return Better(compilation.model, compilation.report, compilation.run_ns)

    return msgspec.structs.replace(compilation, later=later)


async def _complete(
    plan: AdaptivePlan, contender: EngineContender, stage: KeptStage, kept: KeptCompilation
) -> None:
    """Load the single-threaded form of a plan; without it busy runs use the wide form too."""
    narrow = await kept.narrow(stage, contender.engine_device)
    if narrow is None:
        logger.info("%s has lost its plan for runs beside others", contender.name)
    else:
        plan.complete(narrow)


class Upgradable(Protocol):
    """The part of a network that bringing in a better plan needs."""

    @property
    def _closed(self) -> bool:
        """Returns whether the network was closed, as all are when their runtime is."""

    def report(self) -> Report:
        """Returns the report of where the network runs, and why."""

    @property
    def model(self) -> Model:
        """Returns the model that runs."""

    def _improved(self, report: Report, model: Model | None = None) -> None:
        """Notes the report of the best plan, which runs from now on, or of its failure.

        `model` is given if it has another form than the one before.
        """


async def bring_in(
    network: Callable[[], Upgradable | None],
    later: Callable[[], Awaitable[Better]],
) -> Better | None:
    """Bring the best plan of a network in while the first is in use, as long as it is there.

    None where that failed: the first plan stays, and the log and the report say why, unless the
    network was closed: what fails then is that there is no runtime any more.
    """
    better, failure = None, ""
    try:
        better = await later()
    except Exception as error:
        failure = f"{type(error).__name__}: {error}"
    net = network()
    if net is None or (better is None and net._closed):
        return None
    name = net.model.name
    if better is None:
        logger.warning("network %r stays with its first plan: %s", name, failure)
        report = net.report()
        told = Rejection(devices_of(report), -1, f"stays with the first plan: {failure}")
        net._improved(msgspec.structs.replace(report, rejections=(*report.rejections, told)))
        return None
    net._improved(better.report, better.model)
    tell(name, better.report)
    logger.info("network %r runs on %s from now on: %s", name, *_where(better.report))
    return better


def _where(report: Report) -> tuple[str, str]:
    """Returns the names of the devices that run a network, and why these were chosen."""
    return devices_of(report), "; ".join(dict.fromkeys(each.reason for each in report.partitions))


def tell(name: str, report: Report) -> None:
    """Write VLOG lines: candidates, rejections, the chosen devices, and the result of the cache."""
    for line in report.candidates:
        vlog.compilation("%s: %s, %s: %s", name, line.device, line.lowering, line.verdict)
    for refusal in report.rejections:
        where = f"operation {refusal.operation}" if refusal.operation >= 0 else "the model"
        vlog.compilation("%s: %s does not run %s: %s", name, refusal.device, where, refusal.reason)
    for part in report.partitions:
        count = len(part.operations)
        vlog.compilation("%s: %s runs %d operations: %s", name, part.device, count, part.reason)
    vlog.compilation("%s: cache: %s", name, report.cache_reason)
