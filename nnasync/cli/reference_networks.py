"""The networks that a calibration measures: real ones, and where there are none, of real shapes.

Of what NNAPI names for performance figures, the network for speech recognition is here with its
weights, and so are those of the demo; they are also what `nnasync suite benchmark` measures. The
MobileNets v1 and v2 and an LSTM for text are built with random weights, which make no difference to
how long they take; files of the real ones can be named. Types that none of these has the most of
get networks of a few operations on large tensors, so that no figure is stated that nobody measured.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from nnasync import ModelBuilder, Value, load
from nnasync.cli import demo_data
from nnasync.devices import RELAXED
from nnasync.errors import InvalidArgument, ModelError
from nnasync.hal import Array, ChannelQuant, Model, OperandType, OperationType, Struct
from nnasync.kernels import Tensor
from nnasync.suites.data import NETWORK

_V1 = (
    *((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2)),
    *((512, 1),) * 5,
    *((1024, 2), (1024, 1)),
)
"""Channels and stride of the blocks."""
_V2 = (
    *((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2)),
    *((6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)),
)
"""Expansion, channels, repetitions and stride of the blocks."""
_CLASSES = 1001
_UINT8 = OperandType.TENSOR_QUANT8_ASYMM
_INT8 = OperandType.TENSOR_QUANT8_ASYMM_SIGNED
_FLOAT = OperandType.TENSOR_FLOAT32


class ReferenceNetwork(Struct, frozen=True):
    """A network, and the operand type, or "relaxed", whose figures it tells."""

    name: str
    figure: str
    build: Callable[[], Model]


_DEMO = ("digits", "digits_large", "detector", "words")
_FILES = (".nnm", ".onnx", ".tflite")
_KINDS = {_FLOAT.name: "float", _UINT8.name: "uint8", _INT8.name: "int8"}
_FEW = (
    *(OperandType.TENSOR_FLOAT16, OperandType.TENSOR_INT32, OperandType.TENSOR_BOOL8),
    *(OperandType.TENSOR_QUANT8_SYMM, OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL),
)
"""Types that networks have some operands of, but not most."""


def reference_networks(
    files: Sequence[Path] = (), *, quick: bool = False, value_limit_bytes: int | None = None
) -> tuple[ReferenceNetwork, ...]:
    """All networks, and those of files and folders; quick ones are small, but of the same kinds.

    `value_limit_bytes` is what a value of a file may take, as `nnasync.load` has it. Raises
    InvalidArgument or OSError for files that are no networks.
    """
    return (
        *_real_networks(quick=quick),
        *_shapes(quick=quick),
        *_few_operations(quick=quick),
        *_of_files(files, value_limit_bytes),
    )


def figure_of(model: Model) -> str:
    """The operand type, or "relaxed", of the first inputs of most of a model's operations."""
    operands = model.main.operands
    kinds = Counter(operands[operation.inputs[0]].type for operation in model.main.operations)
    ((most, _),) = kinds.most_common(1)
    is_relaxed = model.relax_computation_float32_to_float16 and most == _FLOAT
    return RELAXED if is_relaxed else OperandType(most).name


def _real_networks(*, quick: bool) -> Iterator[ReferenceNetwork]:
    """Yields the networks that come with nnasync, and their relaxed float forms."""
    names = () if quick else _DEMO
    for name, path in (
        ("phones", NETWORK),
        *((name, demo_data.path(f"{name}.nnm")) for name in names),
    ):
        model = load(path)
        yield _known(name, model)
        if figure_of(model) == _FLOAT.name:
            yield _known(
                name, msgspec.structs.replace(model, relax_computation_float32_to_float16=True)
            )


def _known(name: str, model: Model) -> ReferenceNetwork:
    figure = figure_of(model)
    return ReferenceNetwork(f"{name}, {_KINDS.get(figure, figure)}", figure, lambda: model)


