"""Older devices behind the interface of HAL 1.3: questions, preparing, and what is lost."""

from __future__ import annotations

import functools
from typing import Any

import anyio
import pytest
from msgspec.structs import replace

import nnasync as nn
from nnasync import hal
from nnasync._core.versions import Versioned, admit
from nnasync.device import PrepareModelConfig
from nnasync.errors import (
    DeviceUnavailable,
    GeneralFailure,
    InvalidArgument,
    MissedDeadlinePersistent,
    MissedDeadlineTransient,
    ModelError,
    ResourceExhaustedTransient,
)
from nnasync.hal import (
    BufferDesc,
    BufferRole,
    DeviceStatus,
    DeviceType,
    ExecutionPreference,
    Model,
    OperandType,
    OperationType,
    PerformanceInfo,
    Priority,
)
from tests.rigs import HOUR, attempt, until
from tests.versions.rig import (
    Fake10,
    Fake11,
    Fake12,
    Recorded,
    ages,
    errands,
    ring,
)

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.one_loop("Only errands know a loop: they are tested on all of them."),
]
ALL = [Fake10, Fake11, Fake12]
LOW_POWER = ExecutionPreference.LOW_POWER


def multiplier(*, relaxed: bool = False) -> Model:
    builder = nn.ModelBuilder("multiplier", relaxed=relaxed)
    x = builder.input("x", (1, 4))
    builder.output("y", builder.mul(x, x))
    return builder.build()


@pytest.mark.parametrize("kind", [Fake10, Fake11])
async def test_what_early_devices_do_not_say_is_made_up(kind: type[Recorded]) -> None:
    async with errands() as made:
        device = await admit(kind("old", speed=0.5), made)
        assert isinstance(device, Versioned)
        assert (device.name, device.version, device.type) == ("old", "UNKNOWN", DeviceType.OTHER)
        assert device.feature_level == kind.feature_level
        assert await device.get_supported_extensions() == ()
        assert await device.get_number_of_cache_files_needed() == (0, 0)
        capabilities = await device.get_capabilities()
        assert hal.type_performance(capabilities, OperandType.TENSOR_FLOAT32) == PerformanceInfo(
            0.5, 0.5
        )
        assert capabilities.if_performance == PerformanceInfo()
        assert await device.get_status() == DeviceStatus.AVAILABLE


async def test_a_device_of_1_2_says_the_rest() -> None:
    async with errands() as made:
        device = await admit(Fake12("newer"), made)
        assert (device.version, device.type) == ("12", DeviceType.ACCELERATOR)
        assert await device.get_number_of_cache_files_needed() == (1, 0)
        assert (await device.get_capabilities()).while_performance == PerformanceInfo()


@pytest.mark.parametrize(("kind", "count"), [(Fake10, 1), (Fake11, 2), (Fake12, 3)])
async def test_support_is_asked_with_a_slice(kind: type[Recorded], count: int) -> None:
    async with errands() as made:
        fake = kind("old")
        device = await admit(fake, made)
        answers = await device.get_supported_operations(ages())
        assert answers == tuple(index < count for index in range(4))
        asked = [call[1] for call in fake.heard if call[0] == "supported"]
        assert [len(model.main.operations) for model in asked] == [count]


async def test_answers_to_a_slice_are_put_in_their_places() -> None:
    builder = nn.ModelBuilder("mixed")
    x = builder.input("x", (1, 4))
    y = builder.operation(OperationType.MAXIMUM, x, x)
    y = builder.relu(y)
    y = builder.operation(OperationType.ABS, y)
    y = builder.tanh(y)
    builder.output("y", builder.relu(y))
    async with errands() as made:
        device = await admit(Fake10("old", lambda type: type == OperationType.RELU), made)
        answers = await device.get_supported_operations(builder.build())
        assert answers == (False, True, False, False, True)


async def test_a_model_without_a_slice_is_not_asked_about() -> None:
    builder = nn.ModelBuilder("new")
    x = builder.input("x", (1, 4))
    builder.output("y", builder.operation(OperationType.ABS, x))
    async with errands() as made:
        fake = Fake10("old")
        device = await admit(fake, made)
        assert await device.get_supported_operations(builder.build()) == (False,)
        assert [call[0] for call in fake.heard] == ["capabilities"]


