"""Ways to break a valid model: those of the official suite (VTS ValidateModel, HAL 1.3).

Each function yields broken versions of a model, with a name each. The numbers of consumers are kept
true unless they are what is broken, so that each model has the one fault that its name says.
"""

from __future__ import annotations

from collections.abc import Iterator

from nnasync import hal
from nnasync.hal import (
    ChannelQuant,
    DataLocation,
    Model,
    Operand,
    OperandLifeTime,
    OperandType,
    Operation,
    OperationType,
)
from tests.validation.models import (
    COPY,
    INPUT,
    OUTPUT,
    TEMPORARY,
    changed,
    counted,
    replace,
    with_main,
)

Mutation = tuple[str, Model]
T = OperandType
O = OperationType  # noqa: E741

_WRITTEN = (TEMPORARY, OUTPUT)
_QUANTIZED = {
    T.TENSOR_QUANT8_ASYMM: (-1, 256),
    T.TENSOR_QUANT8_ASYMM_SIGNED: (-129, 128),
    T.TENSOR_QUANT8_SYMM: (-129, -1, 1, 128),
    T.TENSOR_QUANT16_ASYMM: (-1, 65536),
    T.TENSOR_QUANT16_SYMM: (-32769, -1, 1, 32768),
}
_FLOATS = (T.TENSOR_FLOAT16, T.TENSOR_FLOAT32)
_QUANT8 = (T.TENSOR_QUANT8_ASYMM, T.TENSOR_QUANT8_ASYMM_SIGNED)
_NUMBERS = (*_FLOATS, T.TENSOR_INT32, *_QUANT8)
_TENSORS = tuple(type for type in T if type.name.startswith("TENSOR_"))


def mutations(model: Model) -> Iterator[Mutation]:
    """All broken versions of a model."""
    for mutate in (
        execution_order,
        operand_types_that_do_not_exist,
        ranks_of_scalars,
        scales,
        zero_points,
        lifetimes,
        lifetimes_that_contradict_the_lists,
        numbers_of_consumers,
        second_writers,
        other_operand_types,
        operation_types_that_do_not_exist,
        indexes_out_of_range,
        missing_writers,
        missing_operands,
        missing_operations,
        missing_inputs,
        missing_outputs,
        extra_inputs,
        extra_outputs,
    ):
        for name, mutated in mutate(model):
            yield f"{mutate.__name__}: {name}", mutated


def with_operations(model: Model, operations: list[Operation]) -> Model:
    main = replace(model.main, operations=tuple(operations))
    return replace(model, main=counted(main))


def execution_order(model: Model) -> Iterator[Mutation]:
    operations = model.main.operations
    for writer, first in enumerate(operations):
        for reader, second in enumerate(operations):
            if set(first.outputs) & set(second.inputs):
                order = list(operations)
                order.insert(reader, order.pop(writer))
                yield f"operation {writer} after {reader}", with_operations(model, order)


def operand_types_that_do_not_exist(model: Model) -> Iterator[Mutation]:
    last = max(type for type in T if type < T.OEM)
    for index in range(len(model.main.operands)):
        for type in (-1, last + 1, T.OEM - 1, T.TENSOR_OEM_BYTE + 1, 0xFFFF, 0x10000):
            yield f"operand {index} is {type}", changed(model, index, type=type)


def ranks_of_scalars(model: Model) -> Iterator[Mutation]:
    for index, operand in enumerate(model.main.operands):
        if hal.is_scalar(operand.type):
            yield f"operand {index}", changed(model, index, dimensions=(1,))


def scales(model: Model) -> Iterator[Mutation]:
    for index, operand in enumerate(model.main.operands):
        wrong = {T.TENSOR_INT32: -1.0}.get(T(operand.type), 1.0)
        if operand.type in _QUANTIZED:
            wrong = 0.0
        yield f"operand {index} has {wrong}", changed(model, index, scale=wrong)


def zero_points(model: Model) -> Iterator[Mutation]:
    for index, operand in enumerate(model.main.operands):
        for wrong in _QUANTIZED.get(T(operand.type), (1,)):
            yield f"operand {index} has {wrong}", changed(model, index, zero_point=wrong)


