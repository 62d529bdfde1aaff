"""What a file of a model holds, for people: inputs, outputs, states, signatures, labels.

Of a TFLite file's metadata it has what else one must know to use the model: how an input is
normalized, so that `PortDescription.prepare` makes an image into what the input takes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from nnasync import hal
from nnasync._core.formats.labels import packed_labels
from nnasync._core.formats.metadata import Metadata, PortMetadata
from nnasync._core.formats.states import guessed_states
from nnasync._core.notebook import html_lines
from nnasync._core.words import counted
from nnasync.errors import InvalidArgument
from nnasync.extensions import LITERT, ONNX, sized
from nnasync.hal import Array, Model, Operand, OperandType, Struct

_SHOWN = 3
"""Labels that are shown."""
_MOST_SHOWN = 200
"""Characters of a description."""


class PortDescription(Struct, frozen=True):
    """An input, output or state; None is a dimension that is open.

    What follows `zero_point` is from the metadata of the file, and empty without: an input is
    (x - mean) / std of what it stands for, `mean` and `std` having one number or one a channel;
    `least` and `most` are the ends of its values; `labels` name the places or values of an output.
    """

    name: str
    type: str
    shape: tuple[int | None, ...]
    scale: float = 0.0
    zero_point: int = 0
    description: str = ""
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    least: tuple[float, ...] = ()
    most: tuple[float, ...] = ()
    labels: tuple[str, ...] = ()

    def __str__(self) -> str:
        shape = ", ".join("?" if n is None else str(n) for n in self.shape)
        text = f"{self.name}: {self.type} [{shape}]"
        if self.scale:
            text += f", scale {self.scale:g}, zero point {self.zero_point}"
        if self.mean:
            text += f", mean {_told(self.mean)}, std {_told(self.std)}"
        return f"{text}: {self.description}" if self.description else text

    def prepare(
        self, values: Array, *, mean: Sequence[float] = (), std: Sequence[float] = ()
    ) -> Array:
        """Pixels, or other values, as this input takes them: normalized, quantized, as a batch.

        `values` has the input's shape, or that without the first dimension. `mean` and `std` are
        those of the file unless they are given. Where there are none, values of the input's own
        type, or floats for an input of floats, are taken as they are. Raises InvalidArgument for
        another shape, and where it is not known how to normalize.
        """
        array = np.asarray(values)
        if array.ndim == len(self.shape) - 1 and self.shape[0] in (1, None):
            array = array[np.newaxis]
        fits = array.ndim == len(self.shape) and all(
            size in (None, n) for n, size in zip(array.shape, self.shape, strict=True)
        )
        if not fits:
            wanted = ", ".join("?" if n is None else str(n) for n in self.shape)
            raise InvalidArgument(
                f"input {self.name!r} takes shape [{wanted}], not {list(np.shape(values))}"
            )
        return self._quantized(array, mean or self.mean, std or self.std)

    def _quantized(self, array: Array, mean: Sequence[float], std: Sequence[float]) -> Array:
        dtype = np.dtype(self.type)
        if not mean and not std:
            if array.dtype == dtype or (array.dtype.kind == "f" and dtype.kind == "f"):
                return np.ascontiguousarray(array, dtype)
            raise InvalidArgument(
                f"input {self.name!r} is {dtype} and the file does not say how {array.dtype} is "
                "normalized: state mean= and std="
            )
        for numbers in (mean or (0.0,), std or (1.0,)):
            if len(numbers) not in (1, array.shape[-1]):
                raise InvalidArgument(
                    f"input {self.name!r} has {array.shape[-1]} channels; mean and std have one "
                    f"number or one for each, not {len(numbers)}"
                )
        lower, width = (np.asarray(each, np.float32) for each in (mean or (0,), std or (1,)))
        real: Array = (array.astype(np.float32) - lower) / width
        if dtype.kind == "f" or not self.scale:
            return np.ascontiguousarray(real, dtype)
        limits = np.iinfo(dtype)
        steps: Array = np.rint(real / np.float32(self.scale)) + self.zero_point
        return np.asarray(np.clip(steps, limits.min, limits.max), dtype)


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
    are those of `nnasync.load(path)`: of the first output that has some, or else of the file.
    `guessed_states` are outputs and the inputs whose next values they seem to be: what
    `state="guess"` takes. `parts` says for each part of the file that stays as it is, beside what
    is translated, why.
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
        lines = [f"{self.path}: {self._form()}, {counted(self.operations, 'operation')}"]
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
            more = " ..." if len(self.labels) > _SHOWN else ""
            lines.append(f"  {counted(len(self.labels), 'label')}: {shown}{more}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """Return the text for notebooks."""
        first, *others = str(self).splitlines()
        return html_lines(first, others)

    def _form(self) -> str:
        if self.kept_whole:
            return f"kept whole: {self.kept_whole}"
        count = len(self.parts)
        if not count:
            return "translated"
        kept = "1 part that is" if count == 1 else f"{count} parts that are"
        return f"translated, but for {kept} kept whole"


def described(
    path: str | os.PathLike[str],
    model: Model,
    signatures: Sequence[SignatureDescription] = (),
    metadata: Metadata | None = None,
) -> Description:
    """Returns the description of a loaded model, and of what the file's metadata say of it."""
    model = sized(model, (ONNX, LITERT), "whole files")
    main, reasons = model.main, _reasons(model)
    is_whole = bool(reasons) and len(main.operations) == 1
    files = packed_labels(path) if metadata is not None else {}
    old, new = ({getattr(pair, side) for pair in model.state} for side in ("input", "output"))
    outputs = _told_of(
        _ports(model, [n for p, n in enumerate(main.output_indexes) if p not in new]),
        () if metadata is None else metadata.outputs,
        files,
    )
    return Description(
        path=os.fspath(path),
        operations=len(main.operations),
        kept_whole=reasons[0] if is_whole else "",
        inputs=_told_of(
            _ports(model, [n for p, n in enumerate(main.input_indexes) if p not in old]),
            () if metadata is None else metadata.inputs,
            files,
        ),
        outputs=outputs,
        states=_ports(model, [n for p, n in enumerate(main.input_indexes) if p in old]),
        signatures=tuple(signatures),
        labels=model.labels,
        guessed_states=tuple(guessed_states(model).items()),
        parts=() if is_whole else reasons,
    )


