"""Building models by hand, keeping them in files, telling them apart."""

from __future__ import annotations

import os
import stat
import struct
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nnasync import memory
from nnasync._core.model import ModelBuilder, fingerprint, load_nnm, save
from nnasync._core.validation import operand_value, validate_model
from nnasync.errors import InvalidArgument, ModelError
from nnasync.hal import (
    ChannelQuant,
    Model,
    Operand,
    OperandLifeTime,
    OperandType,
    OperationType,
    StatePair,
)
from nnasync.kernels.operation import Tensor


def digits(bias: float = 0.0) -> Model:
    """A network with small and large constants, a state, and all kinds of parameters."""
    numbers = np.random.default_rng(7).permutation(80).reshape(10, 8)
    m = ModelBuilder("digits")
    x = m.input("image", (1, 32, 32, 1))
    h = m.state("h", (1, 10))
    y = m.conv_2d(x, np.ones((8, 3, 3, 1)), np.full(8, bias), stride=2, activation="relu6")
    y = m.depthwise_conv_2d(y, np.full((1, 3, 3, 8), 0.5), padding=(1, 1, 1, 1), dilation=(1, 1))
    y = m.max_pool_2d(y, 2)
    y = m.average_pool_2d(y, (8, 8))
    y = m.fully_connected(y, numbers)
    new = m.add(y, h)
    m.update(h, new)
    m.output("scores", m.softmax(new))
    return m.build()


def inputs_of(model: Model, operation: int) -> list[Operand]:
    main = model.main
    return [main.operands[index] for index in main.operations[operation].inputs]


def parameters(model: Model, operation: int) -> list[Any]:
    """Values of the scalar inputs of an operation."""
    values = [operand_value(model, operand) for operand in inputs_of(model, operation)]
    return [value.item() for value in values if value is not None and value.ndim == 0]


def test_a_network_by_hand() -> None:
    model = digits()
    assert [operation.type for operation in model.main.operations] == [
        OperationType.CONV_2D,
        OperationType.DEPTHWISE_CONV_2D,
        OperationType.MAX_POOL_2D,
        OperationType.AVERAGE_POOL_2D,
        OperationType.FULLY_CONNECTED,
        OperationType.ADD,
        OperationType.SOFTMAX,
    ]
    operands = model.main.operands
    assert [operands[i].name for i in model.main.input_indexes] == ["image", "h"]
    assert [operands[i].name for i in model.main.output_indexes] == ["scores", "h/next"]
    assert model.state == (StatePair(1, 1),)
    assert operands[model.main.output_indexes[0]].dimensions == (1, 10)
    assert parameters(model, 0) == [1, 2, 2, 3]
    assert parameters(model, 1) == [1, 1, 1, 1, 1, 1, 1, 0]
    assert parameters(model, 2) == [2, 2, 2, 2, 2, 0]
    assert parameters(model, 3) == [2, 8, 8, 8, 8, 0]


def test_constants_go_where_their_size_says() -> None:
    model = digits()
    constants = [o for o in model.main.operands if o.lifetime != OperandLifeTime.NO_VALUE]
    small = [o for o in constants if o.lifetime == OperandLifeTime.CONSTANT_COPY]
    large = [o for o in constants if o.lifetime == OperandLifeTime.CONSTANT_REFERENCE]
    assert small
    assert all(o.location.length <= 128 for o in small)
    assert [o.location.length for o in large] == [288, 288, 320]
    assert all(o.location.offset % memory.ALIGNMENT == 0 for o in large)
    assert len(model.pools) == 1
    value = operand_value(model, large[0])
    assert value is not None
    assert value.tolist() == np.ones((8, 3, 3, 1)).tolist()
    with pytest.raises(ValueError, match="read-only"):
        value[0] = 2


def test_consumers_are_counted_with_repetition() -> None:
    m = ModelBuilder()
    x = m.input("x", (2,))
    m.output("y", m.mul(m.add(x, x), x))
    model = m.build()
    assert model.main.operands[0].number_of_consumers == 3


def test_numbers_become_operands_of_their_type() -> None:
    m = ModelBuilder()
    expected: list[tuple[Any, OperandType, tuple[int, ...]]] = [
        (1, OperandType.INT32, ()),
        (True, OperandType.BOOL, ()),
        (1.5, OperandType.FLOAT32, ()),
        (np.float16(1), OperandType.FLOAT16, ()),
        (np.uint32(1), OperandType.UINT32, ()),
        (np.int64(3), OperandType.INT32, ()),
        (OperationType.MUL, OperandType.INT32, ()),
        ([1, 2], OperandType.TENSOR_INT32, (2,)),
        ([[1.0, 2]], OperandType.TENSOR_FLOAT32, (1, 2)),
        (np.zeros(3, np.float16), OperandType.TENSOR_FLOAT16, (3,)),
        ([True], OperandType.TENSOR_BOOL8, (1,)),
        (np.ones(()), OperandType.TENSOR_FLOAT32, (1,)),
    ]
    for value, type, shape in expected:
        made = m.constant(value)
        assert (made.type, made.shape) == (type, shape)


