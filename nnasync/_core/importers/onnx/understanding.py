"""What an ONNX file says of its meaning: labels of classes, and how images are normalized.

Labels are in the properties of a file, as exporters of detectors and classifiers write them, or
belong to an operator of ai.onnx.ml. ONNX has properties for images, too: which range the numbers of
their pixels have (MetadataProps.md of its documentation).

Classifiers of scikit-learn end with ZipMap, which makes a list of dictionaries of probabilities, no
tensor, and give the name of the likeliest class as a text. `with_numbers_outside` leaves both out:
what remains is the matrix of the probabilities, with a column for each label.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from nnasync._core.formats.labels import property_labels
from nnasync._core.formats.metadata import Metadata, PortMetadata
from nnasync._core.importers.onnx.onnx_file import package
from nnasync.hal import Model

_LEARNING = "ai.onnx.ml"
_ATTRIBUTES = ("classlabels_strings", "class_labels", "classlabels_int64s", "classlabels_ints")
_RANGE = "Image.NominalPixelRange"
_RANGES: dict[str, tuple[float, float]] = {
    "NominalRange_0_255": (0.0, 1.0),
    "Normalized_0_1": (0.0, 255.0),
    "Normalized_1_1": (127.5, 127.5),
}
"""Mean and std of pixels from 0 to 255, by the range that they are brought to."""
_IMAGE_AXES = 4


def with_labels(message: Any, model: Model) -> Model:
    """The model with the labels that the file states, if it does."""
    found = property_labels(_properties(message)) or next(_operator_labels(message), ())
    return msgspec.structs.replace(model, labels=found) if found else model


def metadata_of(message: Any) -> Metadata:
    """Returns how the images of a file are normalized; empty unless its one input is images."""
    names = {tensor.name for tensor in message.graph.initializer}
    ports = [value for value in message.graph.input if value.name not in names]
    images = [len(value.type.tensor_type.shape.dim) == _IMAGE_AXES for value in ports]
    found = _RANGES.get(_properties(message).get(_RANGE, ""))
    if found is None or images.count(True) != 1:
        return Metadata()
    mean, std = found
    said = PortMetadata(mean=(mean,), std=(std,))
    return Metadata(tuple(said if is_image else PortMetadata() for is_image in images))


def with_numbers_outside(message: Any) -> bool:
    """Have a classifier give probabilities as a matrix, and no texts; whether that is a change."""
    has_maps = _without_dictionaries(message)
    has_labels = next(_operator_labels(message), None) is not None
    return (has_labels and _without_texts(message)) or has_maps


def _without_texts(message: Any) -> bool:
    """Leave out outputs of texts where others remain; whether there were any."""
    outputs, text = message.graph.output, package().TensorProto.STRING
    kept = [each for each in outputs if each.type.tensor_type.elem_type != text]
    if not kept or len(kept) == len(outputs):
        return False
    del outputs[:]
    outputs.extend(kept)
    return True


def _without_dictionaries(message: Any) -> bool:
    """Have outputs that ZipMap makes be the tensors that it reads; whether there were any."""
    graph, onnx = message.graph, package()
    maps = {
        node.output[0]: node
        for node in graph.node
        if node.domain == _LEARNING and node.op_type == "ZipMap" and node.output
    }
    read = {name for node in graph.node for name in node.input}
    outputs = [out for out in graph.output if out.name in maps and out.name not in read]
    for output in outputs:
        node = maps[output.name]
        sizes = [None, next(map(len, _labels_of(node)), None)]
        plain = onnx.helper.make_node("Identity", node.input, node.output, name=node.name)
        node.CopyFrom(plain)
        float32 = onnx.TensorProto.FLOAT
        output.CopyFrom(onnx.helper.make_tensor_value_info(output.name, float32, sizes))
    return bool(outputs)


def _properties(message: Any) -> dict[str, str]:
    return {entry.key: entry.value for entry in message.metadata_props}


def _operator_labels(message: Any) -> Iterator[tuple[str, ...]]:
    for node in message.graph.node:
        if node.domain == _LEARNING:
            yield from _labels_of(node)


def _labels_of(node: Any) -> Iterator[tuple[str, ...]]:
    for attribute in node.attribute:
        if attribute.name in _ATTRIBUTES:
            texts = [each.decode("utf-8", "replace") for each in attribute.strings]
            found = texts or list(map(str, attribute.ints))
            if found:
                yield tuple(found)
