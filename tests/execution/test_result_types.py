"""What type checkers see of results: `mypy --strict` reads this file, as it does all tests."""

from __future__ import annotations

from typing import Any, assert_type

import numpy as np
import pytest

import nnasync as nn
from nnasync.hal import Array, Timing
from tests.rigs import ONES, ROW, both, calculator, compiled, doubler, runtime

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("no_leaks")]


@both
async def test_results_are_arrays(options: nn.Options) -> None:
    async with runtime(options=options) as rt:
        net = await compiled(rt, doubler(), options)
        y = await net(ROW)
        assert_type(y, Array | Any)
        assert_type(y.shape, tuple[Any, ...] | Any)
        with pytest.raises(AttributeError):
            y.no_such_thing  # type: ignore[union-attr]  # noqa: B018  # this is checked
        async with net.burst() as burst:
            assert_type(await burst(ROW), Array | Any)
            assert_type(await burst.state(), dict[str, Array])


@both
async def test_timings_are_beside_the_result(options: nn.Options) -> None:
    async with runtime(options=options) as rt:
        net = await compiled(rt, doubler(), options)
        async with net.burst() as burst:
            for measured in (net.measured, burst.measured):
                found = await measured(ROW)
                assert_type(found.value, Array | Any)
                assert_type(found.timing, Timing)
                y, timing = found
                assert_type(timing, Timing)
                assert y.tolist() == (2 * ROW).tolist()


async def test_several_outputs_can_be_told_apart() -> None:
    async with runtime() as rt:
        net = await rt.compile(calculator())
        y = await net(ROW, ONES)
        assert isinstance(y, tuple)
        total, product = y
        assert {*net.as_dict(y)} == {port.name for port in net.outputs}
        assert total.tolist() == (ROW + 1).tolist()
        assert product.tolist() == ROW.tolist()
        assert isinstance(total, np.ndarray)


async def test_an_application_may_say_what_a_call_gives() -> None:
    async with runtime() as rt:
        one: nn.Net[Array] = await rt.compile(doubler())
        assert_type(await one(ROW), Array)
        assert_type((await one.measured(ROW)).value, Array)
        two: nn.Net[tuple[Array, Array]] = await rt.compile(calculator())
        total, product = await two(ROW, ONES)
        assert_type(total, Array)
        async with two.burst() as burst:
            first, second = await burst(ROW, ONES)
            assert_type(second, Array)
        assert first.tolist() == total.tolist()
        assert second.tolist() == product.tolist()
        async with rt.compile(doubler()) as unsaid:
            assert_type(await unsaid(ROW), Array | Any)
