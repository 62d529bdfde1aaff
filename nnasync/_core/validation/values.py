"""Extensions, preferences and priorities: names and values that are legal."""

from __future__ import annotations

from nnasync import hal
from nnasync.errors import InvalidArgument, ModelError
from nnasync.extensions import MAX_PREFIX, validate_extension_name, validate_operand_types
from nnasync.hal import ExecutionPreference, Extension, Model, Priority


def validate_extension(extension: Extension) -> None:
    """Raise InvalidArgument unless a device may offer an extension so described."""
    validate_extension_name(extension.name)
    validate_operand_types(extension)
    for operand_type in extension.operand_types:
        if not 0 < operand_type.byte_size <= hal.MAX_TENSOR_BYTES:
            raise InvalidArgument(
                f"extension {extension.name!r}: operand type {operand_type.type} has "
                f"{operand_type.byte_size} bytes; they must be in [1, 2^32 - 1]"
            )


def check_extensions(model: Model) -> None:
    """Raise ModelError unless the model's extensions are legal and map to prefixes one to one."""
    entries = model.extension_name_to_prefix
    if len({e.name for e in entries}) < len(entries) or len({e.prefix for e in entries}) < len(
        entries
    ):
        raise ModelError("extension names and prefixes must map one to one")
    for entry in entries:
        try:
            validate_extension_name(entry.name)
        except InvalidArgument as error:
            raise ModelError(str(error)) from error
        if not 0 < entry.prefix <= MAX_PREFIX:
            raise ModelError(
                f"extension {entry.name!r} has prefix {entry.prefix}; it must be in "
                f"[1, {MAX_PREFIX}]"
            )


def validate_preference(preference: int) -> None:
    """Raise InvalidArgument unless this is an ExecutionPreference."""
    if preference not in list(ExecutionPreference):
        raise InvalidArgument(
            f"preference {preference!r} must be one of {_names(ExecutionPreference)}"
        )


def validate_priority(priority: int) -> None:
    """Raise InvalidArgument unless this is a Priority."""
    if priority not in list(Priority):
        raise InvalidArgument(f"priority {priority!r} must be one of {_names(Priority)}")


def _names(kind: type[ExecutionPreference] | type[Priority]) -> str:
    return ", ".join(f"{member.name} ({member.value})" for member in kind)
