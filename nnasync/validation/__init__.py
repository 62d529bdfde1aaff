"""Whether a model, a request or a description of a buffer is legal, and for which HAL version.

All checks are pure, and what they raise names the place and the rule. A model is checked in the
order in which later checks rely on earlier ones: extensions and pools, then each subgraph's
operands (type, shape, quantisation, place of the value), operations (indices), lists of inputs and
outputs, and graph (execution order, written once, number of consumers), then references between
subgraphs, states, and at last every operation against its signatures. What depends on values of a
run (an index out of range, a buffer that is too small) is found by whoever runs it.

`validate_model` raises ModelError, the others InvalidArgument, and nothing else, whatever numbers a
file or a peer put into the structs. The types of the fields are taken as given.

`compliant_with`, `noncompliance` and `minimum_version` say which HAL versions can express a model;
`convert_to` gives what a device of an older version gets, and what is lost on the way.
"""

from __future__ import annotations

from nnasync import hal
from nnasync.errors import ModelError
from nnasync.extensions import validate_extension_name
from nnasync.hal import HalVersion, Model
from nnasync.validation.buffers import validate_buffer_desc
from nnasync.validation.conversion import convert_to
from nnasync.validation.graph import (
    check_graph,
    check_indices,
    check_interface,
    check_references,
    check_states,
)
from nnasync.validation.operands import check_operands
from nnasync.validation.operations import check_operations, find_operation
from nnasync.validation.place import places_of
from nnasync.validation.pools import check_pools
from nnasync.validation.request import validate_request
from nnasync.validation.tensors import (
    combine_dimensions,
    operand_tensor,
    operand_value,
    subgraph_tensors,
)
from nnasync.validation.values import (
    check_extensions,
    validate_extension,
    validate_preference,
    validate_priority,
)
from nnasync.validation.versions import (
    Noncompliance,
    compliant_with,
    minimum_version,
    noncompliance,
    unknown_operand,
)

__all__ = [
    "Noncompliance",
    "combine_dimensions",
    "compliant_with",
    "convert_to",
    "find_operation",
    "minimum_version",
    "noncompliance",
    "operand_tensor",
    "operand_value",
    "subgraph_tensors",
    "validate_buffer_desc",
    "validate_extension",
    "validate_extension_name",
    "validate_model",
    "validate_preference",
    "validate_priority",
    "validate_request",
]


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
        check_operations(place)
    if version < HalVersion.V1_3:
        reasons = noncompliance(version, model).reasons
        reason = reasons[0] if reasons else unknown_operand(version, model)
        if reason:
            raise ModelError(f"not legal in {hal.version_name(version)}: {reason}")
