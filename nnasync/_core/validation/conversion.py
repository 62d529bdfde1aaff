"""What a device of an older HAL version gets of a model.

Conversion never checks whether the result is legal in the version asked for: `compliant_with` says
that. Here it is told what is lost.
"""

from __future__ import annotations

import msgspec

from nnasync._core.validation.place import Place
from nnasync._core.validation.versions import noncompliance
from nnasync.hal import HalVersion, Model, Operand


def older_model(version: HalVersion, model: Model) -> tuple[Model, tuple[str, ...]]:
    """A model as a HAL version has it, and what is lost on the way, one text per loss.

    It loses its referenced subgraphs below 1.3, extensions and extra parameters below 1.2, relaxed
    computation below 1.1; what else the version cannot express is passed on as it is, and counts as
    a loss.
    """
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
    losses += [f"legality: {text}" for text in noncompliance(version, model).reasons]
    return kept, tuple(losses)


def _without_extra_params(operand: Operand) -> Operand:
    if operand.extra_params is None:
        return operand
    return msgspec.structs.replace(operand, extra_params=None)
