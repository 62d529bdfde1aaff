"""Weights beside an ONNX file belong to it: what is compiled is told apart by them, too."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
import pytest

from nnasync._core.importers import files_beside as module
from nnasync._core.importers.files_beside import files_beside
from nnasync._core.runtime import compile_request
from nnasync._core.runtime.compile_request import ModelSource
from nnasync.errors import ModelError
from tests.importers.onnx.files import FLOAT, message, node, written
from tests.rigs import begun_in_a_thread, runtime

PORTS = [("x", FLOAT, (1, 2))], [("y", FLOAT, (1, 2))]
WEIGHTS = np.array([[1, 2], [3, 4]], np.float32)


def product(folder: Path, location: str = "weights.bin", name: str = "w") -> Path:
    """A product with weights in another file."""
    model = message([node("MatMul", ["x", name], ["y"])], *PORTS, {name: WEIGHTS})
    (tensor,) = model.graph.initializer
    tensor.ClearField("raw_data")
    tensor.data_location = 1
    tensor.external_data.add(key="location", value=location)
    return written(folder, model)


def weigh(path: Path, factor: int) -> None:
    """Write the weights."""
    (path.parent / "weights.bin").write_bytes((factor * WEIGHTS).tobytes())


@pytest.mark.parametrize("piece", [3, 1 << 19])
@pytest.mark.parametrize("is_read", [False, True])
def test_weights_that_are_beside_a_file(
    piece: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_read: bool
) -> None:
    monkeypatch.setattr(module, "_PIECE_BYTES", piece)

    def found(path: Path) -> list[str]:
        content = path.read_bytes() if is_read else None
        return [Path(each).name for each in files_beside(path, content)]

    path = product(tmp_path)
    assert found(path) == [], "it is missing, which is told when it is loaded"
    weigh(path, 1)
    assert found(path) == ["weights.bin"]
    for elsewhere in ("../weights.bin", str(tmp_path / "weights.bin"), ""):
        assert found(product(tmp_path, elsewhere)) == []
    path.write_bytes(path.read_bytes()[:-9] + b"location")
    assert found(path) == [], "it is broken"
    assert found(tmp_path / "weights.bin") == []


@pytest.mark.parametrize("begin", [None, begun_in_a_thread])
@pytest.mark.parametrize("piece", [16, 1 << 19])
def test_weights_that_are_changed_are_another_model(
    begin: compile_request.Begin | None,
    piece: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compile_request, "_PIECE_BYTES", piece)
    path = product(tmp_path)
    weigh(path, 1)
    source = ModelSource.of(path)
    digest, load, whole = source.digest(begin), source.source(), source.whole()
    assert callable(load)
    assert whole is not None
    weigh(path, 2)
    for each in (whole, load):
        with pytest.raises(ModelError, match=r"or one with its weights, was changed"):
            each()
    assert ModelSource.of(path).digest(begin) != digest
    weigh(path, 1)  # Another file with the same bytes is no change.
    assert ModelSource.of(path).digest(None if begin else begun_in_a_thread) == digest
    load()
    whole()


@pytest.mark.anyio
@pytest.mark.parametrize("is_cached", [False, True])
async def test_a_network_has_the_weights_that_are_there(tmp_path: Path, *, is_cached: bool) -> None:
    cache = tmp_path / "cache" if is_cached else None
    path, x = product(tmp_path), np.ones((1, 2), np.float32)
    async with runtime() as rt, contextlib.AsyncExitStack() as nets:
        for factor in (1, 2):
            weigh(path, factor)
            net = await nets.enter_async_context(rt.compile(path, cache_dir=cache))
            assert (await net(x)).tolist() == [[4 * factor, 6 * factor]]
