"""Optional arguments at the end that have their default value, taken away as NNAPI's runtime does.

The HAL version that an official case states is that of its model without them.
"""

from __future__ import annotations

from nnasync import hal
from nnasync._core.validation import operand_value
from nnasync.hal import Model, Operation, OperationType
from tests.validation.models import COPY, counted, replace

O = OperationType  # noqa: E741

DEFAULTS: dict[int, dict[int, list[int | bool]]] = {
    O.AVERAGE_POOL_2D: {7: [False], 10: [False]},
    O.L2_POOL_2D: {7: [False], 10: [False]},
    O.MAX_POOL_2D: {7: [False], 10: [False]},
    O.CONV_2D: {7: [False, 1, 1], 10: [False, 1, 1]},
    O.DEPTHWISE_CONV_2D: {8: [False, 1, 1], 11: [False, 1, 1]},
    O.DEPTH_TO_SPACE: {2: [False]},
    O.SPACE_TO_DEPTH: {2: [False]},
    O.BATCH_TO_SPACE_ND: {2: [False]},
    O.SPACE_TO_BATCH_ND: {3: [False]},
    O.L2_NORMALIZATION: {1: [-1]},
    O.LOCAL_RESPONSE_NORMALIZATION: {5: [-1]},
    O.SOFTMAX: {2: [-1]},
    O.RESIZE_BILINEAR: {3: [False, False, False]},
    O.RESIZE_NEAREST_NEIGHBOR: {4: [False, False]},
}
"""By operation and number of mandatory inputs, the defaults of those that follow."""


def without_defaults(model: Model) -> Model:
    """The model whose operations end with what they need; operands left over stay, unused."""
    operations = tuple(_shortened(model, operation) for operation in model.main.operations)
    return replace(model, main=counted(replace(model.main, operations=operations)))


def _shortened(model: Model, operation: Operation) -> Operation:
    forms = DEFAULTS.get(operation.type, {})
    inputs = operation.inputs
    mandatory = _mandatory(model, operation, sorted(forms))
    if mandatory is None:
        return operation
    defaults = forms[mandatory]
    while len(inputs) > mandatory:
        operand = model.main.operands[inputs[-1]]
        value = operand_value(model, operand) if operand.lifetime == COPY else None
        if value is None or value != defaults[len(inputs) - mandatory - 1]:
            break
        inputs = inputs[:-1]
    two_dilations = len(defaults) == 3 and hal.operation_name(operation.type).endswith("CONV_2D")
    if two_dilations and len(inputs) == mandatory + 2:
        inputs = operation.inputs
    return replace(operation, inputs=inputs)


def _mandatory(model: Model, operation: Operation, counts: list[int]) -> int | None:
    """The number of mandatory inputs of the form at hand: implicit padding is the shorter one."""
    if not counts:
        return None
    shorter = counts[0]
    inputs = operation.inputs
    if len(counts) == 1 or len(inputs) == shorter:
        return shorter
    type = model.main.operands[inputs[shorter]].type
    return shorter if type == hal.OperandType.BOOL else counts[1]