def with_lifetime(model: Model, index: int, lifetime: OperandLifeTime) -> Model:
    """The operand with another lifetime, a place for its value and the lists as they must be."""
    values = bytes(model.operand_values)
    size = hal.byte_size(model.main.operands[index].type, model.main.operands[index].dimensions)
    location = DataLocation()
    if lifetime == COPY:
        location = DataLocation(0, len(values), size)
    model = changed(model, index, lifetime=lifetime, location=location)
    inputs = tuple(i for i in model.main.input_indexes if i != index)
    outputs = tuple(i for i in model.main.output_indexes if i != index)
    model = with_main(
        model,
        input_indexes=(*inputs, index) if lifetime == INPUT else inputs,
        output_indexes=(*outputs, index) if lifetime == OUTPUT else outputs,
    )
    return replace(model, operand_values=values + bytes(size), state=())


def lifetimes(model: Model) -> Iterator[Mutation]:
    written = {index for operation in model.main.operations for index in operation.outputs}
    for index, operand in enumerate(model.main.operands):
        if operand.type == T.SUBGRAPH:
            continue
        wrong = (INPUT, COPY, OperandLifeTime.NO_VALUE) if index in written else _WRITTEN
        for lifetime in wrong:
            yield f"operand {index} is {lifetime.name}", with_lifetime(model, index, lifetime)


def lifetimes_that_contradict_the_lists(model: Model) -> Iterator[Mutation]:
    for index, operand in enumerate(model.main.operands):
        listed = operand.lifetime in (INPUT, OUTPUT)
        for lifetime in OperandLifeTime:
            if lifetime != operand.lifetime and (listed or lifetime in (INPUT, OUTPUT)):
                yield (
                    f"operand {index} is {lifetime.name}",
                    changed(model, index, lifetime=lifetime),
                )


def numbers_of_consumers(model: Model) -> Iterator[Mutation]:
    for index, operand in enumerate(model.main.operands):
        for step in (-1, 1):
            count = operand.number_of_consumers + step
            yield f"operand {index} has {count}", changed(model, index, number_of_consumers=count)


def second_writers(model: Model) -> Iterator[Mutation]:
    """An operation is done again; all its results but one go to new temporaries."""
    operands, operations = model.main.operands, list(model.main.operations)
    for position, operation in enumerate(operations):
        for which, target in enumerate(operation.outputs):
            new: list[Operand] = []
            outputs = []
            for i, index in enumerate(operation.outputs):
                outputs.append(target if i == which else len(operands) + len(new))
                if i != which:
                    new.append(replace(operands[index], lifetime=TEMPORARY))
            again = replace(operation, outputs=tuple(outputs))
            larger = with_main(model, operands=(*operands, *new))
            yield (
                f"operand {target}",
                with_operations(
                    larger, [*operations[: position + 1], again, *operations[position + 1 :]]
                ),
            )


def retyped(operand: Operand, type: OperandType) -> Operand:
    """The operand with another type, and all else such that it is legal by itself."""
    scalar = hal.is_scalar(type)
    dimensions = () if scalar else operand.dimensions or (1,)
    scale = (operand.scale or 1.0) if type in _QUANTIZED else 0.0
    zero_point = 0
    if operand.type in _QUANT8 and type in _QUANT8:
        zero_point = 128 if type == T.TENSOR_QUANT8_ASYMM else 0
    extra = None
    if type == T.TENSOR_QUANT8_SYMM_PER_CHANNEL:
        dimensions = (dimensions[0] or 1, *dimensions[1:])
        extra = ChannelQuant((1.0,) * dimensions[0], 0)
    return replace(
        operand,
        type=type,
        dimensions=dimensions,
        scale=scale,
        zero_point=zero_point,
        extra_params=extra,
    )


def other_operand_types(model: Model) -> Iterator[Mutation]:
    for index, operand in enumerate(model.main.operands):
        for type in T:
            if type == operand.type or _may_be(model, index, type):
                continue
            operands = list(model.main.operands)
            operands[index] = retyped(operand, type)
            yield f"operand {index} is {type.name}", with_main(model, operands=tuple(operands))


def _may_be(model: Model, index: int, type: OperandType) -> bool:
    """Whether the official suite does not expect that an operand of this type is refused."""
    users = [o for o in model.main.operations if index in (*o.inputs, *o.outputs)]
    if not users:
        return True
    return any(_takes(operation, index, type) for operation in users)


