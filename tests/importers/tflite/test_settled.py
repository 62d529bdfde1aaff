"""Results of a file have the stated shapes, unless values decide about them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from nnasync._core import importers
from nnasync._core.compilation.whole_form import can_be_replaced, ends_of
from nnasync._core.drivers.litert import LiteRTEngine
from nnasync.engine import Lowering
from nnasync.errors import GeneralFailure, ModelError
from nnasync.hal import ExecutionPreference, Model
from tests.importers.tflite_files import Op, T, tflite_file

OPEN = T("FLOAT32", (1, 8), open=(-1, 8))
SHAPE = T("INT32", (2,))
HALF = T("FLOAT32", (1, 4), open=(-1, 4))


def whole(folder: Path, tensors: list[T], ops: list[Op], inputs: list[int]) -> Model:
    path = folder / "net.tflite"
    path.write_bytes(tflite_file(tensors, ops, inputs, [len(tensors) - 1]))
    return importers.load_whole(path)


def shape_of_result(model: Model) -> tuple[int, ...]:
    return model.main.operands[model.main.output_indexes[0]].dimensions


def test_an_open_number_of_examples_is_what_the_file_states(tmp_path: Path) -> None:
    ops = [Op("TANH", (0,), (1,)), Op("ABS", (1,), (2,))]
    model = whole(tmp_path, [OPEN, OPEN, OPEN], ops, [0])
    assert shape_of_result(model) == (1, 8)
    assert ends_of(model) == ends_of(importers.load(tmp_path / "net.tflite"))
    kept = importers.load(tmp_path / "net.tflite", form="whole")
    assert shape_of_result(kept) == (1, 8)
    opened = importers.load(tmp_path / "net.tflite", form="whole", shapes={"t0": (None, 8)})
    assert shape_of_result(opened) == (0, 8)


def test_shapes_that_are_computed_of_shapes_are_known(tmp_path: Path) -> None:
    ops = [Op("SHAPE", (0,), (1,)), Op("RESHAPE", (0, 1), (2,))]
    assert shape_of_result(whole(tmp_path, [OPEN, SHAPE, OPEN], ops, [0])) == (1, 8)


def test_shapes_that_values_decide_about_stay_open(tmp_path: Path) -> None:
    ops = [Op("RESHAPE", (0, 1), (2,))]
    assert shape_of_result(whole(tmp_path, [OPEN, SHAPE, OPEN], ops, [0, 1])) == (0, 8)
    where = T("INT64", (1, 2), open=(-1, 2))
    ops = [Op("WHERE", (0,), (1,))]
    assert shape_of_result(whole(tmp_path, [T("BOOL", (1, 8)), where], ops, [0])) == (0, 2)


def test_numbers_that_are_looked_up_decide_about_no_shape(tmp_path: Path) -> None:
    table = T("FLOAT32", (4, 8), np.zeros((4, 8), np.float32))
    ops = [Op("GATHER", (1, 0), (2,), "GatherOptions", {"Axis": 0})]
    tensors = [T("INT32", (1,), open=(-1,)), table, OPEN]
    assert shape_of_result(whole(tmp_path, tensors, ops, [0])) == (1, 8)


@pytest.mark.parametrize("open", [(-1, -1), (1, -1)])
def test_an_open_dimension_that_counts_no_examples_stays_open(
    tmp_path: Path, open: tuple[int, int]
) -> None:
    result = T("FLOAT32", (1, 8), open=open)
    model = whole(tmp_path, [OPEN, result], [Op("TANH", (0,), (1,))], [0])
    assert 0 in shape_of_result(model)
    assert not can_be_replaced(model)


def test_a_number_of_examples_that_no_input_leaves_open_stays_open(tmp_path: Path) -> None:
    model = whole(tmp_path, [T("FLOAT32", (1, 8)), OPEN], [Op("TANH", (0,), (1,))], [0])
    assert shape_of_result(model) == (0, 8)


def test_a_range_of_computed_floats_is_as_long_as_these_say(tmp_path: Path) -> None:
    limit, result = T("FLOAT32", ()), T("FLOAT32", (1,), open=(-1,))
    one = T("FLOAT32", (), np.float32(1))
    tensors = [T("FLOAT32", (1,), open=(-1,)), limit, one, one, result]
    ops = [Op("SUM", (0,), (1,)), Op("RANGE", (2, 1, 3), (4,))]
    assert shape_of_result(whole(tmp_path, tensors, ops, [0])) == (0,)


def test_a_file_whose_ends_are_wide_does_not_run_before_it_is_translated(tmp_path: Path) -> None:
    for type in ("INT64", "FLOAT64"):
        model = whole(tmp_path, [T(type, (2,))] * 2, [Op("ABS", (0,), (1,))], [0])
        assert not can_be_replaced(model)


def test_integers_with_a_scale_are_not_what_the_translated_file_has(tmp_path: Path) -> None:
    scaled = T("INT32", (2,), None, (0.5,), (0,))
    with pytest.raises(ModelError, match="tensor 1 .* is INT32 with a scale"):
        whole(tmp_path, [T("INT32", (2,)), scaled], [Op("ABS", (0,), (1,))], [0])


def test_the_state_of_an_svdf_is_shifted_at_another_time(tmp_path: Path) -> None:
    tensors = [
        T("FLOAT32", (1, 4)),
        T("FLOAT32", (3, 4), np.ones((3, 4), np.float32)),
        T("FLOAT32", (3, 5), np.ones((3, 5), np.float32)),
        T("FLOAT32", (3,), np.zeros(3, np.float32)),
        T("FLOAT32", (1, 15), variable=True),
        T("FLOAT32", (1, 3)),
    ]
    op = Op("SVDF", (0, 1, 2, 3, 4), (5,), "SVDFOptions", {"Rank": 1})
    with pytest.raises(ModelError, match=r"operator 0 \(SVDF\): its state"):
        whole(tmp_path, tensors, [op], [0])


def test_a_file_that_states_wrong_shapes_is_refused_when_it_is_compiled(tmp_path: Path) -> None:
    pytest.importorskip("ai_edge_litert")
    model = whole(tmp_path, [OPEN, HALF], [Op("TANH", (0,), (1,))], [0])
    with pytest.raises(GeneralFailure, match=r"output 0 the shape \[1, 8\], the model .* \[1, 4\]"):
        LiteRTEngine().compile(
            model, ExecutionPreference.FAST_SINGLE_ANSWER, Lowering("file-builtin")
        )