async def test_wrong_numbers_of_answers_mean_nothing() -> None:
    async with errands() as made:
        fake = Fake11("old")
        device = await admit(fake, made)
        fake.answers = lambda answers: [*answers, True]
        assert await device.get_supported_operations(ages()) == (False,) * 4
        assert await device.get_supported_operations(multiplier()) == (False,)


async def test_an_illegal_model_is_the_callers_fault() -> None:
    model = multiplier()
    main = hal.Subgraph(model.main.operands, model.main.operations, (), ())
    async with errands() as made:
        device = await admit(Fake10("old"), made)
        with pytest.raises(ModelError):
            await device.get_supported_operations(Model(main))
        with pytest.raises(ModelError):
            await device.prepare_model(Model(main))


async def test_a_device_that_refuses_a_legal_model_has_failed() -> None:
    async with errands() as made:
        fake = Fake10("old")
        device = await admit(fake, made)
        fake.fault = InvalidArgument("no")
        with pytest.raises(GeneralFailure, match="does not take a legal model"):
            await device.get_supported_operations(multiplier())


async def test_each_version_prepares_with_what_it_has() -> None:
    model, token = multiplier(), bytes(32)
    heard = []
    async with errands() as made:
        for fake in (Fake10("a"), Fake11("b"), Fake12("c")):
            device = await admit(fake, made)
            await device.prepare_model(
                model,
                PrepareModelConfig(
                    preference=LOW_POWER,
                    priority=Priority.HIGH,
                    deadline=nn.within(s=60),
                    model_cache=(3,),
                    token=token,
                ),
            )
            heard += [call[2:] for call in fake.heard if call[0] == "prepare"]
    assert heard == [(), (LOW_POWER,), (LOW_POWER, (3,), (), token)]


@pytest.mark.parametrize("kind", ALL)
async def test_a_model_that_the_version_cannot_express_is_not_prepared(kind: Any) -> None:
    async with errands() as made:
        fake = kind("old")
        device = await admit(fake, made)
        with pytest.raises(GeneralFailure, match=r"old is of HAL 1\.\d, which cannot express"):
            await device.prepare_model(ages())
        assert [call[0] for call in fake.heard] == ["capabilities"]


async def test_a_relaxed_model_is_not_relaxed_in_1_0(caplog: pytest.LogCaptureFixture) -> None:
    model = multiplier(relaxed=True)
    relaxed = []
    async with errands() as made:
        for fake in (Fake10("a"), Fake11("b")):
            device = await admit(fake, made)
            for _ in range(2):
                await device.get_supported_operations(model)
                await device.prepare_model(model, PrepareModelConfig(priority=Priority.LOW))
            prepared = [call[1] for call in fake.heard if call[0] == "prepare"]
            relaxed += [each.relax_computation_float32_to_float16 for each in prepared]
    assert relaxed == [False, False, True, True]
    assert sorted(caplog.messages) == [
        "a, of HAL 1.0, loses priorities",
        "a, of HAL 1.0, loses the permission to compute float32 as float16 of 'multiplier'",
        "b, of HAL 1.1, loses priorities",
    ]
    assert {each.levelname for each in caplog.records} == {"WARNING"}


async def test_each_model_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    async with errands() as made:
        device = await admit(Fake10("a"), made)
        for name in ("one", "two", "one"):
            await device.prepare_model(replace(multiplier(relaxed=True), name=name))
    told = [line.rpartition(" of ")[2] for line in caplog.messages]
    assert told == ["'one'", "'two'"]


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize(
    ("fault", "becomes"),
    [
        (MissedDeadlineTransient("late"), GeneralFailure),
        (ResourceExhaustedTransient("full"), GeneralFailure),
        (DeviceUnavailable("off"), DeviceUnavailable),
        (InvalidArgument("no"), InvalidArgument),
        (ZeroDivisionError("oops"), GeneralFailure),
    ],
)
async def test_statuses_that_the_version_does_not_have(
    kind: Any, fault: Exception, becomes: type[nn.NNError]
) -> None:
    async with errands() as made:
        fake = kind("old")
        device = await admit(fake, made)
        fake.fault = fault
        with pytest.raises(becomes) as caught:
            await device.prepare_model(multiplier())
        assert type(caught.value) is becomes
        assert str(fault) in str(caught.value)


