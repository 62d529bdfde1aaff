"""Executions on a device behind TCP."""

from __future__ import annotations

import pytest

import nnasync as nn
from tests import rigs
from tests.network.distance import distant
from tests.service.rig import Slot

pytestmark = pytest.mark.anyio


async def test_values_go_there_and_come_back() -> None:
    async with distant() as there:
        prepared, slot = await there.device.prepare_model(rigs.doubler()), Slot()
        for row in (rigs.ROW, rigs.ONES):
            slot.x[...] = row
            await prepared.execute(slot.request)
            assert slot.y.tolist() == (2 * row).tolist()
        await prepared.close()


async def test_a_runtime_uses_it_as_any_device() -> None:
    async with distant() as there, rigs.runtime(there.device) as runtime:
        net = await runtime.compile(rigs.calculator())
        total, product = await net(rigs.ROW, rigs.ONES)
        assert total.tolist() == (rigs.ROW + 1).tolist()
        assert product.tolist() == rigs.ROW.tolist()
        assert {part.device for part in net.report().partitions} == {rigs.REFERENCE}


async def test_errors_come_out_as_what_they_were() -> None:
    async with distant() as there:
        prepared, slot = await there.device.prepare_model(rigs.doubler()), Slot()
        with pytest.raises(nn.errors.InvalidArgument, match="inputs, the model has 1"):
            await prepared.execute(nn.hal.Request((), slot.request.outputs, slot.request.pools))
