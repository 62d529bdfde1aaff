"""TFLite operators on integers that only our extension has: real files and small ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nnasync._core import importers
from nnasync._core.drivers.cpu import ReferenceEngine
from nnasync._core.model import load_nnm, save
from nnasync._core.validation import operand_value, validate_model
from nnasync.engine import StopFlag
from nnasync.errors import ModelError
from nnasync.extensions import TFLITE, TfliteOperation, extension_of
from nnasync.hal import (
    ExecutionPreference,
    ExtensionNameAndPrefix,
    Model,
    Operand,
    OperandLifeTime,
    OperandType,
)
from nnasync.kernels import EXTENSION_OPERATIONS
from tests.importers.tflite_files import Op, T, floats, load_parts, q8, translate_parts

WORDS = OperandType.TENSOR_QUANT16_SYMM
STATE = 18


def kinds(model: Model) -> list[str]:
    """Operations by name, those of the extension only."""
    found = [
        extension_of(model.extension_name_to_prefix, operation.type)
        for operation in model.main.operations
    ]
    return [TfliteOperation(each[1]).name for each in found if each is not None]


def operand(model: Model, position: int) -> Operand:
    return model.main.operands[model.main.operations[0].inputs[position]]


def result(model: Model, position: int = 0) -> Operand:
    return model.main.operands[model.main.operations[-1].outputs[position]]


def value(model: Model, position: int) -> Any:
    found = operand_value(model, operand(model, position))
    assert found is not None
    return found


def words(*shape: int, scale: float = 0.001, zero: int = 0, data: Any = None) -> T:
    return T("INT16", shape, data, (scale,), (zero,))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("dtln_noise_suppression", {"UNIDIRECTIONAL_SEQUENCE_LSTM": 2}),
        ("keyword_scrambled_8bit", {"QUANTIZE": 2, "SVDF": 7, "SOFTMAX": 1}),
    ],
)
def test_real_models(shared: Path, tmp_path: Path, name: str, expected: dict[str, int]) -> None:
    model = importers.load(shared / "models" / f"{name}.tflite")
    found = kinds(model)
    assert {kind: found.count(kind) for kind in found} == expected
    assert model.extension_name_to_prefix == (ExtensionNameAndPrefix(TFLITE.name, 1),)
    assert all(ReferenceEngine().supported_operations(model))
    save(model, tmp_path / "model.nnm")
    again = load_nnm(tmp_path / "model.nnm")
    validate_model(again)
    assert kinds(again) == found


def test_the_reference_reports_the_extension() -> None:
    assert TFLITE in ReferenceEngine().extensions
    numbers = {number for name, number in EXTENSION_OPERATIONS if name == TFLITE.name}
    assert numbers == set(TfliteOperation)


@pytest.mark.parametrize(
    ("name", "source", "target", "kind", "type", "zero"),
    [
        ("QUANTIZE", words(1, 4), q8(1, 4), "QUANTIZE", OperandType.TENSOR_QUANT8_ASYMM_SIGNED, 3),
        ("QUANTIZE", floats(1, 4), words(1, 4), "QUANTIZE", WORDS, 0),
        ("DEQUANTIZE", words(1, 4), floats(1, 4), "DEQUANTIZE", OperandType.TENSOR_FLOAT32, 0),
        ("SOFTMAX", words(1, 4), words(1, 4, scale=2.0**-15), "SOFTMAX", WORDS, 0),
    ],
)
def test_one_operator(
    tmp_path: Path, name: str, source: T, target: T, kind: str, type: int, zero: int
) -> None:
    options = ("SoftmaxOptions", {"Beta": 1.0}) if name == "SOFTMAX" else ()
    model = load_parts(tmp_path, [source, target], [Op(name, (0,), (1,), *options)])
    assert kinds(model) == [kind]
    assert (result(model).type, result(model).zero_point) == (type, zero)


def test_words_with_a_zero_point_are_unsigned_inside(tmp_path: Path) -> None:
    tensors = [
        q8(1, 4),
        words(1, 4, scale=1 / 65536, zero=-(2**15)),
        T("INT32", (1, 4), None, (1 / 32768,), (0,)),
    ]
    ops = [
        Op("SOFTMAX", (0,), (1,), "SoftmaxOptions", {"Beta": 1.0}),
        Op("QUANTIZE", (1,), (2,)),
    ]
    model = load_parts(tmp_path, tensors, ops)
    inside = model.main.operands[model.main.operations[0].outputs[0]]
    assert (inside.type, inside.zero_point) == (OperandType.TENSOR_QUANT16_ASYMM, 0)
    assert (result(model).type, result(model).scale) == (OperandType.TENSOR_INT32, 1 / 32768)


@pytest.mark.parametrize("inward", [True, False])
def test_words_with_a_zero_point_are_refused_outside(tmp_path: Path, inward: bool) -> None:
    parts = [words(1, 4, zero=7), q8(1, 4)]
    with pytest.raises(ModelError, match="INT16 with zero point 7"):
        translate_parts(tmp_path, parts if inward else parts[::-1], [Op("QUANTIZE", (0,), (1,))])


@pytest.mark.parametrize("scales", [(), (0.0,), (float("nan"),), (1.0, 2.0)])
def test_integers_need_a_scale(tmp_path: Path, scales: tuple[float, ...]) -> None:
    parts = [words(1, 4), T("INT32", (1, 4), None, scales, (0,) * len(scales))]
    for tensors in (parts, parts[::-1]):
        with pytest.raises(ModelError, match="1 x QUANTIZE of INT32 without one scale"):
            translate_parts(tmp_path, tensors, [Op("QUANTIZE", (0,), (1,))])


def test_integers_of_the_model_keep_their_scale(tmp_path: Path) -> None:
    numbers = np.array([[-9, 0, 7, 1000]], np.int32)
    parts = [T("INT32", (1, 4), None, (0.5,), (0,)), words(1, 4, scale=0.25)]
    model = load_parts(tmp_path, parts, [Op("QUANTIZE", (0,), (1,))])
    assert operand(model, 0).scale == 0.5
    target = np.zeros((1, 4), np.int16)
    plan = ReferenceEngine().compile(model, ExecutionPreference.SUSTAINED_SPEED)
    assert plan.bind([numbers], [target]).run(StopFlag())
    assert target.tolist() == [[-18, 0, 14, 2000]]


def weight(*shape: int, type: str = "INT8", zero: int = 0) -> T:
    data = np.ones(shape, np.int8 if type == "INT8" else np.int16)
    return T(type, shape, data, (0.01,), (zero,))


def bias(count: int) -> T:
    return T("INT32", (count,), np.ones(count, np.int32), (0.1,), (0,))


def svdf(state: str = "INT8", **changes: Any) -> tuple[list[T], Op]:
    tensors = [
        q8(1, 3),
        weight(4, 3, zero=changes.get("zero", 0)),
        weight(4, 5, type=state),
        bias(2),
        T(state, (1, 20), None, (0.8,), (-50 if state == "INT8" else 0,), variable=True),
        q8(1, 2),
    ]
    options = {"Rank": 2, "FusedActivationFunction": changes.get("activation", 1)}
    inputs = (0, 1, 2, changes.get("bias", 3), 4)
    return tensors, Op("SVDF", inputs, (5,), "SVDFOptions", options)


@pytest.mark.parametrize("state", ["INT8", "INT16"])
@pytest.mark.parametrize("bias_index", [3, -1])
def test_svdf(tmp_path: Path, state: str, bias_index: int) -> None:
    tensors, op = svdf(state, bias=bias_index)
    model = load_parts(tmp_path, tensors, [op])
    assert kinds(model) == ["SVDF"]
    assert len(model.state) == 1
    assert operand(model, 1).type == OperandType.TENSOR_QUANT8_SYMM
    assert operand(model, 2).type == (OperandType.TENSOR_QUANT8_SYMM if state == "INT8" else WORDS)
    assert (operand(model, 3).lifetime == OperandLifeTime.NO_VALUE) is (bias_index < 0)
    assert [int(value(model, position)) for position in (5, 6)] == [2, 1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"activation": 4}, "1 x SVDF with activation 4"),
        ({"zero": 3}, "input 1 must be constant, with zero point 0"),
        ({"state": "FLOAT32"}, "1 x SVDF of INT8/FLOAT32"),
    ],
)
def test_svdf_without_a_counterpart(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    state = changes.pop("state", "INT8")
    tensors, op = svdf("INT8", **changes)
    if state != "INT8":
        tensors[2] = T(state, (4, 5), np.ones((4, 5), np.float32))
    with pytest.raises(ModelError, match=message):
        translate_parts(tmp_path, tensors, [op])


class Lstm:
    """A file with one integer LSTM of 2 features, 3 units and, with a projection, 2 outputs."""

    def __init__(self, *, norm: bool = False, projection: bool = False, cifg: bool = False) -> None:
        outputs = 2 if projection else 3
        self.tensors: list[T] = []
        self.inputs: list[int] = []
        self._add(q8(1, 4, 2))
        for columns in (2, outputs):
            for gate in range(4):
                self._add(None if cifg and not gate else weight(3, columns))
        for _ in range(3):
            self._add(None)
        for gate in range(4):
            self._add(None if cifg and not gate else bias(3))
        self._add(weight(outputs, 3) if projection else None)
        self._add(bias(outputs) if projection else None)
        self._add(T("INT8", (1, outputs), None, (0.007,), (-4,), variable=True))
        self._add(T("INT16", (1, 3), None, (2.0**-11,), (0,), variable=True))
        for gate in range(4):
            self._add(weight(3, type="INT16") if norm and (gate or not cifg) else None)
        self.result = len(self.tensors)
        self.tensors.append(T("INT8", (1, 4, outputs), None, (0.007,), (-4,)))
        self.inside = tuple(range(self.result + 1, self.result + 6))
        self.tensors += [words(0, scale=0.001 * n) for n in range(1, 5)]
        self.tensors.append(T("INT8", (0,), None, (0.0065,), (9,)))
        self.options: dict[str, Any] = {
            "FusedActivationFunction": 4,
            "CellClip": 10.0,
            "ProjClip": 0.5,
            "TimeMajor": False,
        }

    def _add(self, tensor: T | None) -> None:
        self.inputs.append(-1 if tensor is None else len(self.tensors))
        if tensor is not None:
            self.tensors.append(tensor)

    def load(self, folder: Path) -> Model:
        op = Op(
            "UNIDIRECTIONAL_SEQUENCE_LSTM",
            tuple(self.inputs),
            (self.result,),
            "UnidirectionalSequenceLSTMOptions",
            self.options,
            intermediates=self.inside,
        )
        return translate_parts(folder, self.tensors, [op])


@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.parametrize("projection", [True, False])
@pytest.mark.parametrize("cifg", [True, False])
def test_lstm(tmp_path: Path, norm: bool, projection: bool, cifg: bool) -> None:
    case = Lstm(norm=norm, projection=projection, cifg=cifg)
    model = case.load(tmp_path)
    assert kinds(model) == ["UNIDIRECTIONAL_SEQUENCE_LSTM"]
    assert len(model.state) == 2
    assert all(ReferenceEngine().supported_operations(model))
    numbers = [float(value(model, position)) for position in range(24, 32)]
    scales = [0.001, 0.002, 0.003, 0.004] if norm else [2.0**-12] * 4
    assert numbers == pytest.approx([10.0, 0.5, *scales, 9, 0.0065])
    assert not value(model, 32)
    assert (operand(model, 1).lifetime == OperandLifeTime.NO_VALUE) is cifg
    assert operand(model, 2).type == OperandType.TENSOR_QUANT8_SYMM


def test_lstm_without_a_hidden_scale_takes_that_of_the_output(tmp_path: Path) -> None:
    case = Lstm()
    case.inside = ()
    model = case.load(tmp_path)
    assert int(value(model, 30)) == -4
    assert float(value(model, 31)) == pytest.approx(0.007)


@pytest.mark.parametrize(
    ("options", "inside", "state", "message"),
    [
        ({"FusedActivationFunction": 1}, 5, True, "with activation 1"),
        ({"DiagonalRecurrentTensors": True}, 5, True, "with diagonal recurrent tensors"),
        ({}, 4, True, "with layer norm and without scales inside"),
        ({}, 5, False, "without a state"),
    ],
)
def test_lstm_without_a_counterpart(
    tmp_path: Path, options: dict[str, Any], inside: int, state: bool, message: str
) -> None:
    case = Lstm(norm=True)
    case.options |= options
    case.inside = case.inside[:inside]
    if not state:
        case.inputs[STATE] = -1
    with pytest.raises(ModelError, match=f"1 x UNIDIRECTIONAL_SEQUENCE_LSTM {message}"):
        case.load(tmp_path)