@pytest.mark.parametrize("value", ["text", [1j], 2**40, [2**40], 2**90, [2**90], [[1], [2, 3]]])
def test_values_without_an_operand_type_are_refused(value: Any) -> None:
    with pytest.raises((ModelError, InvalidArgument)):
        ModelBuilder().constant(value)


def test_quantized_layers() -> None:
    m = ModelBuilder("quantized")
    kind = OperandType.TENSOR_QUANT8_ASYMM
    x = m.input("x", (1, 4, 4, 2), type=kind, scale=0.5, zero_point=128)
    w = m.constant(np.full((3, 1, 1, 2), 5, np.uint8), scale=0.25, zero_point=3)
    y = m.conv_2d(x, w, np.array([1, 2, 3]), scale=0.75, zero_point=100)
    assert (y.type, y.scale, y.zero_point) == (kind, 0.75, 100)
    per_channel = ChannelQuant((0.1, 0.2, 0.3), 3)
    w = m.constant(np.full((1, 1, 1, 3), 5, np.int8), channel_quant=per_channel)
    y = m.depthwise_conv_2d(y, w, scale=0.75, zero_point=100)
    m.output("y", m.reshape(y, (1, -1)))
    model = m.build()
    assert [inputs_of(model, index)[2].scale for index in (0, 1)] == [0.125, 0.0]
    last = model.main.operands[model.main.output_indexes[0]]
    assert (last.dimensions, last.scale, last.zero_point) == ((1, 48), 0.75, 100)


def test_scale_of_a_quantized_result_must_be_stated() -> None:
    m = ModelBuilder()
    kind = OperandType.TENSOR_QUANT8_ASYMM
    x = m.input("x", (1, 4), type=kind, scale=0.5, zero_point=128)
    with pytest.raises(ModelError, match="state its scale"):
        m.add(x, x)
    assert m.add(x, x, scale=1.0).zero_point == 0
    assert m.operation(OperationType.ADD, x, x, 0, like=x).zero_point == 128
    assert m.quantize(m.dequantize(x), 0.1).type == OperandType.TENSOR_QUANT8_ASYMM_SIGNED
    with pytest.raises(ModelError, match="needs a scale"):
        m.constant(np.zeros(3, np.uint8))


def test_what_does_not_fit_is_refused_where_it_is_written() -> None:
    m = ModelBuilder()
    x = m.input("x", (2, 3))
    with pytest.raises(ModelError, match=r"operation 0: ADD"):
        m.add(x, m.input("z", (4, 5)))
    with pytest.raises(ModelError, match="TENSOR_INT32"):
        m.operation(OperationType.ADD, x, np.zeros((2, 3), np.int32), 0)
    with pytest.raises(ModelError, match=r"stated as \[9\]"):
        tensor = Tensor(type=OperandType.TENSOR_FLOAT32, shape=(9,))
        m.operation(OperationType.TANH, x, output=tensor)
    with pytest.raises(ModelError, match="another subgraph"):
        ModelBuilder().tanh(x)
    with pytest.raises(InvalidArgument, match="none, relu, relu1, relu6"):
        m.add(x, x, activation="gelu")
    with pytest.raises(InvalidArgument, match="same, valid"):
        m.max_pool_2d(x, 2, padding="reflect")
    with pytest.raises(InvalidArgument, match="biases has 3 entries"):
        m.lstm(x, x, x, input_weights=[x] * 4, recurrent_weights=[x] * 4, biases=[x] * 3)
    with pytest.raises(ModelError, match="no rule here"):
        m.operation(OperationType.OEM_OPERATION, x)


def test_operations_without_a_rule_take_stated_outputs() -> None:
    m = ModelBuilder()
    x = m.input("x", (2, 3))
    m.output("y", m.operation(OperationType.OEM_OPERATION, x, output=x))
    assert m.build().main.operations[0].type == OperationType.OEM_OPERATION


def test_states() -> None:
    m = ModelBuilder()
    h, x = m.state("h", (1, 2)), m.input("x", (1, 2))
    y = m.add(h, x)
    m.output("y", y)
    with pytest.raises(ModelError, match="never updated"):
        m.build()
    m.update(h, y)
    with pytest.raises(ModelError, match="updated twice"):
        m.update(h, y)
    with pytest.raises(ModelError, match="not a state"):
        m.update(x, y)
    model = m.build()
    assert model.state == (StatePair(1, 1),)
    assert [o.type for o in model.main.operations] == [OperationType.ADD, OperationType.RESHAPE]


