"""Loading `.onnx` files: which way they go, what is said of it, and what is refused."""

from __future__ import annotations

import logging
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnasync as nn
from nnasync._core.drivers.onnxruntime import OnnxRuntimeEngine
from nnasync._core.formats import value_sizes
from nnasync._core.formats.whole import file_of
from nnasync._core.importers.onnx import onnx_file, wrap
from nnasync.errors import InvalidArgument, ModelError
from nnasync.extensions import ONNX
from nnasync.hal import Model, OperandType
from tests.importers.onnx.files import FLOAT, message, node, onnx, run, written

X, Y = [("x", FLOAT, (2, 2))], [("y", FLOAT, (2, 2))]
MATRIX = np.arange(4, dtype=np.float32).reshape(2, 2)


def determinant() -> Any:
    """A file that is not translated."""
    return message([node("Det", ["x"], ["y"])], X, [("y", FLOAT, ())])


def product() -> Any:
    return message([node("MatMul", ["x", "w"], ["y"])], X, Y, {"w": MATRIX})


def outside(location: str, folder: Path) -> Path:
    """A file whose weights are in another one."""
    model = product()
    (tensor,) = model.graph.initializer
    tensor.ClearField("raw_data")
    tensor.data_location = 1
    for key, value in (("location", location), ("offset", "0"), ("length", "16")):
        tensor.external_data.add(key=key, value=value)
    return written(folder, model)


def is_wrapped(model: Model) -> bool:
    return [entry.name for entry in model.extension_name_to_prefix] == [ONNX.name]


def test_a_file_is_translated_where_it_can_be(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "nnasync.importers.onnx")
    model = nn.load(written(tmp_path, product()))
    assert not is_wrapped(model)
    assert "translated to 1 operations" in caplog.text


def test_otherwise_it_is_wrapped_and_says_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "nnasync.importers.onnx")
    model = nn.load(written(tmp_path, determinant()))
    assert is_wrapped(model)
    assert "1 x Det" in caplog.text
    (file,) = (o for o in model.main.operands if o.type == OperandType.TENSOR_OEM_BYTE)
    assert file.name.startswith("net.onnx, as it is: ")
    assert "1 x Det" in file.name


def test_a_wrapped_file_can_be_saved_and_loaded(tmp_path: Path) -> None:
    model = nn.load(written(tmp_path, determinant()))
    nn.save(model, tmp_path / "copy.nnm")
    assert is_wrapped(nn.load(tmp_path / "copy.nnm"))


def test_data_beside_the_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_bytes(MATRIX.tobytes())
    model = nn.load(outside("weights.bin", tmp_path))
    assert not is_wrapped(model)


