"""What a device of another HAL version gets of a model, a request, a status or capabilities.

Conversion never checks whether the result is legal in the version asked for: `compliant_with` says
that. Here it is told what is lost: in the result, and by `convert_to` as warnings in the log.
"""

from __future__ import annotations

import logging
from typing import TypeVar, overload

import msgspec

from nnasync import hal
from nnasync._core.validation.capabilities import AnyCapabilities, capabilities_of, lost_figures
from nnasync._core.validation.place import Place
from nnasync._core.validation.pools import pool_fault
from nnasync._core.validation.versions import Convertible, noncompliance
from nnasync.errors import InvalidArgument
from nnasync.hal import BufferDesc, ErrorStatus, HalVersion, Model, Operand, Request

__all__ = ["convert_to", "converted"]

_LOG = logging.getLogger(__name__)

T = TypeVar("T", Model, Request, ErrorStatus, BufferDesc)


@overload
def convert_to(version: HalVersion, thing: T) -> tuple[T, tuple[str, ...]]: ...


@overload
def convert_to(
    version: HalVersion, thing: AnyCapabilities
) -> tuple[AnyCapabilities, tuple[str, ...]]: ...


def convert_to(version: HalVersion, thing: Convertible) -> tuple[Convertible, tuple[str, ...]]:
    """A thing as a HAL version has it, and what is lost on the way, one text per loss.

    Capabilities become the struct of that version; the others keep theirs. A model loses its
    referenced subgraphs below 1.3, extensions and extra parameters below 1.2, relaxed computation
    below 1.1; what else the version cannot express is passed on as it is, and counts as a loss.
    Each loss is logged as a warning. Raises InvalidArgument for what an older version has no place
    for: a request with tokens, a description of a buffer.
    """
    found, losses = converted(version, thing)
    for loss in losses:
        _LOG.warning("converting to %s loses %s", hal.version_name(version), loss)
    return found, losses


@overload
def converted(version: HalVersion, thing: T) -> tuple[T, tuple[str, ...]]: ...


@overload
def converted(
    version: HalVersion, thing: AnyCapabilities
) -> tuple[AnyCapabilities, tuple[str, ...]]: ...


def converted(version: HalVersion, thing: Convertible) -> tuple[Convertible, tuple[str, ...]]:
    """The same without a word in the log, for who only asks, or tells of losses himself."""
    found: Convertible
    if isinstance(thing, Model):
        found, losses = _model(version, thing)
    elif isinstance(thing, Request):
        found, losses = thing, _request_losses(version, thing)
    elif isinstance(thing, ErrorStatus):
        found, losses = _status(version, thing)
    elif isinstance(thing, BufferDesc):
        if version < HalVersion.V1_3:
            raise InvalidArgument(
                f"{hal.version_name(version)} has no driver-managed buffers; they exist since 1.3"
            )
        found, losses = thing, []
    else:
        found = capabilities_of(version, thing)
        losses = lost_figures(version, thing)
    return found, tuple(losses)


def _model(version: HalVersion, model: Model) -> tuple[Model, list[str]]:
    losses = []
    kept = model
    if version < HalVersion.V1_3 and model.referenced:
        losses.append(f"{len(model.referenced)} referenced subgraphs")
        kept = msgspec.structs.replace(kept, referenced=())
    if version < HalVersion.V1_2:
        losses += [f"the extension {entry.name}" for entry in model.extension_name_to_prefix]
        for index, operand in enumerate(model.main.operands):
            if operand.extra_params is not None:
                where = Place(model, model.main).operand(index)
                losses.append(f"the extra parameters of {where}")
        operands = tuple(map(_without_extra_params, model.main.operands))
        kept = msgspec.structs.replace(
            kept,
            main=msgspec.structs.replace(model.main, operands=operands),
            extension_name_to_prefix=(),
        )
    if version < HalVersion.V1_1 and model.relax_computation_float32_to_float16:
        losses.append("the permission to compute float32 as float16")
        kept = msgspec.structs.replace(kept, relax_computation_float32_to_float16=False)
    return kept, losses + [f"legality: {text}" for text in noncompliance(version, model).reasons]


def _without_extra_params(operand: Operand) -> Operand:
    if operand.extra_params is None:
        return operand
    return msgspec.structs.replace(operand, extra_params=None)


def _request_losses(version: HalVersion, request: Request) -> list[str]:
    losses = []
    for index, pool in enumerate(request.pools):
        if not isinstance(pool, int):
            fault = pool_fault(pool, version)
            if fault:
                losses.append(f"legality: pool {index} {fault}")
        elif version < HalVersion.V1_3:
            raise InvalidArgument(
                f"pool {index} of the request is a token, which {hal.version_name(version)} does "
                "not have; copy the buffer into shared memory"
            )
    return losses


def _status(version: HalVersion, status: ErrorStatus) -> tuple[ErrorStatus, list[str]]:
    if version >= HalVersion.V1_3 or status <= ErrorStatus.INVALID_ARGUMENT:
        return status, []
    return ErrorStatus.GENERAL_FAILURE, [f"the difference of {status.name} to GENERAL_FAILURE"]
