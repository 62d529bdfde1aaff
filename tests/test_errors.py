"""The exception tree: one class per status, grouped by who can act."""

from __future__ import annotations

import copy
import inspect
import re

import pytest

from nnasync import errors
from nnasync.hal import ErrorStatus, OutputShape

CLASSES = [
    value
    for value in vars(errors).values()
    if inspect.isclass(value) and issubclass(value, errors.NNError)
]
GROUPS = (errors.CallerError, errors.Cancelled, errors.DeviceError, errors.Refused)
TRANSIENT = {ErrorStatus.MISSED_DEADLINE_TRANSIENT, ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT}


@pytest.mark.parametrize("status", [s for s in ErrorStatus if s is not ErrorStatus.NONE])
def test_status_makes_its_class_and_the_class_keeps_the_status(status: ErrorStatus) -> None:
    error = errors.from_status(status, "operand 3 of operation 7")
    assert type(error) is errors.BY_STATUS[status]
    assert error.status is status
    assert str(error) == "operand 3 of operation 7"
    assert error.transient == (status in TRANSIENT)


def test_none_is_no_error() -> None:
    with pytest.raises(KeyError):
        errors.from_status(ErrorStatus.NONE, "")


@pytest.mark.parametrize("error", [e for e in CLASSES if e is not errors.Cancelled])
def test_class_travels_as_a_status_of_its_own_group(error: type[errors.NNError]) -> None:
    """Who gets the status at the other end of a wire is told to act as this side would be."""
    arrived = errors.BY_STATUS[error.status]
    assert [g for g in GROUPS if issubclass(error, g)] in (
        [g for g in GROUPS if issubclass(arrived, g)],
        [],
    )


def test_cancelled_has_no_status_of_its_group() -> None:
    """The HAL knows no cancelling: the other end sees an execution that failed."""
    assert errors.Cancelled.status is ErrorStatus.GENERAL_FAILURE


@pytest.mark.parametrize("error", [e for e in CLASSES if e is not errors.NNError])
def test_class_is_in_exactly_one_group(error: type[errors.NNError]) -> None:
    assert sum(issubclass(error, group) for group in GROUPS) == 1


def test_docstring_draws_the_tree_as_it_is() -> None:
    drawn = {}
    path: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"^    ([│ ]*)(?:[├└]── )?([A-Z]\w+)", line)
        if match:
            depth = len(match[1]) // 4 + ("──" in line)
            path = [*path[:depth], match[2]]
            drawn[match[2]] = path[-2] if depth else "Exception"
    assert drawn == {error.__name__: error.__bases__[0].__name__ for error in CLASSES}


def test_deadline_errors_are_caught_as_one_and_told_apart() -> None:
    with pytest.raises(errors.MissedDeadline) as caught:
        raise errors.MissedDeadlinePersistent("the deadline is 3 ms ago")
    assert not isinstance(caught.value, errors.MissedDeadlineTransient)


def test_a_missed_deadline_is_a_timeout() -> None:
    with pytest.raises(TimeoutError) as caught:
        raise errors.MissedDeadlineTransient("3 ms late")
    assert str(caught.value) == "3 ms late"


def test_output_insufficient_size_tells_what_is_needed() -> None:
    shapes = (OutputShape((1, 4), is_sufficient=False),)
    error = errors.OutputInsufficientSize("output 0 needs 16 bytes, has 8", shapes)
    assert error.output_shapes == shapes
    assert str(error) == "output 0 needs 16 bytes, has 8"
    assert errors.OutputInsufficientSize("no shapes known").output_shapes == ()


@pytest.mark.parametrize("error", CLASSES)
def test_error_can_be_made_again_from_itself(error: type[errors.NNError]) -> None:
    """Each awaiter of a failed fence gets its own exception of the same class."""
    again = copy.copy(error("the device hung"))
    assert type(again) is error
    assert again.args == ("the device hung",)