def _of_files(places: Sequence[Path], value_limit_bytes: int | None) -> Iterator[ReferenceNetwork]:
    for place in places:
        inside = [each for each in sorted(place.glob("*")) if each.suffix in _FILES]
        if place.is_dir() and not inside:
            raise InvalidArgument(f"{place} has no networks: no {', '.join(_FILES)} is in it")
        for path in inside or [place]:
            model = load(path, value_limit_bytes=value_limit_bytes)
            if any(0 in model.main.operands[n].dimensions for n in model.main.input_indexes):
                raise InvalidArgument(f"{path} has inputs whose shape is not fixed")
            yield _known(path.name, model)


def _shapes(*, quick: bool) -> Iterator[ReferenceNetwork]:
    """Yields networks in the shapes that NNAPI names, without trained weights."""
    width, size, units = (0.25, 96, 64) if quick else (1.0, 224, 512)
    for relaxed in (False, True):
        figure = RELAXED if relaxed else _FLOAT.name
        kind = "relaxed" if relaxed else "float"
        images = (_FLOAT, width, size, relaxed)
        yield _network(f"MobileNet v1, {kind}", figure, _mobilenet_v1, *images)
        yield _network(f"MobileNet v2, {kind}", figure, _mobilenet_v2, *images)
        yield _network(f"text LSTM, {kind}", figure, _lstm, 128, units, 1, 1000, relaxed)
    for type, kind in ((_UINT8, "uint8"), (_INT8, "int8")):
        images = (type, width, size, False)
        yield _network(f"MobileNet v1, {kind}", type.name, _mobilenet_v1, *images)
        yield _network(f"MobileNet v2, {kind}", type.name, _mobilenet_v2, *images)


def _few_operations(*, quick: bool) -> Iterator[ReferenceNetwork]:
    """Yields networks of a few operations for each other type that may come first."""
    shape = (8, 64) if quick else (256, 1024)
    kinds = (OperationType.CAST, OperationType.DEQUANTIZE, OperationType.ADD)
    for type in _FEW:
        for kind in (*kinds, OperationType.LOGICAL_AND):
            # Not every operation has every type.
            with contextlib.suppress(ModelError):
                yield _known(kind.name.lower(), _few(kind, type, shape))


def _few(kind: OperationType, type: OperandType, shape: tuple[int, int]) -> Model:
    """One operation on a large tensor; raises ModelError where it does not take the type."""
    builder = ModelBuilder(kind.name.lower())
    if type == OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL:
        scales = ChannelQuant((0.5,) * shape[0], 0)
        x = builder.constant(np.ones(shape, np.int8), channel_quant=scales)
    else:
        scale = 0.5 if type == OperandType.TENSOR_QUANT8_SYMM else 0.0
        x = builder.input("x", shape, type=type, scale=scale)
    others: tuple[Any, ...] = ()
    output: Value | Tensor = Tensor(type=_FLOAT, shape=shape)
    if kind is OperationType.ADD:
        others, output = (x, np.int32(0)), x
    elif kind is OperationType.LOGICAL_AND:
        others, output = (x,), x
    builder.output("y", builder.operation(kind, x, *others, output=output))
    return builder.build()


def _network(
    name: str, figure: str, build: Callable[..., Model], *arguments: Any
) -> ReferenceNetwork:
    return ReferenceNetwork(name, figure, lambda: build(name, *arguments))


