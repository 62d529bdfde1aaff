"""Whatever bytes come, the protocol has a typed error for them, and never one of its own."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable
from typing import Any

import anyio
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnasync.serving import Limits, ServingError
from nnasync.serving.content_coding import accepted, unpacked
from nnasync.serving.datatypes import DTYPES, from_raw, from_values, to_raw
from nnasync.serving.json_protocol import decoded, encoded
from nnasync.serving.messages import InferAnswer, InferRequest, OutputTensor
from nnasync.serving.parameters import region_of, split_parameters
from tests.fuzz import fuzz_protocol
from tests.rigs import calculator, doubler
from tests.serving.rig import ROW_JSON, outcomes, serving

LIMITS = Limits(elements=4096, dimensions=4, text_bytes=64)

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["x", "y", "FP32", "BYTES", "FP16", "r"])
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=4), inner)
)
names = st.sampled_from(
    [
        "binary_data_size",
        "shared_memory_region",
        "shared_memory_byte_size",
        "shared_memory_offset",
        "binary_data",
        "classification",
        "priority",
        "timeout",
        "sequence_id",
        "sequence_start",
        "binary_data_output",
        "triton_x",
        "own",
    ]
)
parameters = st.dictionaries(names, scalars, max_size=4)
shapes = st.lists(st.integers(-2, 5) | st.integers(2**31, 2**63), max_size=5)
tensors = st.fixed_dictionaries(
    {
        "name": st.sampled_from(["x", "a", "b", "q", ""]),
        "shape": shapes | st.just([1, 4]),
        "datatype": st.sampled_from([*DTYPES, "FP99", ""]),
    },
    optional={
        "parameters": parameters,
        "data": values | st.lists(st.floats(), min_size=4, max_size=4),
    },
)
raw_bytes = st.binary(max_size=40) | st.binary(min_size=16, max_size=16)
outputs = st.fixed_dictionaries(
    {"name": st.sampled_from(["y", "sum", "product", "zz"])}, optional={"parameters": parameters}
)
requests = st.fixed_dictionaries(
    {"inputs": st.just([ROW_JSON]) | st.lists(tensors | st.just(ROW_JSON), max_size=3)},
    optional={
        "id": st.text(max_size=70),
        "parameters": parameters,
        "outputs": st.lists(outputs, max_size=3),
    },
)


def headers(size: int) -> st.SearchStrategy[str | None]:
    """Lengths of the JSON, right and wrong."""
    near = st.integers(-1, size + 2).map(str)
    return st.none() | st.just(str(size)) | near | st.text(max_size=6)


def refused(call: Callable[[], Any]) -> Any:
    """What a call gives, or its error, which is the client's fault."""
    try:
        return call()
    except ServingError as error:
        assert 400 <= error.code < 500
        assert error.text
        return error


@given(st.binary(max_size=200), st.data())
def test_any_bytes_are_a_request_or_an_error(body: bytes, data: st.DataObject) -> None:
    header = data.draw(headers(len(body)))
    found = refused(lambda: decoded(body, header, LIMITS, "doubler"))
    assert isinstance(found, (InferRequest, ServingError))


@pytest.mark.anyio
@pytest.mark.one_loop("What is read is the same on every loop.")
async def test_any_request_is_answered_or_refused_and_accounted_for() -> None:
    async with serving(models=(doubler(), calculator())) as server:
        tried = {"doubler": 0, "calculator": 0}

        @settings(max_examples=100)
        @given(requests, st.just(b"") | raw_bytes, st.sampled_from(sorted(tried)), st.data())
        def look(told: Any, raw: bytes, model: str, data: st.DataObject) -> None:
            text = json.dumps(told).encode("utf-8", "surrogatepass")
            length = str(len(text))
            header = data.draw(st.just(length) | st.just(length) | headers(len(text)))
            found = refused(lambda: decoded(text + raw, header, LIMITS, model))
            if isinstance(found, InferRequest):
                tried[model] += 1
                anyio.from_thread.run(ask, found)

        async def ask(request: InferRequest) -> None:
            try:
                answer = await server.infer(request)
            except ServingError as error:
                assert 400 <= error.code < 500, error.text
            else:
                refused(lambda: encoded(answer, request))

        await anyio.to_thread.run_sync(look)
        for model, number in tried.items():
            assert number > 0
            assert sum(outcomes(server, model).values()) == number


@given(st.dictionaries(names | st.text(max_size=5), values, max_size=5))
def test_any_parameters(given_parameters: dict[str, Any]) -> None:
    refused(lambda: split_parameters(given_parameters))
    refused(lambda: region_of(given_parameters))


@given(st.sampled_from(sorted(DTYPES)), st.lists(st.integers(0, 4), max_size=3), values)
def test_any_values(datatype: str, shape: list[int], given_values: Any) -> None:
    found = refused(lambda: from_values(datatype, tuple(shape), given_values))
    if not isinstance(found, ServingError):
        assert found.shape == tuple(shape)


@given(st.sampled_from(sorted(DTYPES)), st.lists(st.integers(0, 3), max_size=3), st.binary())
def test_any_raw_elements_come_back_as_they_were(
    datatype: str, shape: list[int], raw: bytes
) -> None:
    found = refused(lambda: from_raw("x", datatype, tuple(shape), raw, "m"))
    if isinstance(found, ServingError):
        return
    back = to_raw(found, datatype)
    if datatype == "BF16":  # NaNs are made quiet
        again = from_raw("x", datatype, tuple(shape), back, "m")
        assert np.array_equal(found, again, equal_nan=True)
    else:
        assert bytes(back) == raw


@given(st.lists(st.binary(max_size=20), max_size=5))
def test_strings_of_bytes_round_trip(strings: list[bytes]) -> None:
    array = from_values("BYTES", (len(strings),), strings)
    assert from_raw("x", "BYTES", (len(strings),), to_raw(array, "BYTES"), "m").tolist() == strings


@given(st.binary(max_size=300), st.sampled_from(["gzip", "deflate", "br", " GZIP ", ""]))
def test_any_packed_body(body: bytes, coding: str) -> None:
    for content in (body, gzip.compress(body), zlib.compress(body), gzip.compress(body)[:-1]):
        try:
            found = unpacked(content, coding, 1000)
        except ServingError as error:
            assert error.code in (400, 413, 501)
        else:
            assert len(found) <= 1000


@given(st.text(max_size=40))
def test_any_header_of_codings(header: str) -> None:
    assert accepted(header) in ("", "gzip", "deflate")


@given(st.floats(width=32))
def test_floats_lose_at_most_half_a_unit_as_bf16(value: float) -> None:
    array = np.array([value], np.float32)
    back = from_raw("x", "BF16", (1,), to_raw(array, "BF16"), "m")
    if np.isfinite(value) and np.isfinite(back[0]):
        assert abs(float(back[0]) - value) <= max(abs(value) * 2.0**-8, 2.0**-126)
    elif np.isnan(value):
        assert np.isnan(back[0])


def test_an_answer_with_text_that_is_none() -> None:
    array = from_values("BYTES", (1,), [b"\xff"])
    answer = InferAnswer("m", "1", "", (OutputTensor("y", "BYTES", (1,), array),))
    with pytest.raises(ServingError, match="no text"):
        encoded(answer, InferRequest("m"))


def test_damaged_requests() -> None:
    counts = fuzz_protocol.fuzz(1000, seed=1)
    assert counts.total() == 1000
    assert counts["answered"] > 30
    assert counts["400"] > 100
