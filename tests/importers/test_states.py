"""Outputs of a loaded file that are the next values of its inputs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import nnasync as nn
from nnasync.errors import InvalidArgument, ModelError
from tests.importers.tflite_files import Op, floats, tflite_file


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The sum of two inputs, and a part of it."""
    ops = [Op("ADD", (0, 1), (2,), "AddOptions"), Op("TANH", (2,), (3,))]
    content = tflite_file([floats(1, 2)] * 4, ops, [0, 1], [3, 2])
    found = tmp_path / "sum.tflite"
    found.write_bytes(content)
    return found


@pytest.mark.anyio
async def test_a_burst_carries_the_state(path: Path) -> None:
    model = nn.load(path, state={"t2": "t1"})
    async with nn.open_runtime() as runtime:
        net = await runtime.compile(model, devices=["nnasync-reference"])
        assert [port.name for port in (*net.inputs, *net.outputs)] == ["t0", "t3"]
        one = np.ones((1, 2), np.float32)
        async with net.burst() as burst:
            got = [await burst(one) for _ in range(3)]
        for times, result in enumerate(got, 1):
            np.testing.assert_allclose(result, np.tanh(one * times), rtol=1e-5)
        await net.close()


def test_names_that_are_not_there_and_pairs_that_differ(path: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="no output 't9' with an input 't1'; inputs are t0"):
        nn.load(path, state={"t9": "t1"})
    other = tmp_path / "other.tflite"
    ops = [Op("RESHAPE", (0,), (1,), "ReshapeOptions", {"NewShape": (2, 1)})]
    other.write_bytes(tflite_file([floats(1, 2), floats(2, 1)], ops, [0], [1]))
    with pytest.raises(ModelError):
        nn.load(other, state={"t1": "t0"})


def test_a_state_is_a_guess_or_names(path: Path) -> None:
    with pytest.raises(InvalidArgument, match="neither .guess. nor names"):
        nn.load(path, state="all")  # type: ignore[arg-type]  # no such word
