"""The trained detector as a model of nnasync: 8-bit integers, as TensorFlow Lite has them.

Weights have a scale for each channel, activations one for each tensor, from the ranges that
training measured. "image" [1, 160, 160, 1] are signed bytes, -128 for black; "boxes" [1, 525, 4]
are distances from the centers of cells to the sides of boxes, in cells, and "scores" [1, 525, 10]
are probabilities.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from nnasync import ModelBuilder, Value
from nnasync.hal import ChannelQuant, Model, OperandType, OperationType
from training.detection_scenes import SIDE

__all__ = ["detector"]

Arrays = Mapping[str, NDArray[Any]]

_SIGNED = OperandType.TENSOR_QUANT8_ASYMM_SIGNED
_LOW, _HIGH = -128, 127
_DISTANCES = (-1.25, 5.25)
"""Distances that a box can have, in cells: half of the largest, and the cell's own place."""
_LOGITS = (-9.0, 7.0)


def detector(name: str, arrays: Arrays) -> Model:
    """The network of `training.detector`, quantized."""
    builder = _Quantized(name, arrays)
    x = builder.input("image", (1, SIDE, SIDE, 1), type=_SIGNED, scale=1 / 255, zero_point=_LOW)
    for index in range(3):
        x = builder.layer(f"stem.{index}", x, stride=2)
    maps = []
    for part, stride in (("fine", 1), ("middle", 2), ("coarse", 2)):
        x = builder.layer(f"{part}.1", builder.layer(f"{part}.0", x, stride=stride))
        maps.append(x)
    merged = [builder.layer("lateral.2", maps[2], like="merged.2")]
    for level in (1, 0):
        side = builder.layer(f"lateral.{level}", maps[level], activation="none")
        wide = builder.doubled(merged[0])
        scale, zero_point = builder.quantization(f"merged.{level}")
        merged.insert(
            0, builder.add(side, wide, activation="relu", scale=scale, zero_point=zero_point)
        )
    boxes = [builder.rows("boxes", builder.layer("box_unit", map), _DISTANCES) for map in merged]
    scores = [builder.rows("scores", builder.layer("score_unit", map), _LOGITS) for map in merged]
    builder.output("boxes", builder.concatenation(boxes, 1))
    builder.output("scores", builder.logistic(builder.concatenation(scores, 1)))
    return msgspec.structs.replace(builder.build(), labels=tuple("0123456789"))


class _Quantized(ModelBuilder):
    """A builder whose layers are found by name among trained arrays."""

    def __init__(self, name: str, arrays: Arrays) -> None:
        super().__init__(name)
        self._arrays = arrays
        self._filters: dict[str, tuple[Value, NDArray[np.float64]]] = {}

    def quantization(self, name: str, span: Sequence[float] | None = None) -> tuple[float, int]:
        """Scale and zero point that give the range of a layer all 256 values."""
        low, high = self._arrays[f"{name}_range"] if span is None else span
        low, high = min(float(low), 0.0), max(float(high), 1e-3)
        scale = float(np.float32((high - low) / (_HIGH - _LOW)))
        return scale, int(np.clip(round(_LOW - low / scale), _LOW, _HIGH))

    def layer(
        self,
        name: str,
        x: Value,
        *,
        stride: int = 1,
        activation: str = "relu",
        like: str = "",
        span: Sequence[float] | None = None,
    ) -> Value:
        """A convolution with its activation; `like` is the layer whose range it has."""
        weights, scales = self._weights(name)
        bias = np.rint(self._arrays[f"{name}_bias"] / (scales * x.scale)).astype(np.int32)
        scale, zero_point = self.quantization(like or name, span)
        return self.conv_2d(
            x,
            weights,
            bias,
            stride=stride,
            padding=(weights.shape[1] // 2,) * 4,
            activation=activation,
            scale=scale,
            zero_point=zero_point,
            name=name,
        )

    def rows(self, name: str, x: Value, span: Sequence[float]) -> Value:
        """A layer without activation, its cells one after the other: [1, cells, channels]."""
        map = self.layer(name, x, activation="none", span=span)
        return self.reshape(map, (1, map.shape[1] * map.shape[2], map.shape[3]))

    def doubled(self, x: Value) -> Value:
        """Each cell as four."""
        height, width = x.shape[1:3]
        return self.operation(
            OperationType.RESIZE_NEAREST_NEIGHBOR, x, 2 * width, 2 * height, False, like=x
        )

    def _weights(self, name: str) -> tuple[Value, NDArray[np.float64]]:
        """The filter of a layer, which several layers may share, and the scales of its channels."""
        if name not in self._filters:
            weights = self._arrays[f"{name}_weights"].astype(np.float64)
            scales = np.abs(weights).max(axis=(1, 2, 3)) / _HIGH
            scales = np.maximum(scales, 1e-9).astype(np.float32).astype(np.float64)
            whole = np.clip(np.rint(weights / scales[:, None, None, None]), -_HIGH, _HIGH)
            quant = ChannelQuant(scales=tuple(float(scale) for scale in scales), channel_dim=0)
            value = self.constant(
                whole.astype(np.int8), channel_quant=quant, name=f"{name}/weights"
            )
            self._filters[name] = value, scales
        return self._filters[name]