def test_inputs_and_constants_become_outputs_through_a_copy() -> None:
    m = ModelBuilder()
    x = m.input("x", (1, 2))
    m.output("same", x)
    m.output("fixed", m.constant(np.ones((2, 2))))
    assert [o.type for o in m.build().main.operations] == [OperationType.RESHAPE] * 2


def test_lstm() -> None:
    m = ModelBuilder()
    x, h, c = m.input("x", (1, 3)), m.state("h", (1, 4)), m.state("c", (1, 4))
    y, h_next, c_next = m.lstm(
        x,
        h,
        c,
        input_weights=[None, *[np.ones((4, 3))] * 3],
        recurrent_weights=[None, *[np.ones((4, 4))] * 3],
        biases=[None, *[np.ones(4)] * 3],
    )
    m.update(h, h_next)
    m.update(c, c_next)
    m.output("y", y)
    model = m.build()
    omitted = [o for o in inputs_of(model, 0) if o.lifetime == OperandLifeTime.NO_VALUE]
    assert len(omitted) == 8
    assert {o.type for o in omitted} == {OperandType.TENSOR_FLOAT32}
    assert model.state == (StatePair(1, 1), StatePair(2, 2))


def test_other_named_operations() -> None:
    m = ModelBuilder()
    x = m.input("x", (1, 4, 4, 2))
    shapes = [
        m.sub(x, 1).shape,
        m.relu(x).shape,
        m.relu6(x).shape,
        m.logistic(x).shape,
        m.tanh(x).shape,
        m.concatenation([x, x], -1).shape,
        m.mean(x, (1, 2)).shape,
        m.mean(x, [1, 2], keep_dims=True).shape,
        m.pad(x, [[0, 0], [1, 1], [2, 2], [0, 0]]).shape,
    ]
    assert shapes == [
        *[(1, 4, 4, 2)] * 5,
        (1, 4, 4, 4),
        (1, 2),
        (1, 1, 1, 2),
        (1, 6, 8, 2),
    ]


def test_half_precision() -> None:
    m = ModelBuilder()
    x = m.input("x", (1, 4), type=OperandType.TENSOR_FLOAT16)
    y = m.softmax(m.fully_connected(m.add(x, 1), np.ones((2, 4), np.float16)))
    assert y.type == OperandType.TENSOR_FLOAT16


def described(model: Model) -> list[tuple[object, ...]]:
    """All of a model but where its constants are."""
    found: list[tuple[object, ...]] = [(model.state, model.name, model.main.operations)]
    for operand in model.main.operands:
        value = operand_value(model, operand)
        raw = None if value is None else value.tobytes()
        found.append((msgspec.structs.replace(operand, location=None), raw))
    return found


def test_saved_models_come_back(tmp_path: Path) -> None:
    model, path = digits(), tmp_path / "digits.nnm"
    save(model, path)
    loaded = load_nnm(path)
    assert described(loaded) == described(model)
    assert [pool.name for pool in loaded.pools] == ["mmap_fd"]
    assert fingerprint(loaded) == fingerprint(model)
    again = tmp_path / "again.nnm"
    save(loaded, again)
    assert again.read_bytes() == path.read_bytes()
    assert os.listdir(tmp_path) in (["again.nnm", "digits.nnm"], ["digits.nnm", "again.nnm"])


def test_only_constants_of_a_pool_are_saved(tmp_path: Path, shared: Path) -> None:
    from nnasync._core import importers

    model = importers.load(shared / "models" / "mobilenet_v1_0.25_128_quant.tflite")
    path = tmp_path / "mobilenet.nnm"
    save(model, path)
    assert described(load_nnm(path)) == described(model)
    assert path.stat().st_size < 530_000
    assert fingerprint(load_nnm(path)) == fingerprint(model)


def test_fingerprints_differ() -> None:
    prints = {fingerprint(digits(bias)) for bias in (0.0, 1.0, -0.0)}
    assert len(prints) == 3
    assert {len(p) for p in prints} == {32}
    model = digits()
    assert fingerprint(model) == fingerprint(model)
    renamed = msgspec.structs.replace(model, name="other")
    assert fingerprint(renamed) != fingerprint(model)


