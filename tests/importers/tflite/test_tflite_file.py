"""What a TFLite file says is read once, and as LiteRT reads it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tflite

from nnasync._core.importers.tflite import tflite_file as tflite_file_module
from nnasync._core.importers.tflite.tflite_file import read_file
from nnasync.errors import ModelError
from tests.importers import tflite_files
from tests.importers.tflite_files import (
    G,
    Op,
    Signature,
    T,
    floats,
    graphs_file,
    tflite_file,
    vector,
)

_REPEATS = T("INT32", (1,), np.array([3], np.int32))
_TILE = [floats(2), _REPEATS, floats(6)], [Op("TILE", (0, 1), (2,))], [0], [2]


def with_buffers(monkeypatch: pytest.MonkeyPatch, made: Callable[[Any, Any], int]) -> bytes:
    """A file with a TILE, whose buffers are written by `made`."""
    monkeypatch.setattr(tflite_files, "buffer", made)
    return tflite_file(*_TILE)


def written(b: Any, data: Any, offset: int) -> int:
    where = None if data is None else vector(b, list(data.tobytes()), 1, b.PrependByte)
    tflite.BufferStart(b)
    if where is not None:
        tflite.BufferAddData(b, where)
        tflite.BufferAddOffset(b, offset)
        tflite.BufferAddSize(b, 4)
    return int(tflite.BufferEnd(b))


def test_a_buffer_that_is_inside_and_outside_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    content = with_buffers(monkeypatch, lambda b, data: written(b, data, 16))
    with pytest.raises(ModelError, match="buffer 2: states its bytes and where else they are"):
        read_file(memoryview(content))
    content = with_buffers(monkeypatch, lambda b, data: written(b, data, 1))
    assert read_file(memoryview(content)).graphs[0].tensors[1].length == 4


def test_what_buffer_0_holds_is_no_value(monkeypatch: pytest.MonkeyPatch) -> None:
    filled = np.array([7], np.int32)
    made = lambda b, data: written(b, filled if data is None else data, 0)  # noqa: E731 - short
    tensors = read_file(memoryview(with_buffers(monkeypatch, made))).graphs[0].tensors
    assert [tensor.length for tensor in tensors] == [4, 4, 4]
    unlike = [T("INT32", (1,)), T("INT32", (1,))]
    monkeypatch.setattr(tflite_files, "tensor_table", _first_buffer(tflite_files.tensor_table))
    content = tflite_file(unlike, [Op("NEG", (0,), (1,))], [0], [1])
    assert [tensor.length for tensor in read_file(memoryview(content)).graphs[0].tensors] == [0, 0]


def _first_buffer(table: Callable[..., int]) -> Callable[..., int]:
    return lambda b, index, tensor, number: table(b, index, tensor, 0)


def test_names_of_signatures_are_looked_up_once_each(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = hashed = 0

    class Counted(int):
        def __hash__(self) -> int:
            nonlocal hashed
            hashed += 1
            return int.__hash__(self)

        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return int(self) == other

    count = 60
    names = {f"input {index}": index for index in range(count)}
    graph = G([floats(2)] * (count + 1), [Op("NEG", (0,), (count,))], list(range(count)), [count])
    content = graphs_file([graph], [Signature("serve", 0, names, {"y": count})] * 5)
    read = tflite_file_module._Reader._tensor_indices
    monkeypatch.setattr(
        tflite_file_module._Reader,
        "_tensor_indices",
        lambda *args, **words: tuple(map(Counted, read(*args, **words))),
    )
    signatures = read_file(memoryview(content)).signatures
    assert [len(signature.inputs) for signature in signatures] == [count] * 5
    assert compared <= 5 * (count + 1)
    assert hashed == count + 1, "the sets are made once, and not for each signature"


def test_a_list_that_many_operators_refer_to_is_refused() -> None:
    many = T("INT8", (4000,), scales=(1.0,) * 4000, zero_points=(0,) * 4000)
    ops = [Op("NEG", (0,), (1,))] * 2000
    with pytest.raises(ModelError, match="parts of the file refer to it too often"):
        read_file(memoryview(tflite_file([many, many], ops, [0], [1])))


def test_what_is_said_of_sparsity_must_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    add = tflite.TensorAddIsVariable

    def with_sparsity(b: Any, is_variable: bool) -> None:
        add(b, is_variable)
        b.PrependUint32Slot(6, 0x7FFFFFFF, 0)

    monkeypatch.setattr(tflite, "TensorAddIsVariable", with_sparsity)
    content = tflite_file([floats(2), floats(2)], [Op("NEG", (0,), (1,))], [0], [1])
    with pytest.raises(ModelError, match="tensor 0: "):
        read_file(memoryview(content))
