"""Every way to break a valid model is refused, as the official suite has it (VTS ValidateModel)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

import pytest

from nnasync import hal
from nnasync._core.validation import validate_model
from nnasync.conformance.cases import Case
from nnasync.errors import ModelError
from nnasync.hal import Model
from tests.validation.models import EXAMPLE, branching, looping, one_of_each
from tests.validation.mutations import mutations

OWN = {"example": EXAMPLE, "if": branching(), "while": looping()}


def accepted(model: Model, step: int = 1) -> list[str]:
    """Names of those that are taken for legal of the broken versions of a model, or each n-th."""
    names = []
    for name, mutated in islice(mutations(model), 0, None, step):
        try:
            validate_model(mutated)
        except ModelError:
            continue
        names.append(name)
    return names


@pytest.mark.parametrize("name", OWN)
def test_own_models(name: str) -> None:
    validate_model(OWN[name])
    kinds = Counter(mutation.split(":")[0] for mutation, _ in mutations(OWN[name]))
    assert len(kinds) >= 17, kinds
    assert accepted(OWN[name]) == []


def wrongly_accepted(cases: Iterable[Case], step: int = 1) -> dict[str, list[str]]:
    """Broken versions of the cases' models that are taken for legal, in steps of large ones."""
    wrong: dict[str, list[str]] = {}
    for case in cases:
        validate_model(case.model)
        names = accepted(case.model, step if len(case.model.main.operands) > 20 else 1)
        if names:
            wrong[case.name] = names
    return wrong


def test_one_official_model_of_each_operation(shared: Path) -> None:
    assert wrongly_accepted(one_of_each(shared), step=7) == {}


@pytest.mark.slow
def test_one_official_model_of_each_operation_and_type(shared: Path) -> None:
    assert wrongly_accepted(one_of_each(shared, types=True)) == {}


def test_messages_name_the_place() -> None:
    """Whatever is wrong, the message says where: a part of the model, by its number or list."""
    places = ("operand ", "operation ", "_indexes", "subgraph")
    for name, mutated in mutations(looping()):
        with pytest.raises(ModelError) as caught:
            validate_model(mutated)
        assert any(place in str(caught.value) for place in places), name


def test_operation_names_are_told() -> None:
    for name, mutated in mutations(EXAMPLE):
        if name.startswith(("missing_inputs", "extra_inputs", "extra_outputs")):
            with pytest.raises(ModelError, match=r"operation \d \((ADD|MUL|RESHAPE)\)"):
                validate_model(mutated)
    assert hal.operation_name(EXAMPLE.main.operations[0].type) == "ADD"
