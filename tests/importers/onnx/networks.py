"""Small networks as exporters of public models write them: transformers, detectors, speech."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.importers.onnx.files import BOOL, FLOAT, INT64, Port, message, node

__all__ = ["NETWORKS"]

NETWORKS: dict[str, Callable[[], Any]] = {}
"""What makes the file of each network."""

Floats = npt.NDArray[np.float32]
_WIDTH, _HEADS, _LENGTH = 32, 4, 6


class _Writer:
    """Writes operators one behind another; each has a name of its own for its result."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: dict[str, Any] = {}
        self._rng = np.random.default_rng(0)

    def __call__(self, type: str, *inputs: Any, outputs: int = 1, **attributes: Any) -> Any:
        """An operator; arrays among its inputs become constants."""
        names = [each if isinstance(each, str) else self.constant(each) for each in inputs]
        made = [f"v{len(self.nodes)}_{place}" for place in range(outputs)]
        self.nodes.append(node(type, names, made, **attributes))
        return made[0] if outputs == 1 else made

    def constant(self, array: Any) -> str:
        """The name of a constant."""
        name = f"c{len(self.constants)}"
        self.constants[name] = np.asarray(array)
        return name

    def floats(self, *shape: int) -> Floats:
        """Random weights."""
        return self._rng.standard_normal(shape).astype(np.float32) / np.float32(math.sqrt(shape[0]))

    def file(self, inputs: list[Port], outputs: list[Port], *results: str, opset: int = 17) -> Any:
        """The file, of which these are the results."""
        for result, port in zip(results, outputs, strict=True):
            self.nodes.append(node("Identity", [result], [port[0]]))
        return message(self.nodes, inputs, outputs, self.constants, opset=opset)


def _network(build: Callable[[], Any]) -> Callable[[], Any]:
    NETWORKS[build.__name__] = build
    return build


def _dense(w: _Writer, x: str, before: int, after: int) -> Any:
    return w("Add", w("MatMul", x, w.floats(before, after)), w.floats(after))


def _normalized(w: _Writer, x: str) -> Any:
    """A layer normalization as opset 11 has it."""
    rest = w("Sub", x, w("ReduceMean", x, axes=[-1]))
    variance = w("ReduceMean", w("Pow", rest, np.float32(2)), axes=[-1])
    scaled = w("Div", rest, w("Sqrt", w("Add", variance, np.float32(1e-12))))
    return w("Add", w("Mul", scaled, w.floats(_WIDTH)), w.floats(_WIDTH))


def _gelu(w: _Writer, x: str) -> Any:
    """GELU as PyTorch exports it."""
    share = w("Add", w("Erf", w("Div", x, np.float32(math.sqrt(2)))), np.float32(1))
    return w("Mul", w("Mul", x, share), np.float32(0.5))


