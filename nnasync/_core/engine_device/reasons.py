"""Why a device does not take operations of a model, in words for people.

An engine may say so itself (`why_not`), and so may a device, which perhaps lives in another
process. What they say is not trusted: it is made one line of printable characters, and cut. An
operation about which nothing is said is named, and nothing is invented.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from nnasync import hal
from nnasync._core.words import counted
from nnasync.device import Device
from nnasync.engine.contract import Engine
from nnasync.errors import NNError
from nnasync.extensions import LITERT, ONNX, GraphOperation, extension_of, operation_label
from nnasync.hal import Model

LONGEST = 400
"""Most characters of one reason of a driver; the rest is cut."""

MOST_SENT = 256
"""The largest number of reasons for one model that a process sends to another."""

NO_MEMORY = "its constants lie in memory that cannot be read"
"""The reason for an operation that an engine was not asked about."""

_MISTAKE = "a mistake of the driver, nothing is supported"
_GRAPHS = {
    (extension.name, int(GraphOperation.GRAPH)): (kind, extension.name)
    for kind, extension in (("ONNX", ONNX), ("TFLite", LITERT))
}


async def explained(device: Device, model: Model, answers: Sequence[bool]) -> tuple[str, ...]:
    """Returns for each operation why a device does not take it, "" where it does.

    `answers` are what the device said to `get_supported_operations`. A device that fails to explain
    is spoken for; only a MissedDeadline of its caller's goes on.
    """
    ask = None if all(answers) else getattr(device, "why_not", None)
    if ask is None:
        return reasons_of(model, answers)
    try:
        said = await ask(model)
    except NNError as error:
        return reasons_of(model, answers, note=f"why_not failed: {error}")
    return reasons_of(model, answers, said)


def reasons_of(
    model: Model, answers: Sequence[bool], said: object = None, *, note: str = ""
) -> tuple[str, ...]:
    """Returns the driver's checked reasons, with a default where it gives none; "" where supported.

    `note` is the text for an operation without a reason.
    """
    count = len(answers)
    if said is not None and not note:
        note = _fault(said, count)
    texts = said if isinstance(said, Sequence) and not note else (None,) * count
    return tuple(
        "" if taken else _reason(model, operation, text, note)
        for operation, taken, text in zip(model.main.operations, answers, texts, strict=True)
    )


def first_of(reasons: Sequence[str]) -> tuple[str, ...]:
    """Returns reasons as they are sent to another process: beyond `MOST_SENT` they are empty."""
    told = itertools.count()
    return tuple(reason if reason and next(told) < MOST_SENT else "" for reason in reasons)


def one_line(text: str) -> str:
    """Returns a driver's text as one line of printable characters, cut where it is too long."""
    line = " ".join(text[: 4 * LONGEST].split())
    line = "".join(c if c.isprintable() else "?" for c in line)
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 4]} ..."


def miscounted(got: int, count: int) -> str:
    """Returns the message that an engine answered for a wrong number of operations."""
    fault = _wrong_length("supported_operations", got, count, "answer")
    return f"{fault}: {_MISTAKE}"


def no_answers(given: object) -> str:
    """Returns the message that what an engine answered is no list."""
    kind = type(given).__name__
    return f"supported_operations gave {kind}, it must give a list of True or False: {_MISTAKE}"


def asked(engine: Engine, model: Model) -> tuple[object, str]:
    """Returns an engine's answer to `why_not`, or None and why it failed to answer."""
    try:
        return engine.why_not(model), ""
    except (Exception, SystemExit) as error:
        return None, f"why_not failed: {type(error).__name__}: {error}"


def _wrong_length(what: str, got: int, count: int, thing: str) -> str:
    return f"{what} gave {counted(got, thing)} for {counted(count, 'operation')}"


def _fault(said: object, count: int) -> str:
    """Returns the mistake in a driver's answer as a whole; empty if there is none."""
    if isinstance(said, str | bytes) or not isinstance(said, Sequence):
        return f"why_not gave {type(said).__name__}, it must give a list with a text or None each"
    if len(said) != count:
        return _wrong_length("why_not", len(said), count, "reason")
    return ""


def _reason(model: Model, operation: hal.Operation, said: object, note: str) -> str:
    name = operation_label(model.extension_name_to_prefix, operation.type)
    if said is not None and not isinstance(said, str):
        kind = type(said).__name__
        said, note = None, f"why_not gave {kind} for this operation, it must give a text or None"
    text = one_line(said or "")
    whole = _GRAPHS.get(extension_of(model.extension_name_to_prefix, operation.type) or ("", 0))
    if whole is not None:
        return f"{name} is not supported: it is {_file(model, operation, *whole)}"
    if text:
        return text if text.startswith(name) else f"{name}: {text}"
    added = f" ({one_line(note)})" if note else ""
    return f"{name} is not supported as it is used here{added}"


def _file(model: Model, operation: hal.Operation, kind: str, extension: str) -> str:
    """Returns why an operation that is a whole file is not taken: only one extension runs it."""
    label = one_line(model.main.operands[operation.inputs[-1]].name) if operation.inputs else ""
    told = f" ({label})" if label else ""
    return f"a whole {kind} file{told}, which only a device with the extension {extension} runs"
