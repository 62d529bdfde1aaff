"""From a model to something that runs: out of the cache, or chosen anew.

What finds a compilation in the cache is all that is imported then; the rest, which asks devices,
measures and judges, comes along when it is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from nnasync.clock import Deadline
from nnasync.compilation.beside import import_what_compiles
from nnasync.compilation.caching import CompilationCache
from nnasync.compilation.chosen import Chosen, recalled
from nnasync.compilation.contenders import Wish
from nnasync.compilation.fallback import Fallbacks
from nnasync.compilation.recalling import Recall
from nnasync.compilation.report import Compilation
from nnasync.compilation.terms import DEFAULT_BUDGET_NS, PATIENCE_S, Apart, Terms
from nnasync.compilation.verdicts import Verdicts
from nnasync.deferred import deferred
from nnasync.device import Device
from nnasync.hal import ExecutionPreference, Model, Priority
from nnasync.workers.helping import in_helper_thread

if TYPE_CHECKING:
    from nnasync.compilation import compiler
else:
    compiler = deferred("nnasync.compilation.compiler")

__all__ = ["compile_model"]

_DIGEST = 16


async def compile_model(
    source: Model | Callable[[], Model],
    devices: Sequence[Device],
    *,
    preference: ExecutionPreference,
    priority: Priority,
    deadline: Deadline | None,
    fingerprint: bytes,
    precision: str | None = None,
    pin: str | None = None,
    reference: Device | None = None,
    verdicts: Verdicts | None = None,
    budget_ns: int = DEFAULT_BUDGET_NS,
    patience_s: float = PATIENCE_S,
    quantum_ns: int | None = None,
    cache: CompilationCache | None = None,
    optimise_after: int | None = None,
    code: Mapping[str, str] | None = None,
    again: bool = False,
    apart: Apart | None = None,
) -> Compilation:
    """Prepare a model on the device, and in the lowering, that is fastest and agrees.

    `source` is the model, or loads it on a thread. What `cache` holds is loaded, and no device is
    given the model; else what was chosen is kept there. With `optimise_after` the first that takes
    the model gets it, and the choice is made by `Compilation.later` when it was executed so often.

    Of several contenders each is prepared and measured, unless `verdicts` remember how that went;
    with a budget of 0, or for open shapes, the first that takes the model gets it. `reference`
    judges where it is not among the devices. `precision` "exact" allows only what is bit-stable,
    "bf16" floats with less than float32. `pin` names the contender. With `quantum_ns` an engine
    that cannot stop inside a run gets the model in segments. `code` has the fingerprints of the
    drivers of third parties, by device. With `again` nothing that is remembered is taken: there is
    another contest. `apart` is where contests are held outside of this process.

    Raises InvalidArgument if the model is not legal or the pin not for it, MissedDeadline, and
    otherwise the error of the last device, or GeneralFailure if no device takes the whole model.
    """
    fallbacks = Fallbacks.among(devices, source)
    digest = fingerprint.hex()[:_DIGEST]
    limits = (budget_ns, patience_s, quantum_ns)
    terms = Terms(digest, reference, verdicts, *limits, pin, cache, code or {}, again, apart)
    order = _Order(source, preference, priority, precision, fallbacks)

    async def choose_anew() -> Chosen:
        await import_what_compiles()
        return await compiler.choose(await order.loaded(), devices, terms, None)

    if cache is not None and not again:
        recall = Recall(cache, devices, order.wish, order.loaded)
        found = await recall.find(deadline)
        if found:
            return recalled(found, recall, choose_anew)
    await import_what_compiles()
    wish = await order.loaded()
    if optimise_after is None or pin is not None:
        return (await compiler.choose(wish, devices, terms, deadline)).compilation()
    first = await compiler.first_stage(wish, devices, terms, deadline, optimise_after)
    return first.compilation(choose_anew)


class _Order(msgspec.Struct, frozen=True):
    """What is to be compiled, before it is known whether the model must be loaded for it."""

    source: Model | Callable[[], Model]
    preference: ExecutionPreference
    priority: Priority
    precision: str | None
    fallbacks: Fallbacks | None

    def wish(self, outline: Model) -> Wish:
        """The wish, with an outline of the model unless that is there."""
        model = self.source if isinstance(self.source, Model) else outline
        return Wish(model, self.preference, self.priority, self.precision, self.fallbacks)

    async def loaded(self) -> Wish:
        """The wish with the model itself."""
        if isinstance(self.source, Model):
            return self.wish(self.source)
        return self.wish(await in_helper_thread(self.source))
