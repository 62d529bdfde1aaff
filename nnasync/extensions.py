"""Vendor extensions: names, types inside a model, and the registry of what devices offer.

An extension adds operand and operation types to those of the HAL. Inside one model its name is
stood for by a prefix, a number from 1 on, and its types are `(prefix << 16) | type`; every model
may use other prefixes, and says which in `extension_name_to_prefix`. Devices describe the operand
types of the extensions that they support in full; how large a value is nobody else knows. `sized`
puts what they say into a model, so that its inputs and outputs can have such types.

Two extensions of ours have operations with kernels. org.nnasync.common has what networks of any
format ask for and the HAL lacks, such as products of two matrices that are both computed.
org.nnasync.tflite has what TFLite can do in integers and the HAL cannot. They need no operand
types: TFLite's int16 is TENSOR_QUANT16_SYMM where its zero point is 0, otherwise
TENSOR_QUANT16_ASYMM, whose values and zero point are larger by 2**15.

Two others, org.nnasync.onnx and org.nnasync.litert, have one operation: a whole ONNX or
TFLite file. `formats.whole` says what its inputs and outputs are. Their operand types are numbers
that the HAL has not, such as int64: arrays of them are what callers give and get.
"""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from nnasync import hal
from nnasync.errors import GeneralFailure, InvalidArgument, ModelError
from nnasync.hal import (
    Extension,
    ExtensionNameAndPrefix,
    ExtensionOperandType,
    Model,
    Operand,
    Shape,
    SizedType,
)
from nnasync.hal.file_operands import FILE_OPERAND_TYPES, FileOperand

__all__ = [
    "COMMON",
    "LITERT",
    "MAX_PREFIX",
    "ONNX",
    "TFLITE",
    "WHOLE_FILES",
    "CommonOperation",
    "FileOperand",
    "GraphOperation",
    "Registry",
    "TfliteOperation",
    "encode",
    "extension_of",
    "is_legal_name",
    "operation_key",
    "operand_type_label",
    "operation_label",
    "plain",
    "prefix_of",
    "sized",
    "type_within",
    "validate_extension_name",
    "validate_operand_types",
]

MAX_PREFIX = 2**15 - 1
"""The largest prefix that a model may use."""

COMMON = Extension("org.nnasync.common")
"""The extension with operations that networks of any format have, as devices offer it."""

TFLITE = Extension("org.nnasync.tflite")
"""The extension with TFLite's integer operations, as devices offer it."""


ONNX = Extension("org.nnasync.onnx", FILE_OPERAND_TYPES)
"""The extension that runs ONNX files, as devices offer it."""


LITERT = Extension("org.nnasync.litert", FILE_OPERAND_TYPES)
"""The extension that runs TFLite files, as devices offer it."""


WHOLE_FILES = frozenset({ONNX.name, LITERT.name})
"""The extensions whose operation runs a file; it has no kernel."""


class GraphOperation(enum.IntEnum):
    """Operation types within an extension that runs whole files."""

    GRAPH = 0


class CommonOperation(enum.IntEnum):
    """Operation types within `COMMON`."""

    BATCH_MATMUL = 0
    GELU = 1
    CUMSUM = 2
    ROUND = 3


class TfliteOperation(enum.IntEnum):
    """Operation types within `TFLITE`."""

    QUANTIZE = 0
    DEQUANTIZE = 1
    SOFTMAX = 2
    SVDF = 3
    UNIDIRECTIONAL_SEQUENCE_LSTM = 4


_OPERATIONS: Mapping[str, type[enum.IntEnum]] = {
    COMMON.name: CommonOperation,
    TFLITE.name: TfliteOperation,
    ONNX.name: GraphOperation,
    LITERT.name: GraphOperation,
}
_NAME = re.compile(r"[a-z0-9_]+(\.[a-z0-9_]+)+", re.ASCII)
_TYPES = 1 << hal.EXTENSION_PREFIX_SHIFT
_LARGEST_ELEMENT = 2**31 - 1
"""Numpy knows no larger ones."""


def is_legal_name(name: str) -> bool:
    """Returns whether a name is words of a-z, 0-9 and _ with dots between: org.vendor.thing."""
    return _NAME.fullmatch(name) is not None


def validate_extension_name(name: str) -> None:
    """Raise InvalidArgument unless a name is legal for an extension.

    It begins with the vendor's domain reversed, and so has one dot at least.
    """
    if not is_legal_name(name):
        raise InvalidArgument(
            f"extension name {name!r} must be words of a-z, 0-9 and _ with dots between, such as"
            " org.vendor.thing"
        )


