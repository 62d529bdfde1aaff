"""A quantized model with floats outside: inputs are quantized first, outputs dequantized last.

Both are operations of the model, so devices compute them, and every way of execution has them. A
state stays as it is: nobody outside sees it. Words of 16 bits are converted by org.nnasync.tflite,
since the HAL converts bytes only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from nnasync._core.validation import validate_model
from nnasync.extensions import MAX_PREFIX, TFLITE, TfliteOperation, encode
from nnasync.hal import (
    ExtensionNameAndPrefix,
    Model,
    Operand,
    OperandLifeTime,
    OperandType,
    Operation,
    OperationType,
    Subgraph,
)

_BYTES = (OperandType.TENSOR_QUANT8_ASYMM, OperandType.TENSOR_QUANT8_ASYMM_SIGNED)
_WORDS = (OperandType.TENSOR_QUANT16_SYMM, OperandType.TENSOR_QUANT16_ASYMM)


def with_float_ports(model: Model) -> Model:
    """The model with TENSOR_FLOAT32 in place of quantized inputs and outputs; itself without such.

    Raises ModelError where the model is not legal.
    """
    main = model.main
    inputs = _quantized(main, main.input_indexes, {pair.input for pair in model.state})
    outputs = _quantized(main, main.output_indexes, {pair.output for pair in model.state})
    if not inputs and not outputs:
        return model
    entries, prefix = _with_extension(model, (*inputs, *outputs))
    operands, before, after = list(main.operands), list[Operation](), list[Operation]()
    given = _moved_inside(operands, inputs, OperandLifeTime.SUBGRAPH_INPUT)
    results = _moved_inside(operands, outputs, OperandLifeTime.SUBGRAPH_OUTPUT)
    for inner, outer in given.items():
        type = _operation(operands[inner], prefix, OperationType.QUANTIZE, TfliteOperation.QUANTIZE)
        before.append(Operation(type, (outer,), (inner,)))
    for inner, outer in results.items():
        type = _operation(
            operands[inner], prefix, OperationType.DEQUANTIZE, TfliteOperation.DEQUANTIZE
        )
        after.append(Operation(type, (inner,), (outer,)))
    made = msgspec.structs.replace(
        model,
        main=Subgraph(
            tuple(operands),
            (*before, *main.operations, *after),
            tuple(given.get(index, index) for index in main.input_indexes),
            tuple(results.get(index, index) for index in main.output_indexes),
        ),
        extension_name_to_prefix=entries,
    )
    validate_model(made)
    return made


def _quantized(main: Subgraph, indexes: Sequence[int], states: set[int]) -> list[int]:
    """The operands among these inputs or outputs that stand for real numbers, but for states."""
    return [
        index
        for place, index in enumerate(indexes)
        if place not in states
        and main.operands[index].type in (*_BYTES, *_WORDS)
        and main.operands[index].scale
    ]


def _moved_inside(
    operands: list[Operand], indexes: Sequence[int], lifetime: OperandLifeTime
) -> Mapping[int, int]:
    """Add a float operand for each of these, which become temporary; the new by the old ones."""
    added: dict[int, int] = {}
    is_input = lifetime == OperandLifeTime.SUBGRAPH_INPUT
    for index in indexes:
        inner = operands[index]
        added[index] = len(operands)
        operands.append(
            Operand(
                type=int(OperandType.TENSOR_FLOAT32),
                dimensions=inner.dimensions,
                number_of_consumers=int(is_input),
                lifetime=lifetime,
                name=inner.name,
            )
        )
        operands[index] = msgspec.structs.replace(
            inner,
            number_of_consumers=inner.number_of_consumers + (not is_input),
            lifetime=OperandLifeTime.TEMPORARY_VARIABLE,
            name=f"{inner.name}/quantized" if inner.name else "",
        )
    return added


def _operation(
    inner: Operand, prefix: int, of_bytes: OperationType, of_words: TfliteOperation
) -> int:
    return int(of_bytes) if inner.type in _BYTES else encode(prefix, of_words)


def _with_extension(
    model: Model, indexes: Sequence[int]
) -> tuple[tuple[ExtensionNameAndPrefix, ...], int]:
    """The extensions of the model with that of words, if one of these operands needs it."""
    entries = model.extension_name_to_prefix
    known = {entry.name: entry.prefix for entry in entries}
    if TFLITE.name in known or not any(model.main.operands[n].type in _WORDS for n in indexes):
        return entries, known.get(TFLITE.name, 0)
    prefix = next(n for n in range(1, MAX_PREFIX + 1) if n not in known.values())
    return (*entries, ExtensionNameAndPrefix(TFLITE.name, prefix)), prefix
