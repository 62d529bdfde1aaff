"""Ports: what may be given to a network, in which form, and what is refused."""

from __future__ import annotations

import array
import math
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import nnasync as nn
from nnasync._core.execution.ports import (
    Port,
    as_array,
    check_out,
    copy_in,
    in_order,
    ports_of,
    quantized_values,
    real_values,
)
from nnasync.errors import InvalidArgument
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
        (np.zeros(SHAPE), r"dtype float64, should be float32; .astype\(np.float32\) converts it$"),
        (np.zeros(SHAPE, np.float16), "dtype float16"),
        (np.zeros(SHAPE, np.int32), "dtype int32.*in the range that the network was trained with"),
        (np.zeros(SHAPE, ">f4"), "dtype >f4"),
        (np.zeros(SHAPE, np.complex64), "complex64, should be float32: it is no array of real"),
        (np.zeros(SHAPE, object), "object, should be float32: it is no array of real numbers"),
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


@pytest.mark.parametrize(
    ("given", "wanted", "told"),
    [
        ((1, 3, 8, 6), (1, 8, 6, 3), r"; np\.moveaxis\(x, 1, -1\) puts the channels last$"),
        ((1, 8, 6, 3), (1, 3, 8, 6), r"; np\.moveaxis\(x, -1, 1\) puts the channels first$"),
        ((8, 6, 3), (1, 8, 6, 3), r"; x\[np\.newaxis\] makes one example of it$"),
        ((16, 8, 6, 3), (1, 8, 6, 3), r"; several examples are for nnasync\.batching\.one_by_one"),
        ((1, 8, 3, 6), (1, 8, 6, 3), r"should be \[1, 8, 6, 3\]$"),
        ((3, 8, 6), (1, 8, 6, 3), r"should be \[1, 8, 6, 3\]$"),
    ],
)
def test_what_makes_a_wrong_shape_right_is_told(
    given: tuple[int, ...], wanted: tuple[int, ...], told: str
) -> None:
    port = Port("x", wanted, np.dtype(np.float32), 0.0, 0, 0)
    with pytest.raises(InvalidArgument, match=told):
        copied(np.zeros(given, np.float32), port)


@pytest.mark.parametrize("value", [16000, np.array(16000), np.int64(16000)])
def test_a_port_of_one_number_takes_it_without_dimensions(value: Any) -> None:
    port = Port(name="sr", shape=(1,), dtype=np.dtype(np.int32), scale=0, zero_point=0, position=0)
    assert copied(value, port).tolist() == [16000]


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
        ((), "0 inputs given, the network has 2: a, b"),
        ((1,), "1 inputs given"),
        ((1, 2, 3), "3 inputs given"),
        (({"a": 1},), "inputs by name: missing b; the network has"),
        (({"a": 1, "b": 2, "c": 3},), "inputs by name: unknown c; the network"),
        (({},), "missing a, b; the"),
        (({1: 1, "b": 2},), "inputs by name: missing a; unknown 1; the network has a, b"),
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
    for out in (first, (first,), [first]):
        found = check_out(one, out)
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


@pytest.mark.parametrize("port", [BYTES, SIGNED], ids=["unsigned", "signed"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32])
def test_for_a_quantized_input_the_formula_is_told(port: Port, dtype: Any) -> None:
    """A cast, of pixels between 0 and 1 for example, would be taken without a word."""
    with pytest.raises(InvalidArgument) as caught:
        as_array(np.zeros(port.shape, dtype), port)
    on_fallback = str(caught.value)
    sign = "-" if port.zero_point < 0 else "+"
    assert f"round(x / {port.scale:.9g}) {sign} {abs(port.zero_point)}" in on_fallback
    assert ".quantize(x)" in on_fallback
    assert ".astype(" not in on_fallback


def port_of(scale: float, zero_point: int, dtype: Any) -> Port:
    return Port("x", (1,), np.dtype(dtype), scale, zero_point, 0)


KINDS: list[Any] = [np.uint8, np.int8, np.uint16, np.int16]
quantizations = st.sampled_from(KINDS).flatmap(
    lambda dtype: st.builds(
        port_of,
        st.floats(2.0**-20, 2.0**10, width=32),
        st.integers(int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)),
        st.just(dtype),
    )
)