async def test_preparing_is_answered_at_the_deadline() -> None:
    class Slow(Fake10):
        async def prepare_model(self, model: Model) -> Any:
            self.heard.append(("prepare", model))
            await nn.Fence()

    async with errands() as made, anyio.create_task_group() as group:
        fake = Slow("slow")
        device = await admit(fake, made)
        config = PrepareModelConfig(deadline=nn.within(**HOUR))
        call = functools.partial(device.prepare_model, multiplier(), config)
        going = await attempt(group, call)
        await until(lambda: len(fake.heard) == 2)
        ring(made)
        assert isinstance(await going.failure(), MissedDeadlineTransient)
        with pytest.raises(MissedDeadlinePersistent):
            await device.prepare_model(multiplier(), PrepareModelConfig(deadline=nn.within(ms=-1)))


async def test_preparing_nothing_is_a_failure() -> None:
    class Empty(Fake10):
        async def prepare_model(self, model: Model) -> Any:
            return None

    async with errands() as made:
        device = await admit(Empty("empty"), made)
        with pytest.raises(GeneralFailure, match="gives none"):
            await device.prepare_model(multiplier())


async def test_caches_are_for_1_2() -> None:
    async with errands() as made:
        for fake in (Fake10("a"), Fake11("b")):
            device = await admit(fake, made)
            with pytest.raises(GeneralFailure, match="has no compilation cache"):
                await device.prepare_model_from_cache(
                    PrepareModelConfig(model_cache=(3,), token=bytes(32))
                )
        fake12 = Fake12("c")
        device = await admit(fake12, made)
        with pytest.raises(GeneralFailure, match="nothing is cached"):
            await device.prepare_model_from_cache(
                PrepareModelConfig(model_cache=(3,), token=bytes(32))
            )
        assert fake12.heard[-1] == ("from_cache", (3,), (), bytes(32))


@pytest.mark.parametrize("kind", ALL)
async def test_there_are_no_buffers(kind: Any) -> None:
    async with errands() as made:
        device = await admit(kind("old"), made)
        prepared = await device.prepare_model(multiplier())
        role = BufferRole(0, 0, 1.0)
        with pytest.raises(GeneralFailure, match="has no driver-managed buffers"):
            await device.allocate(BufferDesc((1, 4)), [prepared], [role], [])
        with pytest.raises(InvalidArgument):
            await device.allocate(BufferDesc((1, 4)), [], [role], [])


async def test_wrong_preferences_and_priorities_are_refused() -> None:
    async with errands() as made:
        device = await admit(Fake10("old"), made)
        for wrong in ({"preference": 7}, {"priority": 7}):
            config: Any = PrepareModelConfig(**wrong)  # type: ignore[arg-type]  # as the test says
            with pytest.raises(InvalidArgument):
                await device.prepare_model(multiplier(), config)


async def test_a_closed_device_is_unavailable() -> None:
    async with errands() as made:
        fake = Fake10("old")
        device = await admit(fake, made)
        await device.close()
        assert fake.closed == 1
        assert await device.get_status() == DeviceStatus.OFFLINE
        with pytest.raises(DeviceUnavailable):
            await device.prepare_model(multiplier())


async def test_cancelling_preparing_cancels_the_device() -> None:
    ended = []

    class Slow(Fake11):
        async def prepare_model(self, model: Model, preference: ExecutionPreference) -> Any:
            try:
                await nn.Fence()
            finally:
                ended.append(True)

    async with errands() as made, anyio.create_task_group() as group:
        device = await admit(Slow("slow"), made)
        going = await attempt(group, lambda: device.prepare_model(multiplier()))
        going.scope.cancel()
        await until(lambda: bool(ended))