def validate_operand_types(extension: Extension) -> None:
    """Raise InvalidArgument unless the operand types of an extension are one each, and in range.

    One that states a type of numpy has the size of that.
    """
    types = [entry.type for entry in extension.operand_types]
    if len(set(types)) < len(types):
        raise InvalidArgument(f"extension {extension.name!r} has an operand type twice: {types}")
    for type in types:
        if not 0 <= type < _TYPES:
            raise InvalidArgument(
                f"extension {extension.name!r}: operand type {type} must be in [0, {_TYPES - 1}]"
            )
    for entry in extension.operand_types:
        try:
            size = hal.number_size(entry.dtype) if entry.dtype else entry.byte_size
        except KeyError:
            raise InvalidArgument(
                f"extension {extension.name!r}: operand type {entry.type} is {entry.dtype!r}, which"
                " is no number of numpy's or ml_dtypes"
            ) from None
        if size != entry.byte_size:
            raise InvalidArgument(
                f"extension {extension.name!r}: operand type {entry.type} is {entry.dtype}, which"
                f" has {size} bytes, not {entry.byte_size}"
            )


def encode(prefix: int, type: int) -> int:
    """The type inside a model; raises InvalidArgument where prefix or type is out of range."""
    if not 0 < prefix <= MAX_PREFIX:
        raise InvalidArgument(f"extension prefix {prefix} must be in [1, {MAX_PREFIX}]")
    if not 0 <= type < _TYPES:
        raise InvalidArgument(f"extension type {type} must be in [0, {_TYPES - 1}]")
    return prefix << hal.EXTENSION_PREFIX_SHIFT | type


def prefix_of(type: int) -> int:
    """The prefix of a type inside a model; 0 for a type of the HAL."""
    return type >> hal.EXTENSION_PREFIX_SHIFT


def type_within(type: int) -> int:
    """The type within its extension."""
    return type % _TYPES


def extension_of(entries: Sequence[ExtensionNameAndPrefix], type: int) -> tuple[str, int] | None:
    """Extension name and type within it of a model's type; None where the model names none."""
    prefix = prefix_of(type)
    for entry in entries:
        if prefix and entry.prefix == prefix:
            return entry.name, type_within(type)
    return None


def operation_key(
    entries: Sequence[ExtensionNameAndPrefix], type: int
) -> int | tuple[str, int] | None:
    """Returns what an operation type of a model is looked up by in tables of operations.

    That is the type itself, or the name of the extension and the type within it; None where the
    model names no extension.
    """
    return extension_of(entries, type) if hal.is_extension(type) else type


def sized(model: Model, offered: Iterable[Extension], who: str) -> Model:
    """The model with the sizes of the extension types of its inputs and outputs; itself if none is.

    `who` offers these extensions. Raises GeneralFailure that names an input or output of which the
    size is not among them, or is more than there can be.
    """
    main = model.main
    places = {index: f"input {n}" for n, index in enumerate(main.input_indexes)}
    places |= {index: f"output {n}" for n, index in enumerate(main.output_indexes)}
    if not any(hal.is_extension(main.operands[index].type) for index in places):
        return model
    known = {
        (extension.name, entry.type): entry
        for extension in offered
        for entry in extension.operand_types
    }
    operands = list(main.operands)
    for index, place in places.items():
        operand = operands[index]
        if hal.is_extension(operand.type):
            found = extension_of(model.extension_name_to_prefix, operand.type)
            entry = None if found is None else known.get(found)
            try:
                operands[index] = _with_size(operand, entry, found, who)
            except GeneralFailure as error:
                raise GeneralFailure(f"{place}, operand {index}: {error}") from error
    return _with_operands(model, operands)


def plain(model: Model) -> Model:
    """The model without what `sized` put in: it can be stored and sent; itself if nothing was."""
    operands = model.main.operands
    if not any(isinstance(operand.type, SizedType) for operand in operands):
        return model
    return _with_operands(
        model, [msgspec.structs.replace(each, type=int(each.type)) for each in operands]
    )


def _with_size(
    operand: Operand,
    entry: ExtensionOperandType | None,
    found: tuple[str, int] | None,
    who: str,
) -> Operand:
    if entry is None:
        name, number = found or ("an unknown extension", type_within(operand.type))
        raise GeneralFailure(
            f"its size is not known: {who} describes no operand type {number} of {name}"
        )
    if not entry.is_tensor and operand.dimensions:
        raise GeneralFailure(
            f"{who} says that its type is a scalar, and it has dimensions "
            f"{list(operand.dimensions)}"
        )
    nbytes = entry.byte_size * math.prod(n for n in operand.dimensions if n)
    if not 0 < entry.byte_size <= _LARGEST_ELEMENT or nbytes > hal.MAX_TENSOR_BYTES:
        raise GeneralFailure(
            f"an element has {entry.byte_size} bytes, says {who}, and all of it {nbytes}; at most "
            f"{_LARGEST_ELEMENT} and {hal.MAX_TENSOR_BYTES} are possible"
        )
    dtype = hal.number_dtype(entry.dtype) if entry.dtype else None
    type = SizedType(operand.type, entry.byte_size, is_tensor=entry.is_tensor, dtype=dtype)
    return msgspec.structs.replace(operand, type=type)


