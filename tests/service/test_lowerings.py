"""A device behind a service knows the lowerings of its engine, and they compete."""

from __future__ import annotations

import pytest

import nnasync as nn
from nnasync._core.drivers.null import NullEngine
from nnasync.device import Lowering, LoweringDevice, PrepareModelConfig
from nnasync.errors import InvalidArgument
from nnasync.hal import ExecutionPreference
from tests import rigs
from tests.compilation.rig import FakeEngine, ManualClock, way
from tests.rigs import REFERENCE
from tests.service.rig import Slot, served

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.one_loop,
]

FAST = ExecutionPreference.FAST_SINGLE_ANSWER


def engine() -> FakeEngine:
    """Two lowerings, the first of which is wrong."""
    return FakeEngine("engine", ManualClock(), way("quick", error=0.5), way("careful"))


async def test_they_are_told_and_prepared() -> None:
    fake = engine()
    async with served(fake) as service:
        device = service.device
        assert isinstance(device, LoweringDevice)
        quick, careful = await device.lowerings(rigs.doubler(), FAST)
        assert (quick.name, careful.name) == ("quick", "careful")
        prepared = await device.prepare_model(rigs.doubler(), PrepareModelConfig(lowering=careful))
        slot = Slot()
        await prepared.execute(slot.request)
        assert slot.y.tolist() == (2 * rigs.ROW).tolist()
        assert fake.compiled == ["careful*1"]
        await prepared.close()


async def test_a_device_with_one_way_has_none_and_takes_none() -> None:
    async with served(NullEngine()) as service:
        assert await service.device.lowerings(rigs.doubler(), FAST) == ()
        with pytest.raises(InvalidArgument, match="one way"):
            await service.device.prepare_model(
                rigs.doubler(), PrepareModelConfig(lowering=Lowering("f32"))
            )


@pytest.mark.parametrize("wrong", [Lowering("other"), Lowering("careful", threads=1 << 40)])
async def test_what_is_not_offered_is_refused(wrong: Lowering) -> None:
    fake = engine()
    async with served(fake) as service:
        with pytest.raises(InvalidArgument, match="quick with 1 threads, careful"):
            await service.device.prepare_model(rigs.doubler(), PrepareModelConfig(lowering=wrong))
        assert fake.compiled == []


async def test_they_compete_and_a_pin_names_the_winner() -> None:
    fake = engine()
    options = nn.Options(competition_budget_ms=50)
    async with (
        served(fake) as service,
        nn.open_runtime(devices=[service.device, REFERENCE], options=options) as rt,
    ):
        net = await rt.compile(rigs.doubler(), devices=["engine"])
        report = net.report()
        lines = {line.lowering: line for line in report.candidates}
        assert lines["careful, 1 thread"].verdict == "chosen"
        assert lines["careful, 1 thread"].median_us is not None
        assert lines["quick, 1 thread"].verdict == "disagrees with the reference"
        assert (await net(rigs.ROW)).tolist() == (2 * rigs.ROW).tolist()
        fake.compiled.clear()
        again = await rt.compile(
            rigs.doubler(), devices=["engine"], options=nn.CompileOptions(pin=report.pin)
        )
        assert again.report().pin == report.pin
        assert fake.compiled == ["careful*1"]
        await net.close()
        await again.close()
