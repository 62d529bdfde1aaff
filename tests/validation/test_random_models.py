"""Whatever numbers a file puts into a model: it is legal, or refused with ModelError."""

from __future__ import annotations

from pathlib import Path

import pytest

from nnasync._core.validation import (
    compliant_with,
    minimum_version,
    noncompliance,
    older_model,
    validate_model,
)
from nnasync.dump import model_dot, model_text
from nnasync.errors import CallerError, ModelError
from nnasync.hal import HalVersion, Model
from tests.validation.models import EXAMPLE, branching, looping, one_of_each
from tests.validation.random_changes import Changer


def survives(model: Model) -> bool:
    """Whether a model is legal; what all that is legal must bear is tried on it."""
    try:
        validate_model(model)
    except ModelError as error:
        assert str(error)
        return False
    version = minimum_version(model)
    for each in HalVersion:
        assert compliant_with(each, model) == (each >= version)
        assert bool(noncompliance(each, model).reasons) == (each < version)
        older_model(each, model)
    assert model_text(model)
    assert model_dot(model)
    return True


def run(models: list[Model], seeds: range) -> int:
    """How many of the changed models are legal."""
    legal = 0
    for seed in seeds:
        changer = Changer(seed)
        legal += survives(changer.changed(models[seed % len(models)]))
    return legal


def test_own_models() -> None:
    count = 3000
    legal = run([EXAMPLE, branching(), looping()], range(count))
    assert 0.02 * count < legal < 0.5 * count


def test_official_models(shared: Path) -> None:
    count = 2000
    legal = run([case.model for case in one_of_each(shared)], range(count))
    assert 0.02 * count < legal < 0.5 * count


@pytest.mark.slow
def test_many_official_models(shared: Path) -> None:
    models = [case.model for case in one_of_each(shared, types=True)]
    assert run(models, range(100_000)) > 2000


def test_refusals_are_the_caller_s() -> None:
    assert issubclass(ModelError, CallerError)
