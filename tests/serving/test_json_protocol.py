"""Headers in JSON that come again are read once, and checked as if they were not."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Any

import numpy as np
import pytest

from nnasync.serving.json_protocol import decoded
from nnasync.serving.limits import Limits
from nnasync.serving.problems import ServingError


def header(size: int) -> bytes:
    """The JSON of a request with one input of so many bytes behind it."""
    tensor = {"name": "x", "shape": [size], "datatype": "UINT8",
              "parameters": {"binary_data_size": size}}  # fmt: skip
    return json.dumps({"id": "an id", "inputs": [tensor]}).encode()


def test_a_header_that_comes_again_has_the_tensors_behind_it() -> None:
    text = header(3)
    for tensor in (b"abc", b"xyz"):
        request = decoded(text + tensor, str(len(text)), Limits(), "m")
        assert request.id == "an id"
        raw = request.inputs[0].raw
        assert raw is not None
        assert bytes(raw) == tensor


@pytest.mark.parametrize("limits", [Limits(json_bytes=8), Limits(text_bytes=3)])
def test_a_header_that_was_allowed_is_not_where_limits_are_others(limits: Limits) -> None:
    text = header(3)
    decoded(text + b"abc", str(len(text)), Limits(), "m")
    with pytest.raises(ServingError) as refused:
        decoded(text + b"abc", str(len(text)), limits, "m")
    assert refused.value.code == 413


def test_a_header_that_comes_again_with_too_few_bytes_behind_it() -> None:
    text = header(3)
    decoded(text + b"abc", str(len(text)), Limits(), "m")
    with pytest.raises(ServingError, match="expecting 1 additional bytes"):
        decoded(text + b"ab", str(len(text)), Limits(), "m")
    with pytest.raises(ServingError, match="unexpected additional input data"):
        decoded(text + b"abcd", str(len(text)), Limits(), "m")


def large(text: str, datatype: str = "FP32", size: int = 100_000) -> Any:
    """The values of a long list in JSON."""
    tensor = f'{{"name": "x", "shape": [{size}], "datatype": "{datatype}", "data": {text}}}'
    request = decoded(f'{{"inputs": [{tensor}]}}'.encode(), None, Limits(), "m")
    return request.inputs[0].values


def test_a_long_list_is_read_in_pieces() -> None:
    numbers = [number / 3 for number in range(100_000)]
    found = large(f" [ {', '.join(map(str, numbers))} ] ".strip())
    assert found.dtype == np.float32
    assert np.array_equal(found, np.array(numbers, np.float32))
    assert large(str(list(range(100_000))), "INT64").tolist() == list(range(100_000))


@pytest.mark.parametrize(
    ("text", "datatype"),
    [
        (f"[{'1, ' * 100_000}]", "FP32"),
        (f"[{'1,' * 32768}, 2]", "FP32"),
        (f"[{'1.5, ' * 100_000}1]", "INT32"),
        (f"[{'1, ' * 100_000}null]", "FP32"),
        (f"[{'300, ' * 100_000}1]", "UINT8"),
    ],
)
def test_a_long_list_that_is_wrong_is_refused(text: str, datatype: str) -> None:
    with pytest.raises(ServingError) as caught:
        large(text, datatype)
    assert caught.value.code == HTTPStatus.BAD_REQUEST
