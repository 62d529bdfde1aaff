"""GROUPED_CONV_2D: each group of outputs sees its own group of channels."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from nnasync.hal import Array, HalVersion, OperandType, OperationType, Shape
from nnasync.kernels.facts import CriterionClass, Facts, each_output
from nnasync.kernels.operation import (
    Arguments,
    ArraySpec,
    Kernel,
    Operation,
    Parameter,
    Step,
    Tensor,
)
from nnasync.kernels.steps import Call, blocks, copy, pieces
from nnasync.kernels.windows.convolution import depthwise_kernel
from nnasync.kernels.windows.convolution_form import Form, check_filter, requires, signatures
from nnasync.kernels.windows.linear import Linear, activation, pack
from nnasync.kernels.windows.rescale import Halves
from nnasync.kernels.windows.window import (
    EXPLICIT_PADDING,
    IMPLICIT_PADDING,
    LAYOUT,
    STRIDES,
    PaddedRows,
    Window,
    filter_window,
    image_result,
    image_shape,
    in_layout,
    position,
    windows,
)


def _forms() -> list[Form]:
    end = tuple(Parameter(name, OperandType.INT32) for name in ("groups", "activation"))
    return [
        (HalVersion.V1_2, (*padding, *STRIDES, *end, *LAYOUT))
        for padding in (IMPLICIT_PADDING, EXPLICIT_PADDING)
    ]


def _infer(arguments: Arguments) -> list[Tensor]:
    channels, outputs = image_shape(arguments)[3], arguments.tensor(1, 4).shape[0]
    index = position(arguments, "groups")
    groups = arguments.integer(index, 1)
    if channels % groups or outputs % groups:
        message = f"is {groups}, expected a divisor of {channels} channels and {outputs} outputs"
        raise arguments.error(index, message)
    check_filter(arguments, channels // groups, outputs)
    window = filter_window(arguments)
    return [image_result(arguments, window.height.output, window.width.output, outputs)]


def _prepare(arguments: Arguments, outputs: Sequence[Tensor]) -> Kernel:
    filter = arguments.value(1)
    fused = activation(arguments, position(arguments, "activation"))
    weights = filter.reshape(filter.shape[0], -1).T
    linear = pack(arguments, weights, outputs[0], fused, halves=Halves.AWAY)
    shape, window = image_shape(arguments), filter_window(arguments)
    groups = arguments.integer(position(arguments, "groups"))
    if groups == shape[3]:
        kernel = depthwise_kernel(linear, shape, window)
    else:
        kernel = _grouped_kernel(linear, shape, window, groups)
    return in_layout(arguments, outputs, kernel)


def _grouped_kernel(linear: Linear, shape: Shape, window: Window, groups: int) -> Kernel:
    """One matrix product per group and block of output rows, all groups in one call."""
    terms, channels = linear.weights.shape
    batches, width = shape[0], window.width.output
    parts = list(blocks(window.height.output, width * max(groups * terms, channels)))
    largest = parts[0].stop
    specs = [
        ArraySpec(PaddedRows.shape(window, largest, shape[3], phases=1), linear.dtype),
        ArraySpec((groups * largest * width * terms,), linear.dtype),
        *linear.scratch((largest, width, channels)),
    ]
    weights = np.ascontiguousarray(linear.weights.reshape(terms, groups, -1).transpose(1, 0, 2))

    def bind(inputs: Sequence[Any], outputs: Sequence[Array], scratch: Sequence[Array]) -> Step:
        images = inputs[0].reshape(shape)
        output = outputs[0].reshape(batches, -1, width, channels)
        rows = PaddedRows(scratch[0], window, linear.border)
        view = windows(scratch[0], window, largest)
        grouped = view.reshape(*view.shape[:4], groups, -1).transpose(4, 0, 1, 2, 3, 5)

        def calls() -> Iterator[Call]:
            yield from rows.sides()
            for batch, part in itertools.product(range(batches), parts):
                count = part.stop - part.start
                target = output[batch, part]
                sums, rest = linear.sums(target, scratch[2:])
                source = grouped[:, :count]
                columns = scratch[1][: source.size].reshape(source.shape)
                matrices = columns.reshape(groups, count * width, terms)
                results = sums.reshape(count * width, groups, -1).transpose(1, 0, 2)
                yield from rows.rows(images[batch], part)
                yield copy(columns, source)
                yield np.matmul, (matrices, weights, results)
                yield from linear.finish(sums, target, rest)

        return pieces(batches * len(parts), calls)

    return Kernel(bind, specs)


GROUPED_CONV_2D = Operation(
    OperationType.GROUPED_CONV_2D,
    signatures(_forms()),
    _infer,
    _prepare,
    requires=requires(channel_dim=0),
    facts=Facts(CriterionClass.CONVOLUTION, multiply_adds=each_output),
)