def test_data_beside_the_file_counts_as_part_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For how large values may be, which is four times as large as the file, and some."""
    monkeypatch.setattr(value_sizes, "_LEAST_BYTES", 0)
    row = np.ones((1, 1 << 12), np.float32)
    ends = ([("x", FLOAT, (1, 1))], [("y", FLOAT, row.shape)])
    model = message([node("MatMul", ["x", "w"], ["y"])], *ends, {"w": row})
    (tensor,) = model.graph.initializer
    tensor.ClearField("raw_data")
    tensor.data_location = 1
    tensor.external_data.add(key="location", value="weights.bin")
    (tmp_path / "weights.bin").write_bytes(row.tobytes())
    path = written(tmp_path, model)
    assert path.stat().st_size * 4 < row.nbytes
    for form in ("translated", "whole"):
        nn.load(path, form=form)


@pytest.mark.parametrize("location", ["../weights.bin", "/etc/hostname", "missing.bin"])
def test_data_elsewhere_is_refused(location: str, tmp_path: Path) -> None:
    folder = tmp_path / "inner"
    folder.mkdir()
    (tmp_path / "weights.bin").write_bytes(MATRIX.tobytes())
    with pytest.raises(ModelError, match=r"net\.onnx"):
        nn.load(outside(location, folder))


def test_data_that_are_missing_are_told(tmp_path: Path) -> None:
    told = r"net\.onnx: has weights in another file, 'inner/w\.bin', which is missing"
    with pytest.raises(ModelError, match=told):
        nn.load(outside("inner/w.bin", tmp_path))


def test_data_elsewhere_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "weights.bin").write_bytes(MATRIX.tobytes())
    path = outside("weights.bin", tmp_path)
    monkeypatch.setattr(onnx_file, "MAX_FILE_BYTES", path.stat().st_size)
    model = product()
    (tensor,) = model.graph.initializer
    tensor.ClearField("raw_data")
    del tensor.dims[:]
    tensor.dims.extend([1000, 1000])
    tensor.data_location = 1
    tensor.external_data.add(key="location", value="weights.bin")
    with pytest.raises(ModelError, match="data in other files"):
        nn.load(written(tmp_path, model, "n.onnx"))


def test_a_large_file_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, product())
    monkeypatch.setattr(onnx_file, "MAX_FILE_BYTES", 10)
    with pytest.raises(ModelError, match="at most 10"):
        nn.load(path)


def test_every_cut_of_a_file_is_a_model_error_or_a_model(tmp_path: Path) -> None:
    whole = product().SerializeToString()
    path = tmp_path / "cut.onnx"
    for length in range(0, len(whole), 3):
        path.write_bytes(whole[:length])
        with pytest.raises(ModelError, match=r"cut\.onnx"):
            nn.load(path)


def test_deeply_nested_graphs_are_refused(tmp_path: Path) -> None:
    model = determinant()
    graph = model.graph
    for _ in range(40):
        branch = onnx.GraphProto()
        branch.CopyFrom(graph)
        del graph.node[:]
        graph.node.append(node("If", ["c"], ["y"], then_branch=branch, else_branch=branch))
        if model.ByteSize() > 2**20:
            break
    with pytest.raises(ModelError):
        nn.load(written(tmp_path, model))


def test_strings_cannot_cross_the_border(tmp_path: Path) -> None:
    graph = message([node("Identity", ["x"], ["y"])], [("x", 8, (2,))], [("y", 8, (2,))])
    with pytest.raises(ModelError, match='input "x" is string, which no operand can hold'):
        nn.load(written(tmp_path, graph))


def test_an_output_need_not_have_a_shape(tmp_path: Path) -> None:
    graph = product()
    graph.graph.output[0].type.tensor_type.ClearField("shape")
    path = written(tmp_path, graph)
    for form in ("translated", "whole"):
        model = nn.load(path, form=form)
        (operand,) = (model.main.operands[index] for index in model.main.output_indexes)
        assert operand.dimensions == (2, 2)


def test_without_the_package_the_error_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, product())
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(InvalidArgument, match=r"pip install 'nnasync\[onnxruntime\]'"):
        nn.load(path)


@pytest.mark.parametrize("form", ["translated", "whole"])
def test_shapes_are_for_either_form(tmp_path: Path, form: Any) -> None:
    path = written(tmp_path, message([node("Relu", ["x"], ["y"])], [("x", FLOAT, ("n", 2))], Y))
    model = nn.load(path, shapes={"x": (2, 2)}, form=form)
    assert is_wrapped(model) == (form == "whole")
    assert model.main.operands[model.main.input_indexes[0]].dimensions == (2, 2)


def test_constants_that_are_listed_as_inputs_are_none(tmp_path: Path) -> None:
    """So it is in files of the first versions; ONNX Runtime joins such operators to none."""
    graph = product()
    graph.graph.input.append(onnx.helper.make_tensor_value_info("w", FLOAT, (2, 2)))
    graph.ir_version = 3
    model = wrap(written(tmp_path, graph))
    (index,) = model.main.input_indexes
    assert model.main.operands[index].name == "x"
    (operation,) = model.main.operations
    content = onnx.load_model_from_string(file_of(model, operation))
    assert [value.name for value in content.graph.input] == ["x"]
    (result,) = run(OnnxRuntimeEngine(), model, [MATRIX])
    np.testing.assert_allclose(result, MATRIX @ MATRIX)


def test_outputs_of_a_whole_file_have_the_shapes_that_follow(tmp_path: Path) -> None:
    nodes = [node("Einsum", ["x", "x"], ["v"], equation="ij,kj->ik"), node("Abs", ["v"], ["y"])]
    graph = message(nodes, [("x", FLOAT, ("n", 3))], [("y", FLOAT, ("a", "b"))])
    path = written(tmp_path, graph)
    (index,) = (model := wrap(path, shapes={"x": (4, 3)})).main.output_indexes
    assert model.main.operands[index].dimensions == (4, 4)
    (index,) = (model := wrap(path)).main.output_indexes
    assert model.main.operands[index].dimensions == (0, 0)


def test_odd_numbers_in_a_file_do_not_warn(tmp_path: Path) -> None:
    graph = message(
        [node("Gemm", ["x", "w"], ["y"], alpha=float("inf"))],
        X,
        Y,
        {"w": np.zeros((2, 2), np.float32)},
    )
    path = written(tmp_path, graph)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        nn.load(path)


def test_an_output_that_is_an_input_is_not_run_whole(tmp_path: Path) -> None:
    """ONNX Runtime leaves where it is to be as it was."""
    path = written(tmp_path, message([], X, X, opset=6))
    with pytest.raises(ModelError, match='output "x" is an input, and computed by no node'):
        nn.load(path)


def test_an_output_that_is_stated_twice_is_not_run_whole(tmp_path: Path) -> None:
    """ONNX Runtime writes only one of the two places."""
    path = written(tmp_path, message([node("Identity", ["x"], ["y"])], X, [*Y, *Y], opset=6))
    with pytest.raises(ModelError, match='output "y" is stated twice'):
        nn.load(path)