def test_saving_is_all_or_nothing(tmp_path: Path) -> None:
    path = tmp_path / "digits.nnm"
    path.write_bytes(b"old")
    illegal = msgspec.structs.replace(digits(), state=(StatePair(9, 9),))
    with pytest.raises(ModelError):
        save(illegal, path)
    assert path.read_bytes() == b"old"
    with pytest.raises(OSError, match="folder"):
        save(digits(), tmp_path / "folder" / "digits.nnm")
    (tmp_path / "taken.nnm").mkdir()
    with pytest.raises(OSError, match=r"taken\.nnm"):
        save(digits(), tmp_path / "taken.nnm")
    assert sorted(os.listdir(tmp_path)) == ["digits.nnm", "taken.nnm"]


def test_saved_files_have_the_usual_permissions(tmp_path: Path) -> None:
    plain, path = tmp_path / "plain", tmp_path / "digits.nnm"
    plain.touch()
    save(digits(), path)
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(plain.stat().st_mode)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("saved") / "digits.nnm"
    save(digits(), path)
    return path.read_bytes()


def load_bytes(data: bytes, folder: Path) -> Model:
    path = folder / "broken.nnm"
    path.write_bytes(data)
    return load_nnm(path)


def patched(data: bytes, offset: int, form: str, value: Any) -> bytes:
    broken = bytearray(data)
    struct.pack_into(form, broken, offset, value)
    return bytes(broken)


def test_broken_headers(saved: bytes, tmp_path: Path) -> None:
    size = len(saved)
    cases = [
        (patched(saved, 0, "<B", 0), "begins with"),
        (patched(saved, 8, "<I", 3), "version 3 of the format; known are 1 and 2"),
        (patched(saved, 8, "<I", 2), "version 2 of the format; only 2 has labels"),
        (patched(saved, 12, "<I", 1), "unused bytes"),
        (patched(saved, 63, "<B", 1), "unused bytes"),
        (patched(saved, 16, "<Q", 2**63), "does not fit"),
        (patched(saved, 16, "<Q", size), "does not fit"),
        (patched(saved, 24, "<Q", 0), "constants are at byte 0"),
        (patched(saved, 32, "<Q", 2**64 - 1), "header says"),
        (saved + b"x", "header says"),
        (saved[:-1], "header says"),
        (saved[:63], "header alone takes 64"),
        (b"", "has 0 bytes"),
    ]
    for data, message in cases:
        with pytest.raises(ModelError, match=message) as caught:
            load_bytes(data, tmp_path)
        assert "broken.nnm" in str(caught.value)


def test_truncated_files_are_refused(saved: bytes, tmp_path: Path) -> None:
    for length in range(0, len(saved), 13):
        with pytest.raises(ModelError, match=r"broken\.nnm"):
            load_bytes(saved[:length], tmp_path)


def with_description(saved: bytes, description: bytes) -> bytes:
    """The file with another description, and a header that fits it."""
    _, start, constants = struct.unpack_from("<QQQ", saved, 16)
    new_start = -(-(64 + len(description)) // 64) * 64
    header = bytearray(saved[:64])
    struct.pack_into("<QQQ", header, 16, len(description), new_start, constants)
    padding = bytes(new_start - 64 - len(description))
    return bytes(header) + description + padding + saved[start:]


def test_hostile_descriptions(saved: bytes, tmp_path: Path) -> None:
    (length,) = struct.unpack_from("<Q", saved, 16)
    good = saved[64 : 64 + length]
    validate_model(load_bytes(with_description(saved, good), tmp_path))
    fields = msgspec.msgpack.decode(good)
    wrong_type = msgspec.msgpack.encode({**fields, "state": 7})
    missing = msgspec.msgpack.encode({k: v for k, v in fields.items() if k != "main"})
    unknown = msgspec.msgpack.encode({**fields, "extra": 1})
    nested = b"\x91" * 200_000
    counts = b"\xdd\xff\xff\xff\xff"
    for description in (b"", good[:-1], good + b"\0", wrong_type, missing, unknown, nested, counts):
        with pytest.raises(ModelError, match="description"):
            load_bytes(with_description(saved, description), tmp_path)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_change_gives_a_model_or_a_model_error(
    saved: bytes, tmp_path: Path, data: st.DataObject
) -> None:
    broken = bytearray(saved)
    (start,) = struct.unpack_from("<Q", saved, 24)
    for _ in range(data.draw(st.integers(1, 4))):
        broken[data.draw(st.integers(0, start - 1))] = data.draw(st.integers(0, 255))
    try:
        validate_model(load_bytes(bytes(broken), tmp_path))
    except ModelError as error:
        check_message(error)


def check_message(error: ModelError) -> None:
    assert "broken.nnm" in str(error)


def test_missing_files_are_the_systems_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        load_nnm(tmp_path / "missing.nnm")
