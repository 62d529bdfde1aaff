"""What ONNX files say of labels and images, and classifiers that give dictionaries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnasync as nn
from nnasync._core.drivers.onnxruntime import OnnxRuntimeEngine
from tests.importers.onnx.files import FLOAT, message, node, onnx, run, written

IMAGE = ("x", FLOAT, (1, 3, 2, 2))
PETS = ("cat", "dog")


def image_file(**properties: str) -> Any:
    graph = message([node("Relu", ["x"], ["y"])], [IMAGE], [("y", FLOAT, (1, 3, 2, 2))])
    onnx.helper.set_model_props(graph, properties)
    return graph


def classifier(labels: list[Any]) -> Any:
    """A linear classifier as scikit-learn's are exported, with dictionaries of probabilities."""
    is_text = isinstance(labels[0], str)
    learning, helper = "ai.onnx.ml", onnx.helper
    nodes = [
        node(
            "LinearClassifier",
            ["x"],
            ["label", "scores"],
            domain=learning,
            coefficients=[1.0, 0.0, 0.0, 1.0],
            intercepts=[0.0, 0.5],
            multi_class=1,
            post_transform="SOFTMAX",
            **({"classlabels_ints": labels} if not is_text else {"classlabels_strings": labels}),
        ),
        node(
            "ZipMap",
            ["scores"],
            ["probabilities"],
            domain=learning,
            **({"classlabels_int64s": labels} if not is_text else {"classlabels_strings": labels}),
        ),
    ]
    key = onnx.TensorProto.STRING if is_text else onnx.TensorProto.INT64
    value = helper.make_tensor_type_proto(FLOAT, None)
    maps = helper.make_sequence_type_proto(helper.make_map_type_proto(key, value))
    label = helper.make_tensor_value_info("label", key, ["n"])
    outputs = [label, helper.make_value_info("probabilities", maps)]
    inputs = [helper.make_tensor_value_info("x", FLOAT, [2, 2])]
    graph = helper.make_graph(nodes, "graph", inputs, outputs)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(learning, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


@pytest.mark.parametrize("form", [None, "translated", "whole"])
def test_labels_of_properties(tmp_path: Path, form: Any) -> None:
    path = written(tmp_path, image_file(names="{0: 'cat', 1: 'dog'}"))
    assert nn.load(path, form=form).labels == PETS
    assert nn.describe(path).labels == PETS


@pytest.mark.parametrize(
    ("range", "white"),
    [("NominalRange_0_255", 255.0), ("Normalized_0_1", 1.0), ("Normalized_1_1", 1.0)],
)
def test_images_are_normalized_as_the_file_says(tmp_path: Path, range: str, white: float) -> None:
    path = written(tmp_path, image_file(**{"Image.NominalPixelRange": range}))
    image = nn.describe(path).inputs[0]
    assert image.prepare(np.full((3, 2, 2), 255, np.uint8)).max() == white


@pytest.mark.parametrize("range", ["", "Nominal", "Normalized_2_2"])
def test_other_ranges_say_nothing(tmp_path: Path, range: str) -> None:
    path = written(tmp_path, image_file(**{"Image.NominalPixelRange": range}))
    assert nn.describe(path).inputs[0].mean == ()


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        (["cat", "dog"], PETS),
        ([3, 7], ("3", "7")),
    ],
)
def test_a_classifier_gives_a_matrix_instead_of_dictionaries(
    tmp_path: Path, labels: list[Any], names: tuple[str, ...]
) -> None:
    graph, x = classifier(labels), np.array([[1, 2], [3, 0]], np.float32)
    ort = pytest.importorskip("onnxruntime")
    expected = ort.InferenceSession(graph.SerializeToString()).run(["probabilities"], {"x": x})
    model = nn.load(written(tmp_path, graph))
    assert model.labels == names
    outputs = [model.main.operands[index].name for index in model.main.output_indexes]
    assert outputs == (["probabilities"] if names == PETS else ["label", "probabilities"])
    *_, found = run(OnnxRuntimeEngine(), model, [x])
    assert found.shape == (2, 2)
    for row, wanted in zip(found, expected[0], strict=True):
        np.testing.assert_allclose(row, list(wanted.values()))
