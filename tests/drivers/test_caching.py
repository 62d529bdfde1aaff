"""Plans of each engine in cache files: the plan that is loaded gives what the kept one gave."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest

import nnasync as nn
from nnasync._core.cache import fill, view
from nnasync._core.cache.sealed import memory_file, seal
from nnasync._core.drivers import built_in, is_installed
from nnasync._core.drivers.cpu import ReferenceEngine
from nnasync._core.model import Value
from nnasync.engine import (
    BoundCall,
    CacheFiles,
    CachingEngine,
    Lowering,
    OutputBuffer,
    Plan,
    StopFlag,
)
from nnasync.errors import BadState, GeneralFailure, NNError
from nnasync.hal import (
    Array,
    ExecutionPreference,
    Model,
    OperandType,
    OperationType,
    Shape,
    dtype_of,
)

FAST = ExecutionPreference.FAST_SINGLE_ANSWER
QUANT8 = {
    "type": OperandType.TENSOR_QUANT8_ASYMM,
    "scale": 0.1,
    "zero_point": 100,
}
NAMES = ("nnasync-reference", "litert-cpu", "openvino-cpu")
needs_litert = pytest.mark.skipif(not is_installed("litert-cpu"), reason="needs nnasync[litert]")


def engine_of(name: str) -> CachingEngine:
    engine = built_in(name)
    assert isinstance(engine, CachingEngine)
    return engine


@pytest.fixture(params=NAMES)
def engine(request: pytest.FixtureRequest) -> CachingEngine:
    if not is_installed(request.param):
        pytest.skip(f"{request.param} is not installed")
    return engine_of(request.param)


def convolutions(**quantization: Any) -> Model:
    """Two convolutions, a depthwise one and a dense layer, with constants of more than 1 KiB."""
    chance = np.random.default_rng(1)
    builder = nn.ModelBuilder("convolutions")

    def weights(*shape: int) -> Value:
        if not quantization:
            return builder.constant(chance.normal(size=shape).astype(np.float32))
        values = chance.integers(0, 256, shape).astype(np.uint8)
        return builder.constant(values, type=quantization["type"], scale=0.02, zero_point=130)

    x = builder.input("x", (1, 9, 8, 3), **quantization)
    output: Any = {"scale": 0.3, "zero_point": 120} if quantization else {}
    y = builder.conv_2d(x, weights(40, 3, 3, 3), stride=2, activation="relu", **output)
    y = builder.depthwise_conv_2d(y, weights(1, 3, 3, 40), **output)
    y = builder.conv_2d(y, weights(40, 1, 1, 40), **output)
    y = builder.fully_connected(y, weights(10, 5 * 4 * 40), **output)
    builder.output("y", y)
    return builder.build()


def recurrent() -> Model:
    """A total that is carried, through a dense layer."""
    chance = np.random.default_rng(2)
    builder = nn.ModelBuilder("recurrent")
    x = builder.input("x", (1, 20))
    total = builder.state("total", (1, 20))
    kernel = builder.constant(chance.normal(size=(20, 20)).astype(np.float32))
    new = builder.add(total, builder.fully_connected(x, kernel))
    builder.output("y", builder.tanh(new))
    builder.update(total, new)
    return builder.build()


MODELS: dict[str, Callable[[], Model]] = {
    "float": convolutions,
    "quant8": lambda: convolutions(**QUANT8),
    "state": recurrent,
}


@pytest.mark.parametrize("name", MODELS)
def test_loaded_plan_gives_the_same(engine: CachingEngine, name: str) -> None:
    model = MODELS[name]()
    plan = engine.compile(model, FAST)
    files = engine.serialize(plan)
    assert (len(files.model), len(files.data)) == engine.cache_files
    again = engine.deserialize(mapped(files), None)
    expected = results(plan, model)
    assert all(np.ptp(each.astype(np.float64)) > 0 for each in expected)
    assert same(results(again, model), expected)
    assert same(results(again, model, seed=7), results(plan, model, seed=7))
    if engine.name == "openvino-cpu":
        with pytest.raises(BadState, match="imported"):
            engine.serialize(again)
    else:
        third = engine.deserialize(mapped(engine.serialize(again)), None)
        assert same(results(third, model), expected)


def test_files_of_another_form(engine: CachingEngine) -> None:
    count_model, count_data = engine.cache_files
    for model in (b"", b"\xc0", b"something else", msgspec.msgpack.encode([1, 2])):
        with pytest.raises(NNError):
            engine.deserialize(CacheFiles((model,) * count_model, (b"",) * count_data), None)
    with pytest.raises(NNError):
        engine.deserialize(CacheFiles(), None)


def test_plans_of_strangers(engine: CachingEngine) -> None:
    class Stranger(Plan):
        def bind(self, inputs: Any, outputs: Any) -> BoundCall:
            raise AssertionError

        def trim(self) -> None:
            """Nothing."""

    with pytest.raises(BadState, match="not one of"):
        engine.serialize(Stranger())


# -- the reference


@pytest.mark.parametrize("name", ["float", "quant8"])
def test_packed_weights_are_mapped_not_made(name: str) -> None:
    engine, model = ReferenceEngine(), MODELS[name]()
    plan = engine.compile(model, FAST)
    data = mapped(engine.serialize(plan)).data[0]
    again = engine.deserialize(CacheFiles(engine.serialize(plan).model, (data,)), None)
    base = np.frombuffer(data, np.uint8)
    assert len(again.packed) == len(plan.packed) > 0
    for array, made in zip(again.packed, plan.packed, strict=True):
        assert np.shares_memory(array, base)
        assert array.ctypes.data % 64 == 0
        assert not array.flags.writeable
        assert np.array_equal(array, made)


def test_damaged_weights_make_wrong_values_at_worst() -> None:
    """Bits of the data file, all of it, and its length; the shapes are in the model file."""
    engine = ReferenceEngine()
    for name in ("float", "quant8"):
        model = MODELS[name]()
        files = engine.serialize(engine.compile(model, FAST))
        good = bytes(files.data[0])
        for seed in range(10):
            data = bytearray(good)
            chance = random.Random(seed)
            for _ in range(1 + 100 * seed):
                data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
            results(engine.deserialize(CacheFiles(files.model, (bytes(data),)), None), model)
        for byte in (b"\x00", b"\x7f", b"\xff"):
            damaged = CacheFiles(files.model, (byte * len(good),))
            results(engine.deserialize(damaged, None), model)
        for wrong in (b"", good[:-1], good + b"\x00"):
            with pytest.raises(GeneralFailure, match="data file has"):
                engine.deserialize(CacheFiles(files.model, (wrong,)), None)


def test_parameters_are_in_the_model_file() -> None:
    """Only values are in the data file: not the numbers that decide shapes and places."""
    builder = nn.ModelBuilder("shuffle")
    x = builder.input("x", (500,))
    order = np.random.default_rng(3).permutation(500).astype(np.int32)
    scale = np.linspace(1, 2, 500, dtype=np.float32)
    builder.output("y", builder.mul(builder.operation(OperationType.GATHER, x, 0, order), scale))
    model = builder.build()
    engine = ReferenceEngine()
    files = engine.serialize(engine.compile(model, FAST))
    assert order.tobytes() in bytes(files.model[0])
    assert bytes(files.data[0])[: scale.nbytes] == scale.tobytes()
    assert same(
        results(engine.deserialize(files, None), model), [inputs_of(model)[0][order] * scale]
    )


def test_loops_and_open_shapes_of_the_reference() -> None:
    engine = ReferenceEngine()
    builder = nn.ModelBuilder("loop")
    x = builder.input("x", (2,))
    builder.output(
        "y",
        builder.while_loop(
            lambda g, v: g.operation(
                OperationType.REDUCE_ALL, g.operation(OperationType.LESS, v, [1000.0]), [0], False
            ),
            lambda g, v: (g.add(v, [1.0, 3.0]),),
            x,
        ),
    )
    model = builder.build()
    plan = engine.compile(model, FAST)
    assert same(
        results(engine.deserialize(engine.serialize(plan), None), model), results(plan, model)
    )
    builder = nn.ModelBuilder("open")
    x = builder.input("x", (0, 3))
    builder.output("y", builder.mul(x, x))
    again = engine.deserialize(engine.serialize(engine.compile(builder.build(), FAST)), None)
    x_array, y = np.full((4, 3), 3, np.float32), np.zeros((4, 3), np.float32)
    buffer = OutputBuffer(y.reshape(-1).view(np.uint8), y.dtype, (0, 3))
    assert again.bind([x_array], [buffer]).run(StopFlag())
    assert (y == 9).all()
    assert buffer.shape == (4, 3)


# -- LiteRT


@needs_litert
@pytest.mark.parametrize(
    ("shape", "reason"), [((2,), "input 1 may be omitted"), ((0,), "shape of input 1 open")]
)
def test_plans_that_litert_does_not_keep(shape: Shape, reason: str) -> None:
    engine = engine_of("litert-cpu")
    builder = nn.ModelBuilder("omissible")
    x = builder.input("x", (2, 3))
    order = builder.input("order", shape, type=OperandType.TENSOR_INT32)
    builder.output("y", builder.operation(OperationType.TRANSPOSE, x, order))
    with pytest.raises(BadState, match=reason):
        engine.serialize(engine.compile(builder.build(), FAST))


@needs_litert
def test_threads_of_litert() -> None:
    engine: Any = engine_of("litert-cpu")
    model = convolutions()
    for threads in (1, 2):
        lowering = Lowering("xnnpack", threads)
        plan = engine.compile(model, FAST, lowering)
        files = engine.serialize(plan)
        assert (plan.threads, engine.deserialize(files, None).threads) == (threads, threads)
        assert engine.deserialize(files, Lowering("xnnpack", 3)).threads == 3


# -- what runs


def inputs_of(model: Model, seed: int = 0) -> list[Array]:
    chance = np.random.default_rng(seed)
    arrays = []
    for index in model.main.input_indexes:
        operand = model.main.operands[index]
        values = chance.uniform(0, 255 if operand.scale else 1, operand.dimensions)
        arrays.append(values.astype(dtype_of(operand.type)))
    return arrays


def results(plan: Plan, model: Model, seed: int = 0) -> list[Array]:
    """What a plan gives for random inputs."""
    operands = [model.main.operands[index] for index in model.main.output_indexes]
    outputs = [np.zeros(each.dimensions, dtype_of(each.type)) for each in operands]
    assert plan.bind(inputs_of(model, seed), outputs).run(StopFlag())
    return outputs


def same(found: list[Array], expected: list[Array]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))


def mapped(files: CacheFiles) -> CacheFiles:
    """The files as a cache gives them: sealed memory, mapped for reading."""
    return CacheFiles(tuple(map(_mapped, files.model)), tuple(map(_mapped, files.data)))


def _mapped(content: bytes | memoryview) -> memoryview:
    fd = memory_file()
    fill(fd, content)
    fd = seal(fd)
    try:
        return view(fd)
    finally:
        os.close(fd)
