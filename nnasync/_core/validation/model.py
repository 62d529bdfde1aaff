"""Whether a model is legal: all checks in the order in which later ones rely on earlier ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nnasync import hal
from nnasync._core.deferred import deferred
from nnasync._core.validation.graph import (
    check_graph,
    check_indices,
    check_interface,
    check_references,
    check_states,
)
from nnasync._core.validation.operands import check_operands
from nnasync._core.validation.place import Place, places_of
from nnasync._core.validation.pools import check_pools
from nnasync._core.validation.values import check_extensions
from nnasync.errors import ModelError
from nnasync.extensions import WHOLE_FILES, extension_of
from nnasync.hal import HalVersion, Model

if TYPE_CHECKING:
    from nnasync._core.validation import operations, versions
else:
    operations = deferred("nnasync._core.validation.operations")
    versions = deferred("nnasync._core.validation.versions")


def validate_model(model: Model, version: HalVersion = HalVersion.V1_3) -> None:
    """Raise ModelError, naming operand or operation, unless the model is legal for a HAL version.

    One thing is legal here that a driver of HAL 1.3 may refuse: a WHILE over tensors of unknown
    size. Models for older versions are legal ones of HAL 1.3 that comply with the older.
    """
    if not model.main.operations or not model.main.operands:
        raise ModelError("the main subgraph is empty: it needs operands and operations")
    check_extensions(model)
    check_pools(model)
    places = places_of(model)
    for place in places:
        check_operands(place)
        check_indices(place)
        check_interface(place)
        check_graph(place)
    check_references(model)
    check_states(model)
    for place in places:
        if not _is_files(place):
            operations.check_operations(place)
    if version < HalVersion.V1_3:
        reasons = versions.noncompliance(version, model).reasons
        reason = reasons[0] if reasons else versions.unknown_operand(version, model)
        if reason:
            raise ModelError(f"not legal in {hal.version_name(version)}: {reason}")


def _is_files(place: Place) -> bool:
    """Returns whether all operations are foreign files, which nobody has signatures of."""
    prefixes = place.model.extension_name_to_prefix
    found = [extension_of(prefixes, each.type) for each in place.subgraph.operations]
    return all(each is not None and each[0] in WHOLE_FILES for each in found)