class _Layers:
    """Convolutions with random weights, in float or quantized."""

    def __init__(self, name: str, type: OperandType, relaxed: bool) -> None:
        self.builder = ModelBuilder(name, relaxed=relaxed)
        self._type = type
        self._random = np.random.default_rng(0)

    def input(self, shape: tuple[int, ...]) -> Value:
        """The image."""
        if self._type == _FLOAT:
            return self.builder.input("image", shape)
        return self.builder.input(
            "image", shape, type=self._type, scale=1 / 128, zero_point=self._zero(128)
        )

    def convolution(
        self, x: Value, channels: int, size: int = 1, stride: int = 1, *, activation: str = "relu6"
    ) -> Value:
        """A convolution, with a bias."""
        # Values that grew from block to block would make rounding decide the class.
        gain = 0.5 if activation == "none" else 1.0
        weights = self._weights((channels, size, size, x.shape[-1]), gain)
        options = self._output(activation)
        return self.builder.conv_2d(x, weights, stride=stride, activation=activation, **options)

    def depthwise(self, x: Value, stride: int) -> Value:
        """A convolution of 3 x 3 of each channel."""
        weights = self._weights((1, 3, 3, x.shape[-1]))
        options = self._output("relu6")
        return self.builder.depthwise_conv_2d(
            x, weights, stride=stride, activation="relu6", **options
        )

    def sum(self, a: Value, b: Value) -> Value:
        """A shortcut."""
        return self.builder.add(a, b, **self._output("none"))

    def classes(self, x: Value) -> Model:
        """Mean, classifier and softmax."""
        pooled = self.builder.average_pool_2d(x, (x.shape[1], x.shape[2]))
        scores = self.convolution(pooled, _CLASSES, activation="none")
        row = self.builder.reshape(scores, (1, _CLASSES))
        self.builder.output("classes", self.builder.softmax(row))
        return self.builder.build()

    def _weights(self, shape: tuple[int, ...], gain: float = 1.0) -> Value:
        inputs = float(np.prod(shape[1:] if shape[0] > 1 else shape[1:3]))
        values: Array = self._random.normal(0, gain * np.sqrt(2 / inputs), shape)
        if self._type == _FLOAT:
            return self.builder.constant(values.astype(np.float32))
        scale = float(np.abs(values).max()) / 127
        steps = np.rint(values / scale).clip(-127, 127).astype(np.int16)
        numbers = (steps + self._zero(128)).astype(np.uint8 if self._type == _UINT8 else np.int8)
        return self.builder.constant(numbers, scale=scale, zero_point=self._zero(128))

    def _output(self, activation: str) -> dict[str, Any]:
        if self._type == _FLOAT:
            return {}
        if activation == "relu6":
            return {"scale": 6 / 255, "zero_point": self._zero(0)}
        return {"scale": 0.1, "zero_point": self._zero(128)}

    def _zero(self, unsigned: int) -> int:
        return unsigned if self._type == _UINT8 else unsigned - 128


def _mobilenet_v1(name: str, type: OperandType, width: float, size: int, relaxed: bool) -> Model:
    layers = _Layers(name, type, relaxed)
    x = layers.convolution(layers.input((1, size, size, 3)), _scaled(32, width), 3, 2)
    for channels, stride in _V1:
        x = layers.convolution(layers.depthwise(x, stride), _scaled(channels, width))
    return layers.classes(x)


def _mobilenet_v2(name: str, type: OperandType, width: float, size: int, relaxed: bool) -> Model:
    layers = _Layers(name, type, relaxed)
    x = layers.convolution(layers.input((1, size, size, 3)), _scaled(32, width), 3, 2)
    for expansion, channels, count, first_stride in _V2:
        for repetition in range(count):
            stride = 1 if repetition else first_stride
            inner = layers.convolution(x, x.shape[-1] * expansion) if expansion > 1 else x
            inner = layers.depthwise(inner, stride)
            y = layers.convolution(inner, _scaled(channels, width), activation="none")
            x = layers.sum(x, y) if repetition else y
    return layers.classes(layers.convolution(x, 1280))


def _lstm(name: str, inputs: int, units: int, layers: int, outputs: int, relaxed: bool) -> Model:
    """One step of a stream: some LSTMs, then a classifier."""
    random = np.random.default_rng(0)
    builder = ModelBuilder(name, relaxed=relaxed)

    def weights(rows: int, columns: int) -> Array:
        return random.normal(0, columns**-0.5, (rows, columns)).astype(np.float32)

    x = builder.input("features", (1, inputs))
    for layer in range(layers):
        h = builder.state(f"h{layer}", (1, units))
        c = builder.state(f"c{layer}", (1, units))
        width = x.shape[-1]
        x, h_next, c_next = builder.lstm(
            x,
            h,
            c,
            input_weights=[weights(units, width) for _ in range(4)],
            recurrent_weights=[weights(units, units) for _ in range(4)],
            biases=[np.zeros(units, np.float32) for _ in range(4)],
        )
        builder.update(h, h_next)
        builder.update(c, c_next)
    builder.output("scores", builder.softmax(builder.fully_connected(x, weights(outputs, units))))
    return builder.build()


def _scaled(channels: int, width: float) -> int:
    return max(8, int(channels * width) // 8 * 8)
