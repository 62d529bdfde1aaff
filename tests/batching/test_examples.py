"""Several examples for a network that takes one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nnasync as nn
from nnasync.batching import one_by_one
from nnasync.errors import InvalidArgument

pytestmark = pytest.mark.anyio


def sums(rows: int = 1) -> nn.Model:
    builder = nn.ModelBuilder("sums")
    x, y = builder.input("x", (rows, 4)), builder.input("y", (rows, 4))
    builder.output("sum", builder.add(x, y))
    builder.output("product", builder.mul(x, y))
    return builder.build()


async def test_each_example_has_its_answer() -> None:
    x = np.arange(44, dtype=np.float32).reshape(11, 4)
    async with nn.open_runtime(devices=["nnasync-reference"]) as runtime:
        net = await runtime.compile(sums())
        total, product = await one_by_one(net, x, x + 1, at_once=3)
        assert total.tolist() == (2 * x + 1).tolist()
        assert product.tolist() == (x * (x + 1)).tolist()
        total, _ = await one_by_one(net, {"x": x[:1], "y": x[:1]})
        assert total.tolist() == (2 * x[:1]).tolist()


@pytest.mark.parametrize(
    ("x", "y", "told"),
    [
        (np.zeros((2, 4)), np.zeros((3, 4)), r"\[2, 3\] examples"),
        (np.zeros((0, 4)), np.zeros((0, 4)), r"\[0\] examples"),
        (np.zeros((2, 5)), np.zeros((2, 4)), r"'x' has shape \[2, 5\], should be \['n', 4\]"),
        (np.zeros(4), np.zeros(4), r"should be \['n', 4\]"),
    ],
)
async def test_what_does_not_fit_is_refused(x: Any, y: Any, told: str) -> None:
    async with nn.open_runtime(devices=["nnasync-reference"]) as runtime:
        net = await runtime.compile(sums())
        with pytest.raises(InvalidArgument, match=told):
            await one_by_one(net, x.astype(np.float32), y.astype(np.float32))


async def test_a_network_of_more_than_one_example_is_refused() -> None:
    async with nn.open_runtime(devices=["nnasync-reference"]) as runtime:
        net = await runtime.compile(sums(rows=2))
        with pytest.raises(InvalidArgument, match="takes one example"):
            await one_by_one(net, np.zeros((4, 4)), np.zeros((4, 4)))


async def test_the_first_failure_is_raised_by_itself() -> None:
    x = np.zeros((20, 4), np.float32)
    async with nn.open_runtime(devices=["nnasync-reference"]) as runtime:
        net = await runtime.compile(sums())
        with pytest.raises(nn.MissedDeadline):
            await one_by_one(net, x, x, deadline=nn.within(ms=0))
        with pytest.raises(InvalidArgument, match="at_once"):
            await one_by_one(net, x, x, at_once=0)


async def test_several_examples_in_one_call_are_told_how() -> None:
    x = np.zeros((20, 4), np.float32)
    async with nn.open_runtime(devices=["nnasync-reference"]) as runtime:
        net = await runtime.compile(sums())
        with pytest.raises(InvalidArgument, match="one_by_one"):
            await net(x, x)
