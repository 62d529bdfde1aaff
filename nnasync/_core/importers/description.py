"""What a file of a model holds, for people: inputs, outputs, states, signatures, labels."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Sequence

from nnasync import hal
from nnasync._core.formats.states import guessed_states
from nnasync.hal import Model, Operand, OperandType, Struct

__all__ = ["Description", "PortDescription", "SignatureDescription", "described"]

_MOST_BYTES = 1 << 20
"""A list of labels is shorter."""
_SHOWN = 3
"""Labels that are shown."""


class PortDescription(Struct, frozen=True):
    """An input, output or state; None is a dimension that is open."""

    name: str
    type: str
    shape: tuple[int | None, ...]
    scale: float = 0.0
    zero_point: int = 0

    def __str__(self) -> str:
        shape = ", ".join("?" if n is None else str(n) for n in self.shape)
        quantized = f", scale {self.scale:g}, zero point {self.zero_point}" if self.scale else ""
        return f"{self.name}: {self.type} [{shape}]{quantized}"


class SignatureDescription(Struct, frozen=True):
    """A signature of a TFLite file: names for the inputs and outputs of one of its subgraphs."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.name}({', '.join(self.inputs)}) -> {', '.join(self.outputs)}"


class Description(Struct, frozen=True):
    """What a file of a model holds; `str` of it is a text of a line for each.

    `kept_whole` says why the file is run as it is, and is empty where it is translated. `labels`
    are those of the first list of labels that is packed into a TFLite file. `guessed_states`
    are outputs and the inputs whose next values they seem to be: what `state="guess"` takes.
    `parts` says for each part of the file that stays as it is, beside what is translated, why.
    """

    path: str
    operations: int
    kept_whole: str
    inputs: tuple[PortDescription, ...]
    outputs: tuple[PortDescription, ...]
    states: tuple[PortDescription, ...]
    signatures: tuple[SignatureDescription, ...] = ()
    labels: tuple[str, ...] = ()
    guessed_states: tuple[tuple[str, str], ...] = ()
    parts: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [f"{self.path}: {self._form()}, {self.operations} operations"]
        count = len(self.parts)
        lines += [f"  part {n} of {count}: {why}" for n, why in enumerate(self.parts, 1)]
        for kind, entries in (
            ("input", self.inputs),
            ("output", self.outputs),
            ("state", self.states),
            ("signature", self.signatures),
        ):
            lines += [f"  {kind} {entry}" for entry in entries]
        for new, old in self.guessed_states:
            lines.append(f"  {new} is named like the next {old}: state={{{new!r}: {old!r}}}")
        if self.labels:
            shown = ", ".join(self.labels[:_SHOWN])
            lines.append(f"  {len(self.labels)} labels: {shown} ...")
        return "\n".join(lines)

    def _form(self) -> str:
        if self.kept_whole:
            return f"kept whole: {self.kept_whole}"
        count = len(self.parts)
        if not count:
            return "translated"
        kept = "1 part that is" if count == 1 else f"{count} parts that are"
        return f"translated, but for {kept} kept whole"


def described(
    path: str | os.PathLike[str], model: Model, signatures: Sequence[SignatureDescription] = ()
) -> Description:
    """What a model that was loaded from a file holds."""
    main, reasons = model.main, _reasons(model)
    is_whole = bool(reasons) and len(main.operations) == 1
    old, new = ({getattr(pair, side) for pair in model.state} for side in ("input", "output"))
    return Description(
        path=os.fspath(path),
        operations=len(main.operations),
        kept_whole=reasons[0] if is_whole else "",
        inputs=_ports(model, [n for p, n in enumerate(main.input_indexes) if p not in old]),
        outputs=_ports(model, [n for p, n in enumerate(main.output_indexes) if p not in new]),
        states=_ports(model, [n for p, n in enumerate(main.input_indexes) if p in old]),
        signatures=tuple(signatures),
        labels=_labels(path),
        guessed_states=tuple(guessed_states(model).items()),
        parts=() if is_whole else reasons,
    )


def _ports(model: Model, indexes: Sequence[int]) -> tuple[PortDescription, ...]:
    return tuple(_port(model.main.operands[index]) for index in indexes)


def _port(operand: Operand) -> PortDescription:
    return PortDescription(
        name=operand.name,
        type=hal.dtype_of(OperandType(operand.type)).name,
        shape=tuple(n or None for n in operand.dimensions),
        scale=operand.scale,
        zero_point=operand.zero_point,
    )


def _reasons(model: Model) -> tuple[str, ...]:
    """Why a file, or each of its parts, is kept whole: of the names of the operands with them."""
    return tuple(
        operand.name.partition(", as it is: ")[2] or "it was asked for"
        for operand in model.main.operands
        if operand.type == OperandType.TENSOR_OEM_BYTE and hal.is_constant(operand)
    )


def _labels(path: str | os.PathLike[str]) -> tuple[str, ...]:
    """The lines of the first file of labels in the archive behind a TFLite file."""
    try:
        with zipfile.ZipFile(path) as archive:
            for entry in archive.infolist():
                if "label" in entry.filename.lower() and entry.file_size <= _MOST_BYTES:
                    with archive.open(entry) as file:
                        text = file.read(_MOST_BYTES).decode("utf-8", "replace")
                    return tuple(line.strip() for line in text.splitlines() if line.strip())
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, ValueError):
        pass  # A hostile archive raises any of them, also for other compression; it has no labels.
    return ()
