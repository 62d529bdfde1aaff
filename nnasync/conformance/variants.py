"""Further forms in which a case must pass: outputs of unknown shape, and its signed twin.

Dynamic output shapes: every dimension of every output is unknown to the model, the device finds the
shapes at execution. Not for a case with a scalar output.

Quantization coupling: who takes an operation on unsigned 8-bit tensors takes it on signed ones too,
with the same result, shifted by 128. A case of one operation has a twin in which every
TENSOR_QUANT8_ASYMM is a TENSOR_QUANT8_ASYMM_SIGNED; five operations are exempt. The HAL's
rule for AVERAGE_POOL_2D contradicts that at halves, where a twin may be within the tolerance.
"""

from __future__ import annotations

import msgspec
import numpy as np

from nnasync import hal
from nnasync._core.validation import find_operation
from nnasync.conformance.cases import Case, Expected, pools_of
from nnasync.hal import (
    Array,
    HalVersion,
    Model,
    Operand,
    OperandLifeTime,
    OperandType,
    OperationType,
    Subgraph,
)

UNCOUPLED = frozenset(
    {
        OperationType.HASHTABLE_LOOKUP,
        OperationType.LSH_PROJECTION,
        OperationType.PAD_V2,
        OperationType.CAST,
        OperationType.QUANTIZED_16BIT_LSTM,
    }
)
"""Operations whose unsigned cases have no signed twin."""

_UNSIGNED = OperandType.TENSOR_QUANT8_ASYMM
_SIGNED = OperandType.TENSOR_QUANT8_ASYMM_SIGNED
_SHIFT = 128


def with_dynamic_outputs(case: Case) -> Case | None:
    """The case with a model that knows the ranks of its outputs only; None if it has no such form.

    A case that is to fail has none: it could fail for another reason than it should.
    """
    main = case.model.main
    outputs = set(main.output_indexes)
    if case.expect_failure or any(hal.is_scalar(main.operands[index].type) for index in outputs):
        return None
    operands = tuple(
        msgspec.structs.replace(operand, dimensions=(0,) * len(operand.dimensions))
        if index in outputs
        else operand
        for index, operand in enumerate(main.operands)
    )
    return _with_main(case, msgspec.structs.replace(main, operands=operands))


def signed_twin(case: Case) -> Case | None:
    """The case on signed 8-bit tensors; None if it has no twin."""
    model = case.model
    operations, operands = model.main.operations, model.main.operands
    if case.expect_failure or model.referenced or len(operations) != 1:
        return None
    if operations[0].type in UNCOUPLED or all(each.type != _UNSIGNED for each in operands):
        return None
    twin = _with_main(
        case,
        msgspec.structs.replace(model.main, operands=tuple(map(_signed_operand, operands))),
        operand_values=_shifted_values(operands, model),
        pools=_shifted_pools(operands, model),
    )
    inputs = [
        shifted(value) if operands[index].type == _UNSIGNED and value is not None else value
        for index, value in zip(model.main.input_indexes, case.inputs, strict=True)
    ]
    return msgspec.structs.replace(
        twin,
        version=None if case.version is None else HalVersion.V1_3,
        inputs=tuple(inputs),
        outputs=tuple(map(_signed_output, case.outputs)),
    )


def has_exact_twin(model: Model) -> bool:
    """Returns whether signed and unsigned bytes can have the very same results, shifted."""
    known = (find_operation(model, each.type) for each in model.main.operations)
    return not any(each is not None and each.facts.rounds_by_sign for each in known)


def shifted(value: Array) -> Array:
    """Unsigned bytes as signed ones, and the other way round: less or more by 128."""
    other = np.dtype(np.int8) if value.dtype == np.uint8 else np.dtype(np.uint8)
    flipped: Array = (value.view(np.uint8) ^ np.uint8(_SHIFT)).view(other)
    return flipped


def _with_main(case: Case, main: Subgraph, **changes: object) -> Case:
    model: Model = msgspec.structs.replace(case.model, main=main, **changes)
    return msgspec.structs.replace(case, model=model)


def _signed_operand(operand: Operand) -> Operand:
    if operand.type != _UNSIGNED:
        return operand
    return msgspec.structs.replace(operand, type=_SIGNED, zero_point=operand.zero_point - _SHIFT)


def _signed_output(output: Expected) -> Expected:
    if output.type != _UNSIGNED:
        return output
    return msgspec.structs.replace(output, type=_SIGNED, value=shifted(output.value))


def _shifted_values(operands: tuple[Operand, ...], model: Model) -> bytes:
    values = bytearray(model.operand_values)
    for operand in operands:
        if operand.type == _UNSIGNED and operand.lifetime == OperandLifeTime.CONSTANT_COPY:
            _shift(memoryview(values), operand)
    return bytes(values)


def _shifted_pools(operands: tuple[Operand, ...], model: Model) -> tuple[hal.Memory, ...]:
    contents = [bytearray(pool.view) for pool in model.pools]
    for operand in operands:
        if operand.type == _UNSIGNED and operand.lifetime == OperandLifeTime.CONSTANT_REFERENCE:
            _shift(memoryview(contents[operand.location.pool_index]), operand)
    return pools_of(contents)


def _shift(pool: memoryview, operand: Operand) -> None:
    location = operand.location
    piece = np.frombuffer(pool, np.uint8)[location.offset : location.offset + location.length]
    piece ^= _SHIFT
