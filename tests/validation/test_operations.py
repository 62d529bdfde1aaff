"""Each operation takes the operands of its signatures and no others (TestValidateOperations)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from nnasync import hal
from nnasync._core.validation import minimum_version, validate_model
from nnasync.errors import ModelError
from nnasync.hal import Model, OperandType, OperationType
from nnasync.kernels import OPERATIONS, Parameter, Signature
from tests.validation.models import EXAMPLE, replace, with_main
from tests.validation.signatures import CASES, model_of, of_signature, typed

EXTRA = Parameter("extra", OperandType.INT32)


def is_legal(model: Model) -> bool:
    try:
        validate_model(model)
    except ModelError:
        return False
    return True


def has_signature(type: int, inputs: list[int], outputs: list[int]) -> bool:
    """Whether the table of an operation has these types; written apart from what is tested."""
    for signature in OPERATIONS[OperationType(type)].signatures:
        wanted = [parameter.type for parameter in signature.inputs]
        if signature.variadic and len(inputs) > len(wanted):
            wanted = wanted[:1] * (len(inputs) - len(wanted)) + wanted
        results = [parameter.type for parameter in signature.outputs]
        if signature.variadic_outputs and len(outputs) > len(results):
            results += results[-1:] * (len(outputs) - len(results))
        if wanted == inputs and results == outputs:
            return True
    return False


@pytest.mark.parametrize("type", OPERATIONS, ids=lambda type: type.name)
def test_operands_of_each_signature_are_taken(type: OperationType) -> None:
    for signature in OPERATIONS[type].signatures:
        model = of_signature(type, signature)
        validate_model(model)
        assert minimum_version(model) >= OPERATIONS[type].since


def retyped(type: int, signature: Signature) -> Iterator[Model]:
    """Models of a signature with one operand of another type, unless another signature has it.

    Of an operation with very many inputs, of which most are alike, each fourth is changed.
    """
    for field in ("inputs", "outputs"):
        step = 4 if len(getattr(signature, field)) > 25 else 1
        for position, parameter in list(enumerate(getattr(signature, field)))[::step]:
            for other in OperandType:
                if other in (OperandType.SUBGRAPH, OperandType.OEM):
                    continue
                operands = {"inputs": typed(signature.inputs), "outputs": typed(signature.outputs)}
                operands[field][position] = (parameter, other)
                types = [[t for _, t in operands[name]] for name in ("inputs", "outputs")]
                if not has_signature(type, *types):
                    yield model_of(type, operands["inputs"], operands["outputs"])


@pytest.mark.parametrize("type", OPERATIONS, ids=lambda type: type.name)
def test_other_types_are_taken_only_by_other_signatures(type: OperationType) -> None:
    signatures = OPERATIONS[type].signatures
    for signature in signatures[:: 1 + len(signatures) // 8]:
        for model in retyped(type, signature):
            assert not is_legal(model), model.main


@pytest.mark.parametrize("type", OPERATIONS, ids=lambda type: type.name)
def test_other_counts_are_taken_only_by_other_signatures(type: OperationType) -> None:
    for signature in OPERATIONS[type].signatures:
        inputs, outputs = typed(signature.inputs), typed(signature.outputs)
        extra = (EXTRA, int(EXTRA.type))
        for ins, outs in (
            (inputs[:-1], outputs),
            ([*inputs, extra], outputs),
            (inputs, outputs[:-1]),
            (inputs, [*outputs, extra]),
        ):
            types = [t for _, t in ins], [t for _, t in outs]
            if not has_signature(type, *types):
                assert not is_legal(model_of(type, ins, outs)), (signature, *types)


@pytest.mark.parametrize("type", OPERATIONS, ids=lambda type: type.name)
def test_omitted_operands_keep_their_types(type: OperationType) -> None:
    """An operand without a value is checked like any other, and must be one that may be omitted."""
    for signature in OPERATIONS[type].signatures:
        for position, parameter in enumerate(signature.inputs):
            model = omitted(of_signature(type, signature), position)
            assert is_legal(model) == parameter.optional, parameter
            wrong = (
                OperandType.TENSOR_BOOL8
                if parameter.type != OperandType.TENSOR_BOOL8
                else OperandType.TENSOR_FLOAT16
            )
            operands = typed(signature.inputs)
            operands[position] = (parameter, wrong)
            types = [t for _, t in operands]
            if not has_signature(type, types, [p.type for p in signature.outputs]):
                other = model_of(type, operands, typed(signature.outputs))
                assert not is_legal(omitted(other, position))


def omitted(model: Model, position: int) -> Model:
    """The model whose input at a position has no value."""
    operands = list(model.main.operands)
    operands[position] = replace(operands[position], lifetime=hal.OperandLifeTime.NO_VALUE)
    inputs = tuple(index for index in model.main.input_indexes if index != position)
    return with_main(model, operands=tuple(operands), input_indexes=inputs)


def test_every_operation_of_the_hal_has_signatures() -> None:
    control_flow = {OperationType.IF, OperationType.WHILE, OperationType.OEM_OPERATION}
    assert set(OPERATIONS) == set(OperationType) - control_flow


def test_ranks_are_checked_where_known() -> None:
    wrong = 0
    for type, number in CASES:
        signature = OPERATIONS[type].signatures[number]
        for position, parameter in enumerate(signature.inputs):
            ranks = {
                rank
                for other in OPERATIONS[type].signatures
                if [p.type for p in other.inputs] == [p.type for p in signature.inputs]
                for rank in other.inputs[position].ranks or range(7)
            }
            quantized = parameter.type == OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL
            if not parameter.ranks or 6 in ranks or quantized:
                continue
            operands = list(of_signature(type, signature).main.operands)
            operands[position] = replace(operands[position], dimensions=(0,) * 6)
            model = with_main(of_signature(type, signature), operands=tuple(operands))
            with pytest.raises(ModelError, match=f"input {position} .* expected rank"):
                validate_model(model)
            wrong += 1
    assert wrong > 100


def test_oem_operations_take_anything() -> None:
    first, second = EXAMPLE.main.operations
    odd = replace(second, type=OperationType.OEM_OPERATION)
    validate_model(with_main(EXAMPLE, operations=(first, odd)))
