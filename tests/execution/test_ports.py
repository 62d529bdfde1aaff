"""Ports: what may be given to a network, in which form, and what is refused."""

from __future__ import annotations

import array
import math
from typing import Any

import numpy as np
import pytest

import nnasync as nn
from nnasync.errors import InvalidArgument
from nnasync.execution.ports import as_array, check_out, copy_in, in_order, ports_of
from tests.rigs import ROW, SHAPE, calculator, counter, doubler, quantized

FLOAT = ports_of(doubler()).inputs[0]
BYTES = ports_of(quantized()).inputs[0]
SIGNED = ports_of(quantized(nn.OperandType.TENSOR_QUANT8_ASYMM_SIGNED)).inputs[0]
VALUES = [[1.0, 2.0, 3.0, 4.0]]


class WithArray:
    """An object of another library that numpy can read."""

    def __init__(self, values: Any) -> None:
        self.values = values

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return np.asarray(self.values, dtype)


class WithDLPack:
    """An object that has nothing but DLPack."""

    def __init__(self, values: Any) -> None:
        self._values = values

    def __dlpack__(self, **options: Any) -> Any:
        return self._values.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self._values.__dlpack_device__()


class Broken:
    """An object whose array cannot be had."""

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        raise RuntimeError("on another device")


def copied(value: Any, port: Any = FLOAT) -> Any:
    target = np.full(port.shape, 99, port.dtype)
    copy_in(target, value, port)
    return target


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(VALUES, id="lists"),
        pytest.param((tuple(VALUES[0]),), id="tuples"),
        pytest.param([[1, 2, 3, 4]], id="lists of int"),
        pytest.param([ROW[0]], id="list of arrays"),
        pytest.param(ROW, id="numpy"),
        pytest.param(np.repeat(ROW, 2, axis=1)[:, ::2], id="every second element"),
        pytest.param(ROW[:, ::-1].copy()[:, ::-1], id="backwards"),
        pytest.param(np.asfortranarray(np.repeat(ROW, 3, axis=0))[1:2], id="columns first"),
        pytest.param(np.broadcast_to(ROW, SHAPE), id="read-only"),
        pytest.param(ROW.data, id="buffer"),
        pytest.param(np.ma.array(ROW), id="subclass of ndarray"),
        pytest.param(WithArray(ROW), id="__array__"),
        pytest.param(WithDLPack(ROW.copy()), id="DLPack only"),
    ],
)
def test_anything_array_like_is_an_input(value: Any) -> None:
    assert copied(value).tolist() == VALUES


