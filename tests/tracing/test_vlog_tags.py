"""What each tag of VLOG tells of: the lines that docs/tracing.md promises."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import anyio
import numpy as np
import pytest

import nnasync as nn
from nnasync._core.drivers.cpu import ReferenceEngine
from nnasync.hal import ExecutionPreference, OperationType
from nnasync.kernels import Tensor
from nnasync.memory import Pool
from nnasync.tracing import vlog
from nnasync.tracing.verbose import TAGS
from tests import rigs

pytestmark = pytest.mark.anyio


@pytest.fixture
def lines(request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture) -> Iterator[list[str]]:
    """What is told under the tag that the test names, and nothing else."""
    tag = request.param
    vlog.select(tag)
    found: list[str] = []

    class Heard(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            assert record.name == f"nnasync.vlog.{tag}"
            found.append(record.getMessage())

    handler = Heard()
    logging.getLogger("nnasync.vlog").addHandler(handler)
    yield found
    logging.getLogger("nnasync.vlog").removeHandler(handler)
    vlog.select("")


def of(tag: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("lines", [tag], indirect=True)


@of("model")
async def test_models(lines: list[str], tmp_path: Path) -> None:
    nn.save(rigs.doubler(), tmp_path / "doubler.nnm")
    assert lines == ["built doubler: 1 operations"]
    nn.load(tmp_path / "doubler.nnm")
    path = tmp_path / "doubler.nnm"
    assert lines[1:] == [f"loaded {path}: 1 operations, 3 operands, 0 referenced subgraphs"]
    async with rigs.runtime() as runtime:
        (await runtime.compile(path)).close()
    assert "compile doubler" in lines


@of("compilation")
async def test_compilations(lines: list[str], tmp_path: Path) -> None:
    for wanted in ("no entry", "hit"):
        lines.clear()
        async with rigs.runtime("null", rigs.REFERENCE) as runtime:
            (
                await runtime.compile(rigs.doubler(), cache_dir=tmp_path, devices=[rigs.REFERENCE])
            ).close()
        assert "doubler: nnasync-reference, whole model: chosen" in lines
        assert any(
            line.startswith("doubler: nnasync-reference runs 1 operations: ") for line in lines
        )
        (cache,) = (line for line in lines if line.startswith("doubler: cache: "))
        assert wanted in cache


def reshaped() -> nn.Model:
    """The shape of the output is an input."""
    builder = nn.ModelBuilder("reshaped")
    x = builder.input("x", rigs.SHAPE)
    shape = builder.input("shape", (2,), type=nn.OperandType.TENSOR_INT32)
    unknown = Tensor(type=nn.OperandType.TENSOR_FLOAT32, shape=(0, 0))
    builder.output("y", builder.operation(OperationType.RESHAPE, x, shape, output=unknown))
    return builder.build()


@of("cpuexe")
async def test_the_reference(lines: list[str]) -> None:
    engine = ReferenceEngine()
    engine.compile(rigs.doubler(), ExecutionPreference.FAST_SINGLE_ANSWER)
    (line,) = lines
    assert line.startswith("doubler: 1 operations in a fixed order, ")
    lines.clear()
    async with rigs.runtime() as runtime:
        net = await runtime.compile(reshaped())
        assert lines == ["reshaped: operations are run as they come up"]
        result = await net(rigs.ROW, np.array([2, 2], np.int32))
        assert result.shape == (2, 2)
    assert lines[1:] == ["operation 0 (RESHAPE)"]


@of("manager")
async def test_devices_and_phases(lines: list[str]) -> None:
    async with rigs.runtime("null", rigs.REFERENCE) as runtime:
        found = [line for line in lines if line.startswith("found ")]
        assert [line.split()[1] for line in found] == ["null", rigs.REFERENCE]
        assert all(line.endswith("HAL 1.3") for line in found)
        (await runtime.compile(rigs.doubler())).close()
    assert any(line.startswith("[NN_LR_PC]doubler ") for line in lines)


@of("driver")
async def test_drivers(lines: list[str]) -> None:
    async with rigs.runtime() as runtime:
        await runtime.devices[0].prepare_model(rigs.doubler())
        assert lines == ["nnasync-reference: prepares doubler"]
        (await runtime.compile(rigs.doubler())).close()
    assert lines[1:] == ["nnasync-reference: compiles doubler as it does"]


@of("memory")
async def test_pools(lines: list[str]) -> None:
    Pool.allocate(300).close()
    assert lines == ["mapped <ashmem pool of 300 bytes> from offset 0"]
    await anyio.lowlevel.checkpoint()


@of("execution")
async def test_executions(lines: list[str]) -> None:
    async with rigs.runtime(options=rigs.POOL) as runtime:
        net = await runtime.compile(rigs.doubler())
        lines.clear()
        await net(rigs.ROW)
    told = [line.rpartition("): ")[2].split(",")[0].split()[0] for line in lines]
    assert sorted(told) == ["queued", "ran", "starts"]


def test_every_tag_is_tried_here() -> None:
    text = Path(__file__).read_text(encoding="utf-8")
    assert [tag for tag in TAGS if f'@of("{tag}")' not in text] == []
