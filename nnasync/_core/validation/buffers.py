"""Whether a driver-managed buffer can play the roles that are asked of it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from nnasync import hal
from nnasync._core.validation.operands import MAX_DIMENSION
from nnasync.errors import InvalidArgument
from nnasync.hal import BufferDesc, BufferRole, Model, Operand, combine_dimensions


def validate_buffer_desc(
    desc: BufferDesc,
    models: Sequence[Model | None],
    input_roles: Sequence[BufferRole],
    output_roles: Sequence[BufferRole],
) -> Operand:
    """The operand that a buffer for these roles holds: type, quantization, combined dimensions.

    `models` are those of the prepared models that roles refer to; None stands for a prepared model
    of another device. Raises InvalidArgument, which names the role, where the description or the
    roles are not legal or contradict each other.
    """
    if any(not 0 <= n <= MAX_DIMENSION for n in desc.dimensions):
        raise InvalidArgument(f"buffer: dimensions {list(desc.dimensions)} must be in [0, 2^32-1]")
    if not models:
        raise InvalidArgument("buffer: there are no prepared models")
    combined: Operand | None = None
    seen: set[tuple[str, int, int]] = set()
    for kind, roles in (("input", input_roles), ("output", output_roles)):
        for position, role in enumerate(roles):
            try:
                operand = _operand_of(role, models, kind)
                if (kind, role.model_index, role.io_index) in seen:
                    raise InvalidArgument("is given twice")
                seen.add((kind, role.model_index, role.io_index))
                combined = _combined(combined or _described(operand, desc), operand)
            except InvalidArgument as error:
                raise InvalidArgument(f"buffer: {kind} role {position}: {error}") from error
    if combined is None:
        raise InvalidArgument("buffer: it needs one role at least")
    return combined


def _operand_of(role: BufferRole, models: Sequence[Model | None], kind: str) -> Operand:
    if not 0 <= role.model_index < len(models):
        raise InvalidArgument(f"names prepared model {role.model_index} of {len(models)}")
    model = models[role.model_index]
    if model is None:
        raise InvalidArgument(f"prepared model {role.model_index} is not one of this device")
    if not 0 < role.frequency <= 1:
        raise InvalidArgument(f"has frequency {role.frequency}; it must be above 0, at most 1")
    main = model.main
    indexes = main.input_indexes if kind == "input" else main.output_indexes
    if not 0 <= role.io_index < len(indexes):
        raise InvalidArgument(f"names {kind} {role.io_index} of {len(indexes)}")
    return main.operands[indexes[role.io_index]]


def _described(operand: Operand, desc: BufferDesc) -> Operand:
    """Returns the operand of a buffer, by its first role and the description."""
    return Operand(
        type=operand.type,
        dimensions=desc.dimensions,
        scale=operand.scale,
        zero_point=operand.zero_point,
        extra_params=operand.extra_params,
    )


def _combined(known: Operand, operand: Operand) -> Operand:
    if known.type != operand.type:
        raise InvalidArgument(
            f"is {hal.type_name(operand.type)}, another role is {hal.type_name(known.type)}"
        )
    if (known.scale, known.zero_point) != (operand.scale, operand.zero_point):
        raise InvalidArgument(
            f"has scale {operand.scale:g} and zero point {operand.zero_point}, another role has "
            f"{known.scale:g} and {known.zero_point}"
        )
    if known.extra_params != operand.extra_params and not hal.is_extension(known.type):
        raise InvalidArgument("has other extra parameters than another role")
    dimensions = combine_dimensions(known.dimensions, operand.dimensions)
    if dimensions is None:
        raise InvalidArgument(
            f"has dimensions {list(operand.dimensions)}, but the buffer {list(known.dimensions)}"
        )
    if dimensions and hal.is_scalar(known.type):
        raise InvalidArgument(f"is a scalar and has no dimensions, not {list(dimensions)}")
    return msgspec.structs.replace(known, dimensions=dimensions)
