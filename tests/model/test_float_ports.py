"""Quantized models with floats outside: the same results as quantizing and dequantizing by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnasync as nn
from nnasync._core.model.float_ports import with_float_ports
from nnasync.extensions import TFLITE, TfliteOperation
from nnasync.hal import Model, OperandType
from tests.importers.tflite_files import Op, T, tflite_file

pytestmark = [pytest.mark.anyio, pytest.mark.one_loop("Operations are the same on every loop.")]

ROW = np.array([[0.1, -0.6, 1.7, 300.0]], np.float32)
KINDS = [
    OperandType.TENSOR_QUANT8_ASYMM,
    OperandType.TENSOR_QUANT8_ASYMM_SIGNED,
    OperandType.TENSOR_QUANT16_SYMM,
]


def quantized(type: OperandType) -> Model:
    """Requantizes its input; gives indexes, too, which stand for no real numbers."""
    builder = nn.ModelBuilder("quantized")
    zero_point = 0 if type == OperandType.TENSOR_QUANT16_SYMM else 3
    x = builder.input("x", (1, 4), type=type, scale=0.25, zero_point=zero_point)
    indexes = builder.input("n", (1,), type=OperandType.TENSOR_INT32)
    if type == OperandType.TENSOR_QUANT16_SYMM:
        op = builder.extension_type(TFLITE.name, TfliteOperation.QUANTIZE)
        y = builder.operation(op, x, output=x, scale=0.5, zero_point=0)
    else:
        y = builder.operation(nn.OperationType.TANH, x)
    builder.output("y", y)
    builder.output("m", builder.operation(nn.OperationType.ADD, indexes, indexes, 0))
    return builder.build()


def accumulator() -> Model:
    """A stream that carries a quantized state."""
    builder = nn.ModelBuilder("accumulator")
    kind: dict[str, Any] = {"type": OperandType.TENSOR_QUANT8_ASYMM, "scale": 0.5, "zero_point": 10}
    x, state = builder.input("x", (1, 4), **kind), builder.state("sum", (1, 4), **kind)
    total = builder.operation(nn.OperationType.ADD, x, state, 0, scale=0.5, zero_point=10)
    builder.update(state, total)
    builder.output("y", builder.operation(nn.OperationType.LOGISTIC, total))
    return builder.build()


@pytest.mark.parametrize("type", KINDS, ids=lambda type: type.name)
async def test_results_are_those_by_hand(type: OperandType) -> None:
    model = quantized(type)
    async with (
        nn.open_runtime(devices=["nnasync-reference"]) as runtime,
        runtime.compile(model) as plain,
        runtime.compile(model, io="float") as net,
    ):
        assert [port.dtype for port in net.inputs] == [np.float32, np.int32]
        assert [port.name for port in net.outputs] == ["y", "m"]
        expected = plain.dequantize(await plain(*plain.quantize(ROW, [2])))
        for real in (await net(ROW, [2]), net.dequantize(await net(*net.quantize(ROW, [2])))):
            assert real[0].dtype == np.float32
            assert real[0].tolist() == expected[0].tolist()
            assert real[1].tolist() == [4]


async def test_a_state_stays_quantized() -> None:
    async with (
        nn.open_runtime(devices=["nnasync-reference"]) as runtime,
        runtime.compile(accumulator(), io="float") as net,
        net.burst() as burst,
    ):
        once = await burst(np.full((1, 4), 1.0, np.float32))
        twice = await burst(np.full((1, 4), 1.0, np.float32))
        state = await burst.state()
    assert (twice > once).all()
    assert [each.dtype for each in state.values()] == [np.uint8]


@pytest.mark.parametrize("devices", [None, ["litert-cpu", "nnasync-reference"]])
async def test_a_file_by_its_path_translated_or_whole(tmp_path: Path, devices: Any) -> None:
    path = tmp_path / "words.tflite"
    tensor = T("INT16", (1, 4), None, (0.25,), (0,))
    op = Op("ADD", (0, 0), (1,), "AddOptions", {"PotScaleInt16": False})
    path.write_bytes(tflite_file([tensor, tensor], [op], [0], [1]))
    async with nn.open_runtime(devices=devices) as runtime:
        for _ in range(2):
            options: Any = {"io": "float", "cache_dir": tmp_path / "cache"}
            async with runtime.compile(path, **options) as net:
                assert (await net(ROW)).tolist() == [[0.0, -1.0, 3.5, 600.0]]
        async with runtime.compile(path, cache_dir=tmp_path / "cache") as plain:
            assert (await plain(plain.quantize(ROW))).dtype == np.int16


def test_a_model_without_quantized_ports_is_itself() -> None:
    builder = nn.ModelBuilder()
    builder.output("y", builder.operation(nn.OperationType.TANH, builder.input("x", (1, 4))))
    model = builder.build()
    assert with_float_ports(model) is model


def test_it_can_be_saved(tmp_path: Path) -> None:
    made = with_float_ports(quantized(OperandType.TENSOR_QUANT8_ASYMM))
    nn.save(made, tmp_path / "made.nnm")
    assert nn.load(tmp_path / "made.nnm").main == made.main


async def test_another_value_is_refused() -> None:
    async with nn.open_runtime(devices=["nnasync-reference"]) as runtime:
        with pytest.raises(nn.InvalidArgument, match="io must be None or 'float', got 'int8'"):
            await runtime.compile(accumulator(), io="int8")
