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
from typing import Protocol

import msgspec

from nnasync._core.clock import Watchdog, now_ns
from nnasync._core.compilation.contenders import (
    Choosing,
    Contender,
    EngineContender,
    PlanContender,
)
from nnasync._core.compilation.manifest import ManifestStage
from nnasync._core.compilation.recalling import Found, Recall
from nnasync._core.compilation.report import (
    Better,
    Compilation,
    Rejection,
    Report,
    devices_of,
)
from nnasync._core.compilation.spec import CompileSpec
from nnasync._core.engine_device import EngineDevice, EnginePreparedModel
from nnasync._core.plans.adaptive import AdaptivePlan
from nnasync._core.plans.staged import StagedPlan
from nnasync._core.wakeup import in_thread
from nnasync.device import PreparedModel
from nnasync.errors import GeneralFailure
from nnasync.fences import Fence
from nnasync.hal import Model
from nnasync.tracing import vlog

logger = logging.getLogger(__name__)

PATIENCE_S = 0.3
"""How long a network is there before a better plan is made without waiting for its first use."""

NO_CACHE = "no cache: no cache_dir was given"


class Chosen:
    """A contender that was chosen and is ready, with the report of why."""

    def __init__(
        self,
        choosing: Choosing,
        spec: CompileSpec,
        report: Report,
        staged: StagedPlan | None = None,
    ) -> None:
        """`staged` is the contender's plan where another one may follow."""
        self._choosing = choosing
        self._spec = spec
        self._report = report
        self._staged = staged

    @property
    def told(self) -> str:
        """Who runs the model first, and whether anybody may follow."""
        name = self._choosing.contender.name
        return f"{name} answers first; {'a better plan may follow' if self._staged else 'it stays'}"

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
        device = contender.device
        if best is not None and self._staged is not None and isinstance(device, EngineDevice):
            watchdog = device.workers.watchdog
            later = functools.partial(
                _follow, self._staged, contender, prepared, best, patience_s, watchdog
            )
        compilation = Compilation(
            self._spec.model, prepared, device, self._report, later, run_ns=median_ns
        )
        fallbacks = self._spec.fallbacks
        if fallbacks is None:
            return compilation
        parts = self._report.partitions
        operations = sorted({index for part in parts for index in part.operations})
        told = functools.partial(fallbacks.of_operations, operations)
        return msgspec.structs.replace(compilation, fallbacks=told)

    async def take_over(self, staged: StagedPlan, first: Contender) -> Better:
        """Have executions run this contender's plan from now on, unless it is the first once more.

        With another form beside it, for runs beside others, it is not the same.
        """
        contender = self._choosing.contender
        better = Better(self._spec.model, self._report, self._choosing.median_ns)
        if _ends(first.spec.model) != _ends(self._spec.model):
            raise GeneralFailure("translated, it has other inputs and outputs than the file")
        is_same = contender.choice == first.choice
        if is_same and isinstance(contender, EngineContender) and len(contender.plans()) == 1:
            await contender.discard()
            return better
        if not isinstance(contender, PlanContender):
            raise GeneralFailure(f"{contender.name} is in another process: the first plan stays")
        plan = contender.plan()
        await in_thread(lambda: staged.replace(plan), "nnasync-taking-over", enters_engine=True)
        return better


def _ends(model: Model) -> list[tuple[object, ...]]:
    """What callers see of the inputs and outputs of a model."""
    main = model.main
    ends = [main.operands[index] for index in (*main.input_indexes, *main.output_indexes)]
    return [(each.name, each.type, each.dimensions, each.scale, each.zero_point) for each in ends]


async def _follow(
    staged: StagedPlan,
    first: Contender,
    prepared: PreparedModel,
    best: Callable[[], Awaitable[Chosen]],
    patience_s: float,
    watchdog: Watchdog,
) -> Better:
    """Wait for the first plan to be used enough, make the best one, and bring it in."""
    await _at_last(staged.ripe, patience_s, watchdog)
    try:
        return await (await best()).take_over(staged, first)
    finally:
        staged.finish()
        if isinstance(prepared, EnginePreparedModel):
            prepared.leave_stages()


async def _at_last(fence: Fence, patience_s: float, watchdog: Watchdog) -> None:
    """Wait for a fence; it is signaled when the patience is over."""
    if patience_s == math.inf:
        await fence
        return
    alarm = watchdog.arm(now_ns() + int(patience_s * 1e9), fence.signal)
    try:
        await fence
    finally:
        alarm.disarm()


def recalled(
    found: Found,
    recall: Recall,
    choose: Callable[[], Awaitable[Chosen]],
) -> Compilation:
    """What was found in the cache; where the best stage cannot be loaded `choose` makes it anew.

    The first answer does not wait for what comes after it: a plan that is faster but takes longer
    to load, or the form of a plan for runs beside others.
    """
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
        return Chosen(choosing, found.spec, report, staged)

    async def best() -> Chosen:
        contender = await recall.load(following[0], found.spec, None)
        if contender is None:
            return await choose()
        if isinstance(contender, EngineContender) and following[0].narrow is not None:
            await _complete(contender.narrow_later(), contender, following[0], recall)
        return chosen(contender, found.stage + 1, None)

    first, stage = found.contender, manifest.stages[found.stage]
    if not isinstance(first, EngineContender):
        return chosen(first, found.stage, None).compilation()
    if following:
        staged = first.stage(ripe_after=1)
        return chosen(first, found.stage, staged).compilation(best, patience_s=PATIENCE_S)
    if stage.narrow is None:
        return chosen(first, found.stage, None).compilation()
    plan = first.narrow_later()
    compilation = chosen(first, found.stage, None).compilation()

    async def later() -> Better:
        await _at_last(Fence(), PATIENCE_S, first.engine_device.workers.watchdog)
        await _complete(plan, first, stage, recall)
        return Better(compilation.model, compilation.report, compilation.run_ns)

    return msgspec.structs.replace(compilation, later=later)


async def _complete(
    plan: AdaptivePlan, contender: EngineContender, stage: ManifestStage, recall: Recall
) -> None:
    """Load the single-threaded form of a plan; without it busy runs use the wide form too."""
    narrow = await recall.narrow(stage, contender.engine_device)
    if narrow is None:
        logger.info("%s has lost its plan for runs beside others", contender.name)
    else:
        plan.complete(narrow)


class Upgradable(Protocol):
    """A network, as far as it is brought a better plan."""

    def report(self) -> Report:
        """Where it runs, and why."""

    def _note_report(self, report: Report, model: Model | None = None) -> None:
        """Another plan has taken over; its report, and the model if that has another form."""


async def bring_in(
    network: Callable[[], Upgradable | None],
    later: Callable[[], Awaitable[Better]],
    name: str,
) -> Better | None:
    """Bring the best plan of a network in while the first is in use, as long as it is there.

    None where that failed: the first plan stays, and the log and the report say why.
    """
    better, failure = None, ""
    try:
        better = await later()
    except Exception as error:
        failure = f"{type(error).__name__}: {error}"
        logger.warning("network %r stays with its first plan: %s", name, failure)
    net = network()
    if net is None:
        return None
    if better is None:
        report = net.report()
        told = Rejection(devices_of(report), -1, f"stays with the first plan: {failure}")
        net._note_report(msgspec.structs.replace(report, rejections=(*report.rejections, told)))
        return None
    tell(name, better.report)
    net._note_report(better.report, better.model)
    logger.info("network %r runs on %s from now on: %s", name, *_where(better.report))
    return better


def _where(report: Report) -> tuple[str, str]:
    """The devices, and why these."""
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
