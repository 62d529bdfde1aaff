"""From a model to something that runs: out of the cache, or chosen anew.

What finds a compilation in the cache is all that is imported then; the rest, which asks devices,
measures and judges, comes along when it is needed.
"""

from __future__ import annotations

import importlib
import logging
from typing import TYPE_CHECKING

import msgspec

from nnasync._core.compilation.contenders import Chosen
from nnasync._core.compilation.report import Compilation
from nnasync._core.compilation.spec import CompileSpec
from nnasync._core.compilation.upgrade import PATIENCE_S, compilation_of, found_again
from nnasync._core.deferred import deferred
from nnasync._core.endings import IMPORTS
from nnasync._core.wakeup import Wakeup, shield

if TYPE_CHECKING:
    from nnasync._core.compilation import compiler, first_answer
    from nnasync._core.compilation import kept as keeping
    from nnasync._core.compilation.caching import CompilationCache
    from nnasync._core.compilation.first_answer import Begun
else:
    keeping = deferred("nnasync._core.compilation.kept")
    first_answer = deferred("nnasync._core.compilation.first_answer")
    compiler = deferred("nnasync._core.compilation.compiler")

logger = logging.getLogger(__name__)


async def compile_model(
    spec: CompileSpec, cache: CompilationCache | None = None, begun: Begun | None = None
) -> Compilation:
    """Prepare a model on the device, and in the lowering, that is fastest and agrees.

    What `cache` holds is loaded, and no device is given the model; else what was chosen is kept
    there. With `wait="first"` the device that is ready soonest gets the model, and the choice is
    made by `Compilation.later`, when it was executed once or has been there for a moment. `begun`
    is what `first_answer.begin` found of it, where that was called already.

    Of several contenders each is prepared and measured, unless `verdicts` remember how that went;
    with a budget of 0, or for open shapes, the first that takes the model gets it.

    Raises InvalidArgument if the model is not legal or the pin not for it, MissedDeadline, and
    otherwise the error of the last device, or GeneralFailure if no device takes the whole model.
    """
    spec = spec.with_fallbacks() if begun is None else begun.spec

    async def choose_anew() -> Chosen:
        # A thread that still imports when the interpreter ends may change how it ends.
        with shield():
            await import_what_compiles(spec)
        unhurried = msgspec.structs.replace(spec, deadline=None, in_background=True)
        return await compiler.choose(await unhurried.loaded(), cache)

    if cache is not None and not spec.again:
        kept = keeping.KeptCompilation(cache, spec)
        found = await kept.find()
        if found:
            return found_again(kept, found, choose_anew)
    if spec.wait == "first" and not spec.again:
        missed = "" if cache is None else cache.reason or "no entry"
        first = await first_answer.first_answer(spec, missed, begun)
        if first is not None:
            name = first.contender.name
            follows = "a better plan may follow" if first.staged else "it stays"
            logger.info("network %r: %s answers first; %s", spec.name, name, follows)
            return compilation_of(first, choose_anew, patience_s=PATIENCE_S)
    await _begin_contest_process(spec)
    await import_what_compiles(spec)
    return compilation_of(await compiler.choose(await spec.loaded(), cache))


async def _begin_contest_process(spec: CompileSpec) -> None:
    """Have the process for a contest start meanwhile, unless none is expected."""
    apart, verdicts = spec.apart, spec.verdicts
    is_hurried = spec.deadline is not None
    if apart is None or is_hurried or spec.pin is not None or not spec.budget_ns:
        return

    def begin() -> None:
        if spec.again or verdicts is None or not verdicts.know(spec.digest):
            apart.process().begin()

    if len(spec.devices) > 1:
        await spec.on_thread(begin, "nnasync-contest-process")


_COMPILER = "nnasync._core.compilation.compiler"
_imported: set[str] = set()


async def import_what_compiles(spec: CompileSpec) -> None:
    """Import what chooses among devices, and anyio's part for this loop, on a thread."""
    if _imported:
        return
    backend = "trio" if Wakeup.current().is_trio else "asyncio"
    names = (f"anyio._backends._{backend}", _COMPILER)

    def load() -> None:
        with IMPORTS:
            for name in names:
                importlib.import_module(name)
        # A module is among those of the interpreter as soon as somebody begins to import it.
        _imported.add(_COMPILER)

    await spec.on_thread(load, "nnasync-importing")