def _with_operands(model: Model, operands: Sequence[Operand]) -> Model:
    main = msgspec.structs.replace(model.main, operands=tuple(operands))
    return msgspec.structs.replace(model, main=main)


def operation_label(entries: Sequence[ExtensionNameAndPrefix], type: int) -> str:
    """Name of a model's operation type for messages, with its extension's where it has one."""
    if not hal.is_extension(type):
        return hal.operation_name(type)
    name, number = extension_of(entries, type) or ("an extension without a name", type_within(type))
    known = _OPERATIONS.get(name)
    if known is None or number not in {*known}:
        return f"operation {number} of {name}"
    return f"{name}.{known(number).name}"


def operand_type_label(entries: Sequence[ExtensionNameAndPrefix], type: int) -> str:
    """Name of a model's operand type for messages, with its extension's where it has one."""
    found = extension_of(entries, type)
    if found is None:
        return hal.type_name(type)
    name, number = found
    if name not in WHOLE_FILES or number not in {*FileOperand}:
        return f"type {number} of {name}"
    return f"{name}.{FileOperand(number).name}"


class Registry:
    """The extensions that devices offer, by name, and the prefixes that their names are given.

    Prefixes are given in the order in which names are asked for. Two devices that describe one
    extension differently disable it for good, since nobody could tell whose types are meant.
    """

    def __init__(self, extensions: Iterable[Extension] = ()) -> None:
        self._offered: dict[str, Extension | None] = {}
        self._first: dict[str, str] = {}
        self._disagreeing: dict[str, tuple[str, str]] = {}
        self._prefixes: dict[str, int] = {}
        for extension in extensions:
            self.add(extension)

    @property
    def extensions(self) -> tuple[Extension, ...]:
        """All extensions that models may use."""
        return tuple(extension for extension in self._offered.values() if extension is not None)

    def add(self, extension: Extension, device: str = "") -> None:
        """Take what a device, of that name, says of an extension.

        Raises InvalidArgument for an illegal name, or for operand types that are not one each.
        """
        validate_extension_name(extension.name)
        validate_operand_types(extension)
        known = self._offered.setdefault(extension.name, extension)
        first = self._first.setdefault(extension.name, device)
        if known is not None and _content(known) != _content(extension):
            self._offered[extension.name] = None
            self._disagreeing[extension.name] = first, device

    def check(self, model: Model) -> None:
        """Raise InvalidArgument where a model uses an extension that devices disagree about."""
        for entry in model.extension_name_to_prefix:
            if entry.name in self._disagreeing:
                first, second = self._disagreeing[entry.name]
                raise InvalidArgument(
                    f"extension {entry.name!r} is disabled: {first} and {second} describe its "
                    "operand types differently; open the runtime with one of them only"
                )

    def prefix(self, name: str) -> int:
        """The prefix of a name, which need not be known; the first one asked for is 1.

        Raises InvalidArgument for an illegal name and where all prefixes are given away.
        """
        if name not in self._prefixes:
            validate_extension_name(name)
            if len(self._prefixes) == MAX_PREFIX:
                raise InvalidArgument(f"all {MAX_PREFIX} extension prefixes are given away")
            self._prefixes[name] = len(self._prefixes) + 1
        return self._prefixes[name]

    def entries(self) -> tuple[ExtensionNameAndPrefix, ...]:
        """All prefixes that were given, as a model states them."""
        return tuple(ExtensionNameAndPrefix(*entry) for entry in self._prefixes.items())

    def operand_type(self, type: int) -> ExtensionOperandType:
        """Returns what a device says of a type with a prefix from here; ModelError if none does."""
        found = extension_of(self.entries(), type)
        if found is None:
            raise ModelError(f"operand type {type:#x}: no extension has prefix {prefix_of(type)}")
        name, number = found
        extension = self._offered.get(name)
        for entry in () if extension is None else extension.operand_types:
            if entry.type == number:
                return entry
        raise ModelError(f"operand type {type:#x}: no device offers type {number} of {name}")

    def byte_size(self, type: int, dimensions: Shape) -> int:
        """Size of a value in bytes, 0 where a dimension or the rank of a tensor is unknown."""
        known = self.operand_type(type)
        if not known.is_tensor:
            return known.byte_size
        return known.byte_size * math.prod(dimensions) if dimensions else 0


def _content(extension: Extension) -> list[ExtensionOperandType]:
    return sorted(extension.operand_types, key=lambda entry: entry.type)