def _ports(model: Model, indexes: Sequence[int]) -> tuple[PortDescription, ...]:
    return tuple(_port(model.main.operands[index]) for index in indexes)


def _port(operand: Operand) -> PortDescription:
    return PortDescription(
        name=operand.name,
        type=hal.dtype_of(operand.type).name,
        shape=tuple(n or None for n in operand.dimensions),
        scale=operand.scale,
        zero_point=operand.zero_point,
    )


def _reasons(model: Model) -> tuple[str, ...]:
    """Returns why a file, or each of its parts, is kept whole, as the operands' names tell."""
    return tuple(
        operand.name.partition(", as it is: ")[2] or "it was asked for"
        for operand in model.main.operands
        if operand.type == OperandType.TENSOR_OEM_BYTE and hal.is_constant(operand)
    )


def _told(numbers: Sequence[float]) -> str:
    return ", ".join(f"{number:g}" for number in numbers)


def _told_of(
    ports: Sequence[PortDescription],
    metadata: Sequence[PortMetadata],
    files: Mapping[str, tuple[str, ...]],
) -> tuple[PortDescription, ...]:
    """Inputs or outputs with what metadata say of them, in the same order."""
    told = [*metadata[: len(ports)], *[None] * (len(ports) - len(metadata))]
    return tuple(
        port
        if each is None
        else msgspec.structs.replace(
            port,
            description=" ".join(each.description.split())[:_MOST_SHOWN],
            mean=each.mean,
            std=each.std,
            least=each.least,
            most=each.most,
            labels=next((files[name] for name in each.label_files if name in files), ()),
        )
        for port, each in zip(ports, told, strict=True)
    )
