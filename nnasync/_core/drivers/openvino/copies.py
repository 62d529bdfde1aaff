"""Which channels of images are to be there twice, so that weights fit into signed bytes.

Unsigned weights less their zero point reach from -255 to 255. Of a whole filter one or two are
beyond a signed byte as a rule, all of them for one channel of the image. An image in which that
channel comes twice lets them be sums: 150 x = 127 x + 23 x. The copy is made by the convolution
before, to whose filter a row is added, and it goes through all that treats channels alike. So
images between the same convolutions have the same copies.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nnasync._core.validation import find_operation
from nnasync.hal import Array, Model, Operation, OperationType, is_quantized
from nnasync.kernels import Tensor

_LOWEST, _HIGHEST = -128, 127
_FEWEST = 48
"""Channels of an image that gets copies: kernels take 16 or 32 at a time, or one as if it were so
many, so that with few channels a copy costs more than sums of real numbers do.
"""


def centered(weights: Tensor) -> Array:
    """Constant weights less their zero point, int16."""
    if weights.value is None:
        raise ValueError("weights that are computed")
    zero_point = 0 if weights.channel_quant is not None else weights.zero_point
    numbers: Array = weights.value.astype(np.int16) - np.int16(zero_point)
    return numbers


def fits(numbers: Array) -> bool:
    """Returns whether all numbers are signed bytes."""
    return bool(numbers.min(initial=0) >= _LOWEST and numbers.max(initial=0) <= _HIGHEST)


def split(numbers: Array, copied: Sequence[int]) -> Array:
    """Centered weights, channels last, for an image with copies of these channels behind its own.

    Raises ValueError where they need more copies.
    """
    parts = [np.clip(numbers, _LOWEST, _HIGHEST)]
    rest = numbers - parts[0]
    for channel in copied:
        part = np.clip(rest[..., channel], _LOWEST, _HIGHEST)
        rest[..., channel] -= part
        parts.append(part[..., np.newaxis])
    if rest.any():
        raise ValueError("weights that need more copies")
    whole: Array = np.concatenate(parts, axis=-1)
    return whole


class Copies:
    """The copies that a model's convolutions want, as far as their images can have them.

    Images between the same convolutions form a group; one is closed, and may have copies, if only
    operations that understand them write and read its images.
    """

    def __init__(self, model: Model, tensors: Sequence[Tensor | None]) -> None:
        self._model = model
        self._tensors = tensors
        self._leaders = list(range(len(tensors)))
        self._is_closed = [True] * len(tensors)
        self._counts: dict[int, dict[int, int]] = {}
        for index in (*model.main.input_indexes, *model.main.output_indexes):
            self._is_closed[index] = False
        for operation in model.main.operations:
            self._connect(operation)
        for operation in model.main.operations:
            if operation.type == OperationType.CONV_2D and self._may_ask(operation):
                self._ask(operation)

    def __bool__(self) -> bool:
        return bool(self._counts)

    def of(self, index: int) -> tuple[int, ...]:
        """The channels of which an operand has copies, in their order; some come several times."""
        counts = self._counts.get(self._leader(index), {})
        return tuple(channel for channel in sorted(counts) for _ in range(counts[channel]))

    def _leader(self, index: int) -> int:
        while self._leaders[index] != index:
            index = self._leaders[index]
        return index

    def _connect(self, operation: Operation) -> None:
        """Join the images of an operation, unless it is what separates groups."""
        images = [i for i in (*operation.inputs, *operation.outputs) if self._is_image(i)]
        if not images or (operation.type == OperationType.CONV_2D and self._is_usual(operation)):
            return
        alike = self._is_by_channel(operation) and self._is_usual(operation) and self._agree(images)
        first = self._leader(images[0])
        for index in images:
            other = self._leader(index)
            closed = self._is_closed[first] and self._is_closed[other] and alike
            self._leaders[other], self._is_closed[first] = first, closed

    def _is_by_channel(self, operation: Operation) -> bool:
        """Returns whether an operation treats every channel alike, so that a copy stays one."""
        known = find_operation(self._model, operation.type)
        return known is not None and known.facts.by_channel

    def _is_image(self, index: int) -> bool:
        tensor = self._tensors[index]
        return tensor is not None and tensor.value is None and is_quantized(tensor.type)

    def _is_usual(self, operation: Operation) -> bool:
        """Returns whether channels are last, and weights and bias constant, a filter a channel."""
        inputs = [self._tensors[index] for index in operation.inputs]
        if any(
            t is not None and t.value is not None and t.value.dtype == bool and t.value.any()
            for t in inputs
        ):
            return False
        if operation.type == OperationType.CONV_2D:
            return all(tensor is not None and tensor.value is not None for tensor in inputs[1:3])
        if operation.type != OperationType.DEPTHWISE_CONV_2D:
            return True
        source, filter, bias = inputs[:3]
        if source is None or filter is None or bias is None:
            return False
        known = filter.value is not None and bias.value is not None
        return known and filter.shape[-1:] == source.shape[-1:]

    def _agree(self, images: Sequence[int]) -> bool:
        """Returns whether all images have the same number of channels."""
        shapes = [tensor.shape for index in images if (tensor := self._tensors[index])]
        return all(len(shape) == 4 and shape[3] == shapes[-1][3] for shape in shapes)

    def _may_ask(self, operation: Operation) -> bool:
        source, filter = (self._tensors[index] for index in operation.inputs[:2])
        if source is None or filter is None or not is_quantized(filter.type):
            return False
        wide = source.rank == 4 and source.shape[3] >= _FEWEST and self._is_usual(operation)
        return wide and self._is_closed[self._leader(operation.inputs[0])]

    def _ask(self, operation: Operation) -> None:
        """Want copies of the channels whose weights are too large, as many as the largest needs."""
        filter = self._tensors[operation.inputs[1]]
        numbers = centered(filter) if filter is not None else np.zeros(0, np.int16)
        if fits(numbers):
            return
        counts = self._counts.setdefault(self._leader(operation.inputs[0]), {})
        rest, count = numbers - np.clip(numbers, _LOWEST, _HIGHEST), 0
        while rest.any():
            count += 1
            for channel in np.flatnonzero(rest.any(axis=(0, 1, 2))):
                counts[int(channel)] = max(counts.get(int(channel), 0), count)
            rest -= np.clip(rest, _LOWEST, _HIGHEST)
