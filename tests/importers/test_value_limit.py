"""How large values of a file may be: what is stated counts instead of what befits the file."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import nnasync as nn
from nnasync._core import importers
from nnasync._core.formats import value_sizes
from nnasync.cli import main
from nnasync.errors import InvalidArgument, ModelError
from nnasync.experiments import Network, Poisson, Stream, Workload
from nnasync.experiments.networks import measured
from nnasync.experiments.real import run_real
from nnasync.serving import ModelServer
from nnasync.suites import Standing
from nnasync.suites.benchmark import read_model_list
from tests.importers.onnx.files import FLOAT, message, node, written
from tests.importers.tflite_files import Op, floats, integers, tflite_file
from tests.rigs import REFERENCE, SHAPE, doubler, runtime
from tests.serving.rig import QUIET
from tests.suites.benchmark_rig import doubling, rows_of

SIDE = 1 << 14
LARGE_BYTES = SIDE * SIDE * 4
SMALL_BYTES = 16


def nnm(folder: Path) -> Path:
    builder = nn.ModelBuilder()
    builder.output("y", builder.relu(builder.input("x", (SIDE, SIDE))))
    nn.save(builder.build(), folder / "net.nnm")
    return folder / "net.nnm"


def tflite(folder: Path) -> Path:
    tensors = [floats(1, 1, 1, 1), integers(1, SIDE, SIDE, 1), floats(1, SIDE, SIDE, 1)]
    (folder / "net.tflite").write_bytes(
        tflite_file(tensors, [Op("TILE", (0, 1), (2,), "TileOptions")], [0], [2])
    )
    return folder / "net.tflite"


def onnx(folder: Path) -> Path:
    sizes = {"s": np.array([SIDE, SIDE], np.int64)}
    x, y = [("x", FLOAT, (1, 1))], [("y", FLOAT, (SIDE, SIDE))]
    return written(folder, message([node("Expand", ["x", "s"], ["y"])], x, y, sizes))


def small(folder: Path) -> Path:
    nn.save(doubler(), folder / "small.nnm")
    return folder / "small.nnm"


@pytest.mark.parametrize("saved", [nnm, tflite, onnx])
def test_a_large_network_is_loaded_where_that_is_stated(
    saved: Callable[[Path], Path], tmp_path: Path
) -> None:
    path = saved(tmp_path)
    told = (
        f"^{re.escape(str(path))}: .* takes {LARGE_BYTES} bytes.*value_limit_bytes={LARGE_BYTES} "
    )
    loads: list[Callable[..., object]] = [nn.load, nn.describe]
    if importers.has_whole_form(path):
        loads += [importers.load_whole]
        loads += [
            lambda path, form=form, **limit: nn.load(path, form=form, **limit)
            for form in ("translated", "whole")
        ]
    for load in loads:
        with pytest.raises(ModelError, match=told):
            load(path)
        with pytest.raises(ModelError, match=f"a value may take {LARGE_BYTES - 1}:"):
            load(path, value_limit_bytes=LARGE_BYTES - 1)
        load(path, value_limit_bytes=LARGE_BYTES)


@pytest.mark.parametrize("limit", [0, -1, 1.5, "1", True])
def test_what_is_no_limit(limit: Any, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="value_limit_bytes is a number of bytes"):
        nn.load(small(tmp_path), value_limit_bytes=limit)


def test_commands_take_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(small(tmp_path))
    for command in (["run"], ["run", "--cache-dir", str(tmp_path / "c")], ["dump"], ["bench"]):
        assert main([*command, path, "--value-limit-bytes", str(SMALL_BYTES - 1)]) == 1
        assert f"value_limit_bytes={SMALL_BYTES} or more" in capsys.readouterr().err
    assert main(["dump", path, "--value-limit-bytes", str(SMALL_BYTES)]) == 0


@pytest.mark.parametrize("command", [["calibrate", "--quick"], ["suite", "benchmark"]])
def test_commands_that_measure_files_take_it(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, str(small(tmp_path)), "--value-limit-bytes", str(SMALL_BYTES - 1)]) == 1
    told = capsys.readouterr()
    assert f"value_limit_bytes={SMALL_BYTES} or more" in told.out + told.err


@pytest.fixture
def nothing_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """No value befits the size of its file."""
    for name in ("_LEAST_BYTES", "_SHARE"):
        monkeypatch.setattr(value_sizes, name, 0)


@pytest.mark.anyio
@pytest.mark.one_loop("what is measured is the same on all of them")
@pytest.mark.usefixtures("nothing_fits")
async def test_networks_of_a_benchmark_have_it(tmp_path: Path) -> None:
    subject = doubling(tmp_path)
    assert (await rows_of(subject))[REFERENCE].standing is Standing.FAILURE
    for limit, standing in ((SMALL_BYTES - 1, Standing.FAILURE), (SMALL_BYTES, Standing.SUCCESS)):
        limited = msgspec.structs.replace(subject, value_limit_bytes=limit)
        assert (await rows_of(limited))[REFERENCE].standing is standing


def test_lists_of_a_benchmark_state_it(tmp_path: Path) -> None:
    (tmp_path / "list.toml").write_text(
        f'[[models]]\nfile = "{small(tmp_path).name}"\nvalue_limit_bytes = {SMALL_BYTES}\n'
    )
    (subject,) = read_model_list(tmp_path / "list.toml")
    assert subject.value_limit_bytes == SMALL_BYTES


@pytest.mark.anyio
@pytest.mark.one_loop("what is measured is the same on all of them")
@pytest.mark.usefixtures("nothing_fits")
async def test_networks_of_an_experiment_have_it(tmp_path: Path) -> None:
    path = str(small(tmp_path))
    for limit in (None, SMALL_BYTES - 1):
        with pytest.raises(ModelError, match=f"value_limit_bytes={SMALL_BYTES} or more"):
            await measured(path, 1, limit)
        with pytest.raises(ModelError, match=f"value_limit_bytes={SMALL_BYTES} or more"):
            await run_real(requests_of(Network(path, value_limit_bytes=limit)), requests=1)
    network = await measured(path, 1, SMALL_BYTES)
    assert network.value_limit_bytes == SMALL_BYTES
    result = await run_real(requests_of(network), requests=1)
    assert result.streams[0].submitted == 1


def requests_of(network: Network) -> Workload:
    return Workload((Stream(name="net", arrivals=Poisson(1000), cost=network),))


@pytest.mark.anyio
async def test_compile_takes_it_and_built_models_have_no_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_LEAST_BYTES", "_SHARE"):
        monkeypatch.setattr(value_sizes, name, 0)
    path, x = small(tmp_path), np.ones(SHAPE, np.float32)
    async with runtime() as rt:
        with pytest.raises(ModelError, match="value_limit_bytes=16 or more"):
            await rt.compile(path)
        options = nn.CompileOptions(value_limit_bytes=SMALL_BYTES)
        async with rt.compile(path, options=options) as net:
            assert (await net(x) == 2).all()
        async with rt.compile(doubler()) as net:
            assert (await net(x) == 2).all()
        with pytest.raises(InvalidArgument, match="value_limit_bytes"):
            await rt.compile(path, options=nn.CompileOptions(value_limit_bytes=-1))


@pytest.mark.anyio
@pytest.mark.parametrize("kept", ["open", "in the cache", "not at all"])
async def test_a_network_of_the_same_file_does_not_bring_another_limit(
    kept: str, tmp_path: Path
) -> None:
    path, tight = small(tmp_path), nn.CompileOptions(value_limit_bytes=SMALL_BYTES - 1)
    folder = tmp_path / "cache" if kept == "in the cache" else None
    async with runtime() as rt, rt.compile(path, cache_dir=folder) as net:
        if kept != "open":
            await net.aclose()
        with pytest.raises(ModelError, match="value_limit_bytes=16 or more"):
            await rt.compile(path, options=tight, cache_dir=folder)
        async with rt.compile(path, cache_dir=folder) as again:
            assert (await again(np.ones(SHAPE, np.float32)) == 2).all()


@pytest.mark.anyio
@pytest.mark.parametrize("limit", [SMALL_BYTES - 1, SMALL_BYTES])
async def test_settings_of_a_served_model_have_it(limit: int, tmp_path: Path) -> None:
    small(tmp_path).with_suffix(".toml").write_text(f"value_limit_bytes = {limit}\n")
    async with runtime() as rt, ModelServer(rt, folder=tmp_path, options=QUIET) as server:
        (entry,) = server.index()
    if limit < SMALL_BYTES:
        assert entry.state == "UNAVAILABLE"
        assert f"value_limit_bytes={SMALL_BYTES} or more" in entry.reason
    else:
        assert entry.state == "READY"
