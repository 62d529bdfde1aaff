"""Geometry of windows, and how their pixels are laid out."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnasync.hal import Array
from nnasync.kernels.steps import sequence
from nnasync.kernels.windows.window import Axis, PaddedRows, Window, lay_out, same_padding, windows


@given(st.integers(1, 40), st.integers(1, 6), st.integers(1, 9))
def test_same_padding_makes_one_position_per_stride(size: int, stride: int, extent: int) -> None:
    head, tail = same_padding(size, stride, extent)
    axis = Axis(input=size, filter=extent, stride=stride, dilation=1, head=head, tail=tail)
    assert axis.output == -(-size // stride)
    assert 0 <= head <= tail <= head + 1


@st.composite
def axes(draw: st.DrawFn) -> Axis:
    filter, dilation = draw(st.integers(1, 4)), draw(st.integers(1, 2))
    extent = (filter - 1) * dilation + 1
    return Axis(
        input=draw(st.integers(extent, extent + 7)),
        filter=filter,
        stride=draw(st.integers(1, 3)),
        dilation=dilation,
        head=draw(st.integers(0, extent - 1)),
        tail=draw(st.integers(0, extent - 1)),
    )


@given(axes(), axes(), st.sampled_from([1, 2, 3]), st.sampled_from(["f4", "f8"]), st.data())
def test_windows_lie_side_by_side(
    height: Axis, width: Axis, channels: int, dtype: str, data: st.DataObject
) -> None:
    window = Window(height=height, width=width)
    image: Array = np.arange(height.input * width.input * channels, dtype=dtype)
    image = image.reshape(height.input, width.input, channels)
    first = data.draw(st.integers(0, height.output - 1))
    part = slice(first, data.draw(st.integers(first + 1, height.output)))
    count = part.stop - part.start
    buffer = np.full(PaddedRows.shape(window, count, channels, phases=1), -1, dtype)
    columns = np.zeros((count, width.output, height.filter * width.filter * channels), dtype)
    rows = PaddedRows(buffer, window, 0.5)
    sequence([*rows.sides(), *rows.rows(image, part), *lay_out(buffer, window, columns)])()
    padded = np.pad(
        image,
        ((height.head, height.tail), (width.head, width.tail), (0, 0)),
        constant_values=0.5,
    )
    for i, j in np.ndindex(count, width.output):
        top, left = (part.start + i) * height.stride, j * width.stride
        seen = padded[top : top + height.extent : height.dilation]
        seen = seen[:, left : left + width.extent : width.dilation]
        np.testing.assert_array_equal(columns[i, j], seen.reshape(-1))


def test_tall_windows_are_laid_out_in_one_call() -> None:
    tall = Axis(input=40, filter=20, stride=1, dilation=1, head=0, tail=0)
    flat = Axis(input=3, filter=2, stride=1, dilation=1, head=0, tail=0)
    window = Window(height=tall, width=flat)
    buffer = np.random.default_rng(1).normal(size=(40, 1, 3, 2)).astype(np.float32)
    columns = np.zeros((21, 2, 80), np.float32)
    calls = lay_out(buffer, window, columns)
    assert len(calls) == 1
    sequence(calls)()
    np.testing.assert_array_equal(columns, windows(buffer, window, 21).reshape(21, 2, 80))


@pytest.mark.parametrize("phases", [1, 2, 3])
def test_phases_sort_the_columns(phases: int) -> None:
    across = Axis(input=10, filter=3, stride=phases, dilation=1, head=1, tail=1)
    down = Axis(input=4, filter=1, stride=1, dilation=1, head=0, tail=0)
    window = Window(height=down, width=across)
    image = np.arange(40, dtype=np.float32).reshape(4, 10, 1) + 1
    buffer = np.full(PaddedRows.shape(window, 4, 1, phases=phases), -1, np.float32)
    rows = PaddedRows(buffer, window, 0)
    sequence([*rows.sides(), *rows.rows(image, slice(0, 4))])()
    padded = np.pad(image, ((0, 0), (1, 1), (0, 0)))
    for x in range(across.padded):
        np.testing.assert_array_equal(buffer[:, x % phases, x // phases], padded[:, x])