def _takes(operation: Operation, index: int, type: OperandType) -> bool:
    """Substitutions that are legal in one operation, by the official list."""
    inputs, outputs = operation.inputs, operation.outputs
    legal: dict[int, list[tuple[int, tuple[OperandType, ...]]]] = {
        O.LSH_PROJECTION: [(inputs[1], _TENSORS)] if len(inputs) > 1 else [],
        O.CAST: [(inputs[0], _NUMBERS), (outputs[0], _NUMBERS)],
        O.ARGMAX: [(inputs[0], _NUMBERS)],
        O.ARGMIN: [(inputs[0], _NUMBERS)],
        O.QUANTIZE: [(inputs[0], _FLOATS), (outputs[0], _QUANT8)],
        O.RANDOM_MULTINOMIAL: [(inputs[0], _FLOATS)],
        O.DEQUANTIZE: [
            (inputs[0], (*_QUANT8, T.TENSOR_QUANT8_SYMM, T.TENSOR_QUANT8_SYMM_PER_CHANNEL)),
            (outputs[0], _FLOATS),
        ],
        O.RANK: [(inputs[0], _TENSORS)],
    }
    for convolution in (
        O.CONV_2D,
        O.DEPTHWISE_CONV_2D,
        O.GROUPED_CONV_2D,
        O.TRANSPOSE_CONV_2D,
    ):
        filters = (*_QUANT8, T.TENSOR_QUANT8_SYMM_PER_CHANNEL)
        legal[convolution] = [(inputs[1], filters)] if len(inputs) > 1 else []
    if operation.type == O.AXIS_ALIGNED_BBOX_TRANSFORM:
        legal[operation.type] = [(inputs[1], _QUANT8)]
    return any(i == index and type in types for i, types in legal.get(operation.type, []))


def operation_types_that_do_not_exist(model: Model) -> Iterator[Mutation]:
    last = max(type for type in O if type < O.OEM_OPERATION)
    for position, operation in enumerate(model.main.operations):
        for type in (-1, last + 1, O.OEM_OPERATION - 1, O.OEM_OPERATION + 1, 0xFFFF, 0x10000):
            operations = list(model.main.operations)
            operations[position] = replace(operation, type=type)
            yield f"operation {position} is {type}", with_operations(model, operations)


def indexes_out_of_range(model: Model) -> Iterator[Mutation]:
    count = len(model.main.operands)
    for position, operation in enumerate(model.main.operations):
        for field in ("inputs", "outputs"):
            indexes = getattr(operation, field)
            for which in range(len(indexes)):
                for wrong in (-1, count, 2**32 - 1):
                    broken = (*indexes[:which], wrong, *indexes[which + 1 :])
                    operations = list(model.main.operations)
                    operations[position] = replace(operation, **{field: broken})
                    yield (
                        f"{field} {which} of operation {position} is {wrong}",
                        with_operations(model, operations),
                    )


def missing_writers(model: Model) -> Iterator[Mutation]:
    """A result goes to a new temporary instead."""
    operands = model.main.operands
    for position, operation in enumerate(model.main.operations):
        for which, target in enumerate(operation.outputs):
            outputs = list(operation.outputs)
            outputs[which] = len(operands)
            larger = with_main(
                model, operands=(*operands, replace(operands[target], lifetime=TEMPORARY))
            )
            operations = list(model.main.operations)
            operations[position] = replace(operation, outputs=tuple(outputs))
            yield f"operand {target}", with_operations(larger, operations)


_MANY_OUTPUTS = (
    O.SPLIT,
    O.UNIDIRECTIONAL_SEQUENCE_LSTM,
    O.UNIDIRECTIONAL_SEQUENCE_RNN,
    O.BIDIRECTIONAL_SEQUENCE_LSTM,
    O.BIDIRECTIONAL_SEQUENCE_RNN,
    O.WHILE,  # what is no output any more is a state that only the body sees
)


