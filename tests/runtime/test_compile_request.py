"""Rare settings of a compilation, and the keywords that they were before."""

from __future__ import annotations

import hashlib
import inspect
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnasync as nn
from nnasync._core import importers
from nnasync._core.compilation import compiling
from nnasync._core.compilation.spec import CompileSpec
from nnasync._core.formats.whole import file_of
from nnasync._core.runtime import compile_request
from nnasync._core.runtime.compile_request import ModelSource, spec_fields, taking_old_keywords
from nnasync.errors import InvalidArgument, ModelError
from nnasync.fences import Fence
from nnasync.memory import Pool
from tests.importers.tflite_files import Op, T, tflite_file
from tests.rigs import ROW, begun_in_a_thread, doubler, runtime

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("no_leaks")]


@taking_old_keywords
def given(*, options: nn.CompileOptions | None = None) -> nn.CompileOptions | None:
    return options


old: Any = given


def test_old_keywords_become_fields() -> None:
    assert given() is None
    with pytest.warns(DeprecationWarning, match=r"CompileOptions\(wait=") as caught:
        assert old(optimise_after=3) == nn.CompileOptions(wait="first")
    assert caught[0].filename == __file__
    with pytest.warns(DeprecationWarning, match="pin="):
        found = old(pin="a", options=nn.CompileOptions(token=bytes(32)))
    assert found == nn.CompileOptions(pin="a", token=bytes(32))
    with pytest.raises(TypeError):
        old(pim="a")


async def test_a_model_is_compiled_with_old_keywords() -> None:
    assert "options" in inspect.signature(nn.Runtime.compile).parameters
    async with runtime() as rt:
        first = await rt.compile(doubler())
        compile: Any = rt.compile
        with pytest.warns(DeprecationWarning, match=r"CompileOptions\(pin=") as caught:
            net = await compile(doubler(), pin=first.report().pin)
        assert caught[0].filename == __file__
        assert (await net(ROW)).tolist() == (2 * ROW).tolist()


async def test_options_are_of_their_type() -> None:
    async with runtime() as rt:
        with pytest.raises(InvalidArgument, match="CompileOptions"):
            await rt.compile(doubler(), options={"pin": "a"})  # type: ignore[arg-type]  # the mistake


async def test_the_older_form_of_the_first_answer_warns() -> None:
    with pytest.warns(DeprecationWarning, match='wait="first"') as caught:
        options = nn.CompileOptions(optimize_after=3)
    assert caught[0].filename == __file__
    assert spec_fields(options)["wait"] == "first"
    assert spec_fields(nn.CompileOptions())["wait"] == compile_request.DEFAULT_WAIT


async def test_what_to_wait_for_is_checked() -> None:
    wrong: Any = "second"
    async with runtime() as rt:
        with pytest.raises(InvalidArgument, match="wait must be 'first' or 'best', got 'second'"):
            await rt.compile(doubler(), options=nn.CompileOptions(wait=wrong))


def saved(path: Path, *operators: str) -> None:
    """A `.tflite` file of these operators that takes the place of the one that is there."""
    ops = [Op(name, (place,), (place + 1,)) for place, name in enumerate(operators)]
    new = path.with_suffix(".new")
    new.write_bytes(tflite_file([T("FLOAT32", (1, 8))] * (len(ops) + 1), ops, [0], [len(ops)]))
    os.replace(new, path)


def test_a_file_that_was_replaced_is_not_loaded_in_place_of_what_was_digested(
    tmp_path: Path,
) -> None:
    path = tmp_path / "net.tflite"
    saved(path, "TANH")
    source = ModelSource.of(path)
    source.digest()
    loads: list[Any] = [source.source(), source.whole()]
    saved(path, "ABS")
    for load in loads:
        with pytest.raises(ModelError, match=r"net\.tflite: the file was changed since"):
            load()
    path.write_bytes(b"half a file")
    with pytest.raises(ModelError, match="was changed since"):
        loads[0]()
    saved(path, "TANH")  # Another file with the same bytes is no change.
    for load in loads:
        assert len(load().main.operations) == 1