@pytest.mark.parametrize("buffer", [bytes, bytearray, memoryview, lambda b: array.array("B", b)])
def test_buffers_of_bytes_are_inputs_of_uint8(buffer: Any) -> None:
    builder = nn.ModelBuilder()
    x = builder.input("x", (4,), type=nn.OperandType.TENSOR_QUANT8_ASYMM, scale=1.0)
    builder.output("y", builder.relu(x))
    port = ports_of(builder.build()).inputs[0]
    assert copied(buffer(b"\x01\x02\xfe\xff"), port).tolist() == [1, 2, 254, 255]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (np.zeros((4,), np.float32), r"shape \[4\], should be \[1, 4\]"),
        (np.zeros((1, 5), np.float32), r"shape \[1, 5\]"),
        (np.float32(1), r"shape \[\]"),
        ([], r"shape \[0\]|dtype"),
        (np.zeros(SHAPE), "dtype float64, should be float32"),
        (np.zeros(SHAPE, np.float16), "dtype float16"),
        (np.zeros(SHAPE, np.int32), "dtype int32"),
        (np.zeros(SHAPE, ">f4"), "dtype >f4"),
        (np.zeros(SHAPE, np.complex64), "complex64"),
        (np.zeros(SHAPE, object), "object"),
        ([["a", "b", "c", "d"]], "dtype"),
        ([[1, 2], [3]], "not an array"),
        ([[1j, 0, 0, 0]], "dtype"),
        ([[2**70, 0, 0, 0]], "dtype"),
        (None, "is None; only a plain call can omit"),
        (object(), "dtype object"),
        ("text", "dtype"),
        (Broken(), "not an array: on another device"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(value: Any, text: str) -> None:
    with pytest.raises(InvalidArgument, match=text) as caught:
        copied(value)
    assert "'x'" in str(caught.value)


def test_a_refused_value_leaves_the_memory_alone() -> None:
    target = np.full(SHAPE, 7, np.float32)
    with pytest.raises(InvalidArgument):
        copy_in(target, np.zeros((1, 1), np.float32), FLOAT)
    assert target.tolist() == [[7] * 4]


@pytest.mark.parametrize(
    ("port", "good", "bad"),
    [
        (BYTES, [[0, 255, 1, 2]], [[0, 256, 1, 2]]),
        (BYTES, [[0, 255, 1, 2]], [[-1, 0, 1, 2]]),
        (SIGNED, [[-128, 127, 0, 0]], [[-129, 0, 0, 0]]),
        (SIGNED, [[-128, 127, 0, 0]], [[0.5, 0, 0, 0]]),
        (FLOAT, [[1e38, -1e38, math.inf, 0]], [[True, None, 0, 0]]),
    ],
)
def test_python_numbers_are_taken_where_they_are_in_range(port: Any, good: Any, bad: Any) -> None:
    assert copied(good, port).tolist() == np.array(good, port.dtype).tolist()
    with pytest.raises(InvalidArgument):
        copied(bad, port)


def test_nan_is_a_number_as_far_as_a_network_goes() -> None:
    assert np.isnan(copied([[math.nan] * 4])).all()


def test_an_array_of_the_right_type_is_not_copied_on_the_way() -> None:
    assert as_array(ROW, FLOAT) is ROW


def test_inputs_come_by_position_or_by_name() -> None:
    ports = ports_of(calculator()).inputs
    assert in_order(ports, (1, 2), "input") == (1, 2)
    assert list(in_order(ports, [{"b": 2, "a": 1}], "input")) == [1, 2]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((), "0 inputs given, the network takes 2: a, b"),
        ((1,), "1 inputs given"),
        ((1, 2, 3), "3 inputs given"),
        (({"a": 1},), "b missing or unknown"),
        (({"a": 1, "b": 2, "c": 3},), "c missing or unknown"),
        (({},), "a, b missing"),
        (({1: 1, "b": 2},), "1, a missing or unknown"),
    ],
)
def test_a_wrong_count_or_name_is_refused(arguments: Any, text: str) -> None:
    with pytest.raises(InvalidArgument, match=text):
        in_order(ports_of(calculator()).inputs, arguments, "input")


def test_states_are_not_among_inputs_and_outputs() -> None:
    ports = ports_of(counter())
    assert [port.name for port in ports.inputs] == ["x"]
    assert [port.name for port in ports.outputs] == ["y"]
    assert [port.name for port in ports.state_inputs] == ["total"]
    assert len(ports.state_outputs) == 1


def test_a_port_says_what_it_takes() -> None:
    assert (FLOAT.name, FLOAT.shape, FLOAT.dtype) == ("x", SHAPE, np.dtype(np.float32))
    assert (FLOAT.scale, FLOAT.zero_point) == (0, 0)
    assert (BYTES.dtype, BYTES.scale, BYTES.zero_point) == (np.dtype(np.uint8), 0.5, 3)
    assert SIGNED.dtype == np.dtype(np.int8)


def test_out_is_one_array_or_one_per_output() -> None:
    one, two = ports_of(doubler()).outputs, ports_of(calculator()).outputs
    first, second = np.empty(SHAPE, np.float32), np.empty(SHAPE, np.float32)
    assert check_out(one, None) is None
    for given in (first, (first,), [first]):
        found = check_out(one, given)
        assert found is not None
        assert found[0] is first
    assert check_out(two, (first, second)) == (first, second)


def read_only() -> Any:
    frozen = np.empty(SHAPE, np.float32)
    frozen.flags.writeable = False
    return frozen


@pytest.mark.parametrize(
    "out",
    [
        np.empty((4,), np.float32),
        np.empty(SHAPE, np.float64),
        read_only(),
        VALUES,
        (),
        (np.empty(SHAPE, np.float32),) * 2,
        "y",
    ],
)
def test_out_that_cannot_take_the_result_is_refused(out: Any) -> None:
    with pytest.raises(InvalidArgument, match="out"):
        check_out(ports_of(doubler()).outputs, out)
