"""The example of a HAL 1.0 driver: right, and its own cache worth what it is believed."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import nnasync as nn

pytestmark = [pytest.mark.anyio, pytest.mark.one_loop("It blocks no loop and knows none.")]
PATH = Path(__file__).resolve().parents[2] / "examples" / "hal_1_0_driver.py"


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("hal_1_0_driver", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def dense(activation: str = "relu6") -> nn.Model:
    """All three operations of the driver, with an activation."""
    numbers = np.random.default_rng(3)
    builder = nn.ModelBuilder("dense")
    x = builder.input("x", (2, 3, 4))
    weights = numbers.standard_normal((5, 12)).astype(np.float32)
    y = builder.fully_connected(x, weights, np.ones(5, np.float32), activation=activation)
    y = builder.add(y, numbers.standard_normal((2, 5)).astype(np.float32), activation=activation)
    builder.output("y", builder.mul(y, 0.5))
    return builder.build()


async def run(device: Any, model: nn.Model, x: Any) -> Any:
    async with nn.open_runtime(devices=[device]) as runtime:
        net = await runtime.compile(model)
        return await net(x)


@pytest.mark.parametrize("activation", ["none", "relu", "relu1", "relu6"])
async def test_it_agrees_with_the_reference(
    example: ModuleType, tmp_path: Path, activation: str
) -> None:
    model = dense(activation)
    x = np.random.default_rng(4).standard_normal((2, 3, 4)).astype(np.float32)
    given = await run(example.Driver(tmp_path), model, x)
    expected = await run("nnasync-reference", model, x)
    np.testing.assert_allclose(given, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("damage", ["none", "flip", "cut", "gone", "key"])
async def test_a_modified_cache_is_not_believed(
    example: ModuleType, tmp_path: Path, damage: str
) -> None:
    x = np.ones((2, 3, 4), np.float32)
    first = await run(example.Driver(tmp_path), dense(), x)
    blobs, key = (tmp_path / f"hal_1_0_driver.{kind}" for kind in ("blobs", "key"))
    assert key.stat().st_mode & 0o077 == 0
    content = bytearray(blobs.read_bytes())
    blobs.unlink()
    if damage == "flip":
        content[-9] ^= 1
    if damage == "cut":
        del content[-8:]
    if damage != "gone":
        blobs.write_bytes(content)
    if damage == "key":
        key.write_bytes(bytes(32))
    driver = example.Driver(tmp_path)
    assert (driver.weights.reason == "") == (damage == "none")
    assert np.array_equal(await run(driver, dense(), x), first)
    hits, misses = driver.weights.hits, driver.weights.misses
    assert (hits, misses) == ((1, 0) if damage == "none" else (0, 1))


async def test_what_it_has_not_is_left_to_others(example: ModuleType, tmp_path: Path) -> None:
    model = example.network()
    x = np.ones((1, 64), np.float32)
    async with nn.open_runtime(devices=[example.Driver(tmp_path), example.Rest()]) as runtime:
        net = await runtime.compile(model)
        owners = [part.device for part in net.report().partitions]
        assert owners == ["hal-1.0-example", "reference-rest", "hal-1.0-example"]
        given = await net(x)
    np.testing.assert_allclose(given, await run("nnasync-reference", model, x), rtol=1e-5)