def without_operand(model: Model, gone: int) -> Model:
    """The model without an operand: lists lose it, indices behind it move up."""

    def kept(indexes: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(index - (index > gone) for index in indexes if index != gone)

    main = model.main
    smaller = with_main(
        model,
        operands=main.operands[:gone] + main.operands[gone + 1 :],
        input_indexes=kept(main.input_indexes),
        output_indexes=kept(main.output_indexes),
    )
    return replace(
        with_operations(
            smaller,
            [replace(o, inputs=kept(o.inputs), outputs=kept(o.outputs)) for o in main.operations],
        ),
        state=(),
    )


def missing_operands(model: Model) -> Iterator[Mutation]:
    """An operand is gone from all lists; where an operation does without, that is no fault."""
    for index in range(len(model.main.operands)):
        users = [o for o in model.main.operations if index in (*o.inputs, *o.outputs)]
        if not users or any(o.type in _MANY_OUTPUTS and index in o.outputs for o in users):
            continue
        if any(_does_without(o, o.inputs.index(index)) for o in users if index in o.inputs):
            continue
        yield f"operand {index}", without_operand(model, index)


def missing_operations(model: Model) -> Iterator[Mutation]:
    for position in range(len(model.main.operations)):
        operations = list(model.main.operations)
        del operations[position]
        yield f"operation {position}", with_operations(model, operations)


def _does_without(operation: Operation, which: int) -> bool:
    """Whether an input may be left out, by the official list."""
    count, type = len(operation.inputs), operation.type
    last = which == count - 1
    if type == O.CONCATENATION:
        return count > 2 and not last
    if type == O.DEPTHWISE_CONV_2D:
        return last and count in (12, 9)
    if type in (O.CONV_2D, O.AVERAGE_POOL_2D, O.MAX_POOL_2D, O.L2_POOL_2D):
        return last and count in (11, 8)
    if type == O.RESIZE_BILINEAR:
        return which >= 3
    if type == O.RESIZE_NEAREST_NEIGHBOR:
        return which >= 3 and count >= 5
    legal = {
        O.SPACE_TO_DEPTH: 3,
        O.DEPTH_TO_SPACE: 3,
        O.BATCH_TO_SPACE_ND: 3,
        O.SPACE_TO_BATCH_ND: 4,
        O.L2_NORMALIZATION: 2,
        O.LOCAL_RESPONSE_NORMALIZATION: 6,
        O.SOFTMAX: 3,
    }
    return last and legal.get(O(type)) == count


def missing_inputs(model: Model) -> Iterator[Mutation]:
    for position, operation in enumerate(model.main.operations):
        for which in range(len(operation.inputs)):
            if _does_without(operation, which):
                continue
            operations = list(model.main.operations)
            inputs = operation.inputs[:which] + operation.inputs[which + 1 :]
            operations[position] = replace(operation, inputs=inputs)
            yield f"input {which} of operation {position}", with_operations(model, operations)


def missing_outputs(model: Model) -> Iterator[Mutation]:
    for position, operation in enumerate(model.main.operations):
        for which in range(len(operation.outputs)):
            operations = list(model.main.operations)
            outputs = operation.outputs[:which] + operation.outputs[which + 1 :]
            operations[position] = replace(operation, outputs=outputs)
            yield f"output {which} of operation {position}", with_operations(model, operations)


def _takes_one_more(operation: Operation) -> bool:
    """Whether one more INT32 may be legal, by the official list."""
    count = len(operation.inputs)
    if operation.type in (O.RESIZE_BILINEAR, O.RESIZE_NEAREST_NEIGHBOR):
        return count < 6
    legal = {O.L2_NORMALIZATION: 1, O.LOCAL_RESPONSE_NORMALIZATION: 5, O.SOFTMAX: 2}
    return legal.get(O(operation.type)) == count


def extra_inputs(model: Model) -> Iterator[Mutation]:
    operands = model.main.operands
    for position, operation in enumerate(model.main.operations):
        if _takes_one_more(operation):
            continue
        larger = with_main(
            model,
            operands=(*operands, Operand(T.INT32, lifetime=INPUT)),
            input_indexes=(*model.main.input_indexes, len(operands)),
        )
        operations = list(model.main.operations)
        operations[position] = replace(operation, inputs=(*operation.inputs, len(operands)))
        yield f"operation {position}", with_operations(larger, operations)


def extra_outputs(model: Model) -> Iterator[Mutation]:
    operands = model.main.operands
    for position, operation in enumerate(model.main.operations):
        larger = with_main(
            model,
            operands=(*operands, Operand(T.INT32, lifetime=OUTPUT)),
            output_indexes=(*model.main.output_indexes, len(operands)),
        )
        operations = list(model.main.operations)
        operations[position] = replace(operation, outputs=(*operation.outputs, len(operands)))
        yield f"operation {position}", with_operations(larger, operations)
