"""Whether a model, a request or a description of a buffer is legal, and for which HAL version.

All checks are pure, and what they raise names the place and the rule. A model is checked in the
order in which later checks rely on earlier ones: extensions and pools, then each subgraph's
operands (type, shape, quantization, place of the value), operations (indices), lists of inputs and
outputs, and graph (execution order, written once, number of consumers), then references between
subgraphs, states, and at last every operation against its signatures. What depends on values of a
run (an index out of range, a buffer that is too small) is found by whoever runs it.

`validate_model` raises ModelError, the others InvalidArgument, and nothing else, whatever numbers a
file or a peer put into the structs. The types of the fields are taken as given.

`compliant_with`, `noncompliance` and `minimum_version` say which HAL versions can express a model;
`older_model` gives what a device of an older version gets, and what is lost on the way.

What checks models brings the operations along; each part is imported when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nnasync._core.deferred import names

if TYPE_CHECKING:
    from nnasync._core.validation.buffers import validate_buffer_desc as validate_buffer_desc
    from nnasync._core.validation.capabilities import newest_capabilities as newest_capabilities
    from nnasync._core.validation.conversion import older_model as older_model
    from nnasync._core.validation.model import validate_model as validate_model
    from nnasync._core.validation.operations import find_operation as find_operation
    from nnasync._core.validation.operations import read_operation as read_operation
    from nnasync._core.validation.pools import check_constants as check_constants
    from nnasync._core.validation.pools import supportable as supportable
    from nnasync._core.validation.request import image_fault as image_fault
    from nnasync._core.validation.request import validate_request as validate_request
    from nnasync._core.validation.tensors import operand_tensor as operand_tensor
    from nnasync._core.validation.tensors import operand_value as operand_value
    from nnasync._core.validation.tensors import subgraph_tensors as subgraph_tensors
    from nnasync._core.validation.values import validate_extension as validate_extension
    from nnasync._core.validation.values import validate_preference as validate_preference
    from nnasync._core.validation.values import validate_priority as validate_priority
    from nnasync._core.validation.versions import Noncompliance as Noncompliance
    from nnasync._core.validation.versions import compliant_with as compliant_with
    from nnasync._core.validation.versions import minimum_version as minimum_version
    from nnasync._core.validation.versions import noncompliance as noncompliance
    from nnasync.extensions import validate_extension_name as validate_extension_name

__getattr__ = names(
    __name__,
    {
        "Noncompliance": "versions",
        "check_constants": "pools",
        "compliant_with": "versions",
        "find_operation": "operations",
        "image_fault": "request",
        "minimum_version": "versions",
        "newest_capabilities": "capabilities",
        "noncompliance": "versions",
        "older_model": "conversion",
        "operand_tensor": "tensors",
        "operand_value": "tensors",
        "read_operation": "operations",
        "subgraph_tensors": "tensors",
        "supportable": "pools",
        "validate_buffer_desc": "buffers",
        "validate_extension": "values",
        "validate_extension_name": "values",
        "validate_model": "model",
        "validate_preference": "values",
        "validate_priority": "values",
        "validate_request": "request",
    },
)