async def test_a_network_whose_file_is_replaced_stays_what_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, x = tmp_path / "net.tflite", np.linspace(-1, 1, 8, dtype=np.float32).reshape(1, 8)
    (tmp_path / "cache").mkdir(mode=0o700)
    saved(path, "TANH", "NEG")
    importing = compiling.import_what_compiles

    async def replace_first(spec: CompileSpec) -> None:
        saved(path, "ABS", "NEG")
        await importing(spec)

    options = nn.Options(contest_process=False, background_contest_ms=60_000)
    devices = ["litert-cpu", "nnasync-reference"]
    async with nn.open_runtime(devices=devices, options=options) as rt:
        with monkeypatch.context() as patch:
            patch.setattr(compiling, "import_what_compiles", replace_first)
            first = nn.CompileOptions(wait="first")
            async with rt.compile(path, cache_dir=tmp_path / "cache", options=first) as net:
                before = await net(x)
                assert "was changed since" in str(await net.optimized())
                assert np.array_equal(await net(x), before)
        np.testing.assert_allclose(before, -np.tanh(x), atol=1e-5)
        saved(path, "TANH", "NEG")
        best = nn.CompileOptions(wait="best")
        async with rt.compile(path, cache_dir=tmp_path / "cache", options=best) as net:
            np.testing.assert_allclose(await net(x), before, atol=1e-5)


def test_floats_outside_have_a_digest_that_no_file_has(tmp_path: Path) -> None:
    path, longer = tmp_path / "net.tflite", tmp_path / "longer.tflite"
    saved(path, "TANH")
    longer.write_bytes(path.read_bytes() + b"with floats outside")
    assert ModelSource.of(path, "float").digest() != ModelSource.of(longer).digest()
    assert ModelSource.of(path, "float").digest() != ModelSource.of(path).digest()


@pytest.mark.parametrize("begin", [begun_in_a_thread, lambda *_: None, lambda *_: Fence()])
def test_a_large_file_is_loaded_while_another_thread_digests_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begin: Any
) -> None:
    path = tmp_path / "net.tflite"
    saved(path, "TANH")
    expected = ModelSource.of(path).digest()
    monkeypatch.setattr(compile_request, "_PIECE_BYTES", 16)
    source = ModelSource.of(path)
    # Where no thread begins, nobody waits for one.
    assert source.digest(begin) == expected
    monkeypatch.setattr(
        importers, "load_whole", lambda *_, **__: pytest.fail("it was loaded again")
    )
    whole = source.whole()
    assert whole is not None
    assert len(whole().main.operations) == 1


@pytest.mark.parametrize("piece", [16, 1 << 19])
def test_what_was_digested_is_what_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: int
) -> None:
    path = tmp_path / "net.tflite"
    saved(path, "TANH")
    content, opened = path.read_bytes(), list[str]()
    monkeypatch.setattr(compile_request, "_PIECE_BYTES", piece)
    source = ModelSource.of(path)
    assert source.digest(begun_in_a_thread) == hashlib.sha256(content).digest()
    whole = source.whole()
    assert whole is not None
    monkeypatch.setattr(Pool, "from_file", lambda path: opened.append(str(path)))
    model = whole()
    assert not opened, "the file is not looked at again"
    (pool,) = model.pools
    assert file_of(model, model.main.operations[0]) == content
    assert file_of(model, model.main.operations[0]) is memoryview(pool.view).obj, "no copy"


def test_a_file_that_is_too_large_to_be_read_at_once_is_read_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "net.tflite"
    saved(path, "TANH")
    monkeypatch.setattr(compile_request, "_MOST_BYTES", 16)
    source = ModelSource.of(path)
    assert source.digest(begun_in_a_thread) == hashlib.sha256(path.read_bytes()).digest()
    whole = source.whole()
    assert whole is not None
    assert len(whole().main.operations) == 1


def test_a_large_file_that_is_not_there_raises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compile_request, "_PIECE_BYTES", -1)
    with pytest.raises(OSError, match="none"):
        ModelSource.of(tmp_path / "none.tflite").digest(begun_in_a_thread)