def _heads(w: _Writer, x: str, order: list[int]) -> Any:
    """Rows cut into heads, with sizes that are worked out from shapes."""
    shape = w("Shape", x)
    first, length = (w("Gather", shape, np.array([place]), axis=0) for place in range(2))
    heads = np.array([_HEADS]), np.array([_WIDTH // _HEADS])
    return w("Transpose", w("Reshape", x, w("Concat", first, length, *heads, axis=0)), perm=order)


@_network
def bert() -> Any:
    """A layer of BERT with embeddings and a mask, as opset 11 has it."""
    w = _Writer()
    words = w("Gather", w.floats(100, _WIDTH), "ids")
    x = _normalized(w, w("Add", words, w.floats(1, _LENGTH, _WIDTH)))
    mask = w("Cast", w("Unsqueeze", w("Unsqueeze", "mask", axes=[1]), axes=[2]), to=FLOAT)
    bias = w("Mul", w("Sub", np.float32(1), mask), np.float32(-10000))
    query = _heads(w, _dense(w, x, _WIDTH, _WIDTH), [0, 2, 1, 3])
    key = _heads(w, _dense(w, x, _WIDTH, _WIDTH), [0, 2, 3, 1])
    value = _heads(w, _dense(w, x, _WIDTH, _WIDTH), [0, 2, 1, 3])
    scores = w("Div", w("MatMul", query, key), np.float32(math.sqrt(_WIDTH / _HEADS)))
    chances = w("Softmax", w("Add", scores, bias), axis=3)
    context = w("Transpose", w("MatMul", chances, value), perm=[0, 2, 1, 3])
    rows = w("Reshape", context, np.array([1, _LENGTH, _WIDTH]))
    x = _normalized(w, w("Add", _dense(w, rows, _WIDTH, _WIDTH), x))
    inner = _gelu(w, _dense(w, x, _WIDTH, 4 * _WIDTH))
    x = _normalized(w, w("Add", _dense(w, inner, 4 * _WIDTH, _WIDTH), x))
    pooled = w("Tanh", w("Gemm", w("Gather", x, np.int64(0), axis=1), w.floats(_WIDTH, 8)))
    return w.file(
        [("ids", INT64, (1, _LENGTH)), ("mask", INT64, (1, _LENGTH))],
        [("states", FLOAT, (1, _LENGTH, _WIDTH)), ("pooled", FLOAT, (1, 8))],
        x,
        pooled,
        opset=11,
    )


@_network
def vision_transformer() -> Any:
    """Patches, a token for the class, and attention whose three parts come from one tensor."""
    w = _Writer()
    patches = w("Conv", "image", w.floats(_WIDTH, 3, 4, 4), w.floats(_WIDTH), strides=[4, 4])
    rows = w("Transpose", w("Reshape", patches, np.array([1, _WIDTH, 9])), perm=[0, 2, 1])
    x = w("Add", w("Concat", w.floats(1, 1, _WIDTH), rows, axis=1), w.floats(1, 10, _WIDTH))
    y = w("LayerNormalization", x, w.floats(_WIDTH), w.floats(_WIDTH), epsilon=1e-6)
    three = _dense(w, y, _WIDTH, 3 * _WIDTH)
    parts = w("Reshape", three, np.array([1, 10, 3, _HEADS, _WIDTH // _HEADS]))
    parts = w("Transpose", parts, perm=[2, 0, 3, 1, 4])
    query, key, value = (w("Gather", parts, np.int64(place), axis=0) for place in range(3))
    scale = np.float32(math.sqrt(_HEADS / _WIDTH))
    scores = w("MatMul", w("Mul", query, scale), w("Transpose", key, perm=[0, 1, 3, 2]))
    context = w("MatMul", w("Softmax", scores, axis=-1), value)
    context = w("Reshape", w("Transpose", context, perm=[0, 2, 1, 3]), np.array([1, 10, _WIDTH]))
    x = w("Add", x, _dense(w, context, _WIDTH, _WIDTH))
    x = w("Add", x, _dense(w, _gelu(w, _dense(w, x, _WIDTH, 64)), 64, _WIDTH))
    token = w("Reshape", w("Slice", x, *(np.array([n]) for n in (0, 1, 1))), np.array([1, -1]))
    return w.file([("image", FLOAT, (1, 3, 12, 12))], [("y", FLOAT, (1, _WIDTH))], token)


@_network
def detector() -> Any:
    """The end of a YOLO: boxes by anchors and places, in tensors of rank 5."""
    w = _Writer()
    x = w("Conv", "image", w.floats(16, 3, 3, 3), w.floats(16), strides=[2, 2], pads=[1, 1, 1, 1])
    x = w("Mul", x, w("Sigmoid", x))
    pooled = [x]
    for _ in range(2):
        pooled.append(w("MaxPool", pooled[-1], kernel_shape=[5, 5], pads=[2, 2, 2, 2]))
    x = w("Conv", w("Concat", *pooled, axis=1), w.floats(24, 48, 1, 1), w.floats(24))
    x = w("Transpose", w("Reshape", x, np.array([1, 3, 8, 6, 6])), perm=[0, 1, 3, 4, 2])
    y = w("Sigmoid", x)
    middle, size, rest = w("Split", y, np.array([2, 2, 4]), axis=4, outputs=3)
    rows, columns = np.mgrid[:6, :6].astype(np.float32)
    grid = np.stack([columns, rows], -1)[None, None]
    middle = w("Mul", w("Add", w("Mul", middle, np.float32(2)), grid), np.float32(8))
    size = w("Mul", w("Pow", w("Mul", size, np.float32(2)), np.float32(2)), w.floats(1, 3, 1, 1, 2))
    boxes = w("Reshape", w("Concat", middle, size, rest, axis=4), np.array([1, -1, 8]))
    scores = w("ReduceMax", w("Slice", boxes, *(np.array([n]) for n in (4, 8, 2))), axes=[2])
    best, places = w("TopK", w("Squeeze", scores, np.array([2])), np.array([5]), outputs=2)
    return w.file(
        [("image", FLOAT, (1, 3, 12, 12))],
        [("boxes", FLOAT, (1, 108, 8)), ("best", FLOAT, (1, 5)), ("places", INT64, (1, 5))],
        boxes,
        best,
        places,
    )


@_network
def speech() -> Any:
    """Convolutions over lines, as of Whisper, and a recurrent layer behind them."""
    w = _Writer()
    x = w("Conv", "mel", w.floats(16, 8, 3), w.floats(16), pads=[1, 1])
    x = w("Conv", _gelu(w, x), w.floats(16, 16, 3), w.floats(16), pads=[1, 1], strides=[2])
    x = w("Transpose", _gelu(w, x), perm=[2, 0, 1])
    sizes = w.floats(2, 48, 16), w.floats(2, 48, 12), w.floats(2, 96)
    y, _, last = w("LSTM", x, *sizes, outputs=3, hidden_size=12, direction="bidirectional")
    y = w("Reshape", w("Transpose", y, perm=[0, 2, 1, 3]), np.array([0, 0, -1]))
    gates = w.floats(1, 30, 24), w.floats(1, 30, 10), w.floats(1, 60)
    y = w("GRU", y, *gates, hidden_size=10, linear_before_reset=1)
    return w.file(
        [("mel", FLOAT, (1, 8, 10))],
        [("y", FLOAT, (5, 1, 1, 10)), ("last", FLOAT, (2, 1, 12))],
        y,
        last,
    )


@_network
def decoder() -> Any:
    """A layer of a language model: rotated positions, a mask of the past, a gated product."""
    w = _Writer()
    x = w("Gather", w.floats(50, _WIDTH), "ids")
    power = w("Mul", x, x)
    mean = w("ReduceMean", power, axes=[-1], keepdims=1)
    y = w("Mul", x, w("Div", np.float32(1), w("Sqrt", w("Add", mean, np.float32(1e-6)))))
    size = _WIDTH // _HEADS
    steps = w("Cast", w("Range", np.int64(0), np.int64(_LENGTH), np.int64(1)), to=FLOAT)
    angles = w("Einsum", steps, w.floats(size // 2), equation="i,j->ij")
    angles = w("Concat", angles, angles, axis=-1)
    cosine, sine = w("Cos", angles), w("Sin", angles)
    query, key = (
        _rotated(w, _heads(w, w("MatMul", y, w.floats(_WIDTH, _WIDTH)), [0, 2, 1, 3]), cosine, sine)
        for _ in range(2)
    )
    value = _heads(w, w("MatMul", y, w.floats(_WIDTH, _WIDTH)), [0, 2, 1, 3])
    scores = w("Einsum", query, key, equation="bhqd,bhkd->bhqk")
    past = w("Trilu", w("Expand", np.float32(1), np.array([_LENGTH, _LENGTH])), upper=0)
    is_past = w("And", w("Cast", past, to=BOOL), w("Cast", "mask", to=BOOL))
    scores = w("Where", is_past, scores, np.float32(-1e9))
    context = w("Einsum", w("Softmax", scores, axis=-1), value, equation="bhqk,bhkd->bqhd")
    x = w("Add", x, w("Reshape", context, np.array([0, 0, -1])))
    gate = w("MatMul", x, w.floats(_WIDTH, 48))
    gated = w("Mul", w("Mul", gate, w("Sigmoid", gate)), w("MatMul", x, w.floats(_WIDTH, 48)))
    x = w("Add", x, w("MatMul", gated, w.floats(48, _WIDTH)))
    return w.file(
        [("ids", INT64, (1, _LENGTH)), ("mask", INT64, (1, _LENGTH))],
        [("y", FLOAT, (1, _LENGTH, _WIDTH))],
        x,
    )


def _rotated(w: _Writer, x: str, cosine: str, sine: str) -> Any:
    half = _WIDTH // _HEADS // 2
    first = w("Slice", x, np.array([0]), np.array([half]), np.array([3]))
    second = w("Slice", x, np.array([half]), np.array([2**62]), np.array([3]))
    turned = w("Concat", w("Neg", second), first, axis=-1)
    return w("Add", w("Mul", x, cosine), w("Mul", turned, sine))