@given(quantizations, st.data())
def test_what_is_dequantized_is_quantized_to_itself(port: Port, data: st.DataObject) -> None:
    limits = np.iinfo(port.dtype)
    values = data.draw(arrays(port.dtype, 9, elements=st.integers(limits.min, limits.max)))
    real = port.dequantize(values)
    assert real.dtype == np.float32
    again = port.quantize(real)
    assert again.dtype == port.dtype
    assert again.tolist() == values.tolist()


@given(quantizations, arrays(np.float32, 9, elements=st.floats(-(2.0**24), 2.0**24, width=32)))
def test_quantizing_is_off_by_half_a_step_within_the_range(port: Port, values: Any) -> None:
    limits = np.iinfo(port.dtype)
    lowest, highest = port.dequantize(np.array([limits.min, limits.max], port.dtype))
    off = np.abs(port.dequantize(port.quantize(values)) - np.clip(values, lowest, highest))
    assert (off <= port.scale * 0.502).all()


def test_quantizing_is_that_of_the_operation() -> None:
    values = np.array(
        [0, 0.25, -0.25, 0.75, -0.75, 1e30, -1e30, np.inf, -np.inf, np.nan, 63.4, -63.6], np.float32
    )
    builder = nn.ModelBuilder()
    x = builder.input("x", values.shape)
    signed = nn.OperandType.TENSOR_QUANT8_ASYMM_SIGNED
    builder.output("y", builder.quantize(x, 0.5, -3, type=signed))

    async def main() -> Any:
        async with nn.open_runtime(devices=["nnasync-reference"]) as rt:
            net = await rt.compile(builder.build())
            return net.outputs[0], await net(values)

    port, expected = nn.run(main)
    assert port.quantize(values).tolist() == expected.tolist()
    assert port.quantize([0.5, 1]).tolist() == [-2, -1]


def test_ports_that_are_not_quantized() -> None:
    half = port_of(0.0, 0, np.float16)
    assert FLOAT.quantize([1, 2.5]).dtype == np.float32
    assert half.quantize([1, 2.5]).tolist() == [1, 2.5]
    assert half.quantize([1]).dtype == np.float16
    assert half.dequantize(np.array([1.5], np.float16)).dtype == np.float32
    for touch in (port_of(0.0, 0, np.int32).quantize, port_of(0.0, 0, bool).dequantize):
        with pytest.raises(InvalidArgument, match="'x' has .* which is not quantized"):
            touch([1])


SCALED = port_of(0.5, -3, np.int8)
INDEXES = port_of(0.0, 0, np.int32)


def test_a_network_of_one_input_and_output_has_arrays() -> None:
    assert quantized_values([SCALED], [[1.0, -1.0]]).tolist() == [-1, -5]
    assert real_values([SCALED], np.array([-1, -5], np.int8)).tolist() == [1.0, -1.0]


@pytest.mark.parametrize("values", [([1.0], [7], [2.0]), ({"z": [2.0], "x": [1.0], "n": [7]},)])
def test_several_values_become_a_tuple_and_what_is_no_real_number_stays(values: Any) -> None:
    ports = [
        msgspec.structs.replace(port, name=name)
        for port, name in ((SCALED, "x"), (INDEXES, "n"), (FLOAT, "z"))
    ]
    scaled, indexes, floats = quantized_values(ports, values)
    assert scaled.tolist() == [-1]
    assert indexes == [7]
    assert floats.dtype == np.float32
    real, same, also = real_values(ports, (scaled, np.array([7], np.int32), floats))
    assert real.tolist() == [1.0]
    assert same.dtype == np.int32
    assert also.tolist() == [2.0]
    by_name = real_values(ports, {"x": scaled, "z": floats, "n": indexes})
    assert by_name[0].tolist() == [1.0]


def test_an_omitted_input_stays_omitted() -> None:
    assert quantized_values([SCALED], [None]) is None


def test_another_number_of_values_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="2 inputs given, the network has 1: x"):
        quantized_values([SCALED], [[1.0], [2.0]])
    with pytest.raises(InvalidArgument, match="1 outputs given, the network has 2: x, x"):
        real_values([SCALED, SCALED], (np.zeros(1, np.int8),))
