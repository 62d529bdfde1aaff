"""What an engine says of itself and of a model, held to the rules that all devices have."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from nnasync._core import validation
from nnasync._core.deferred import deferred
from nnasync.device import Lowering
from nnasync.engine.contract import Engine, LoweringEngine
from nnasync.errors import GeneralFailure, ModelError, NNError
from nnasync.hal import ExecutionPreference, Model

if TYPE_CHECKING:
    from nnasync._core.engine_device import reasons
else:
    reasons = deferred("nnasync._core.engine_device.reasons")

logger = logging.getLogger(__name__)


def supported(engine: Engine, name: str, model: Model) -> tuple[bool, ...]:
    """Returns which operations of a model are supported; logs mistakes in the engine's answer."""
    answers, fault = _asked(engine, model)
    if fault:
        logger.warning("%s: %s", name, fault)
    return answers


def why_not(engine: Engine, model: Model) -> tuple[str | None, ...]:
    """Returns reasons: mistakes of the driver first, then unreadable memory, then its own."""
    answers, fault = _asked(engine, model)
    if fault:
        texts = reasons.reasons_of(model, answers, (fault,) * len(answers))
        return tuple(texts)
    readable, have_memory = validation.supportable(model)
    said, note = reasons.asked(engine, readable)
    texts = reasons.reasons_of(model, answers, said, note=note)
    return tuple(
        (text or None) if has_memory else reasons.NO_MEMORY
        for text, has_memory in zip(texts, have_memory, strict=True)
    )


def _asked(engine: Engine, model: Model) -> tuple[tuple[bool, ...], str]:
    """Returns which operations of a model are supported, and the mistakes in the answer."""
    readable, have_memory = validation.supportable(model)
    nothing = (False,) * len(have_memory)
    try:
        validation.validate_model(readable)
    except ModelError:
        if readable is model:
            raise
        return nothing, ""
    given: object = engine.supported_operations(readable)
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        return nothing, reasons.no_answers(given)
    answers = tuple(map(bool, given))
    if len(answers) != len(nothing):
        return nothing, reasons.miscounted(len(answers), len(nothing))
    return tuple(a and b for a, b in zip(answers, have_memory, strict=True)), ""


def lowerings(
    engine: LoweringEngine, model: Model, preference: ExecutionPreference
) -> tuple[Lowering, ...]:
    """Returns the lowerings that an engine offers for a model.

    Raises what the engine raises if that is a typed error. A mistake of the engine is logged, and
    raised as GeneralFailure.
    """
    try:
        given: object = engine.lowerings(model, preference)
    except NNError:
        raise
    except Exception as error:
        raise _mistake(engine, f"lowerings failed: {type(error).__name__}: {error}") from error
    if not isinstance(given, Sequence) or not all(isinstance(each, Lowering) for each in given):
        raise _mistake(engine, f"lowerings gave {given!r:.60}, it must give a list of Lowering")
    return tuple(given)


def loading_ns(engine: Engine) -> int:
    """Returns how long the import of an engine took; 0 where what it says is no whole number."""
    try:
        took_ns: object = engine.loading_ns()
    except Exception as error:
        took_ns = error
    if isinstance(took_ns, int) and took_ns >= 0:
        return took_ns
    logger.warning("%s: loading_ns gave %.60r, it must give nanoseconds", engine.name, took_ns)
    return 0


def _mistake(engine: Engine, fault: str) -> GeneralFailure:
    logger.warning("%s: %s: a mistake of the driver", engine.name, fault)
    return GeneralFailure(f"{engine.name}: {fault}")
