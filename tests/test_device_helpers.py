"""What devices and prepared models take from their helpers: all of the contract, unchanged."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from nnasync._core.device_helpers import (
    Answers,
    ForwardingDevice,
    ForwardingLoweringDevice,
    KnownDevice,
    PlainExecutions,
    begun_at,
)
from nnasync.device import Device, LoweringDevice, PreparedModel
from nnasync.errors import GeneralFailure
from nnasync.hal import (
    DEFAULT_CONFIG,
    Capabilities,
    DeviceType,
    ExecutionConfig,
    ExecutionResult,
    Extension,
    HalVersion,
    PerformanceInfo,
    Request,
    Timing,
)

pytestmark = [pytest.mark.anyio, pytest.mark.one_loop("Nothing here waits.")]

ONE = PerformanceInfo(1.0, 1.0)
ANSWERS = Answers(
    "one",
    "2",
    DeviceType.GPU,
    HalVersion.V1_3,
    Capabilities(ONE, ONE, (), ONE, ONE),
    (Extension("a.b"),),
    (3, 4),
)


def members(contract: type[Any]) -> list[str]:
    """The names that a protocol asks for."""
    return [name for name in dir(contract) if not name.startswith("_")]


def methods(contract: type[Any]) -> list[str]:
    return [name for name in members(contract) if callable(getattr(contract, name))]


class Inner:
    """A device whose answers tell what it was asked."""

    def __getattr__(self, name: str) -> Any:
        if name not in methods(LoweringDevice):
            return f"its {name}"

        async def answer(*arguments: Any, **options: Any) -> Any:
            if "fails" in arguments:
                raise GeneralFailure(f"{name} failed")
            return name, arguments, options

        return answer


@pytest.mark.parametrize(
    ("make", "contract"),
    [(ForwardingDevice, Device), (ForwardingLoweringDevice, LoweringDevice)],
)
async def test_all_of_the_contract_is_passed_on(
    make: Callable[[Any], Any], contract: type[Any]
) -> None:
    device = make(Inner())
    for name in members(contract):
        if name not in methods(contract):
            assert getattr(device, name) == f"its {name}"
            continue
        answer = await getattr(device, name)(1, "two", three=3)
        assert answer == (name, (1, "two"), {"three": 3})
        with pytest.raises(GeneralFailure, match=f"{name} failed"):
            await getattr(device, name)("fails")


def test_only_one_that_knows_several_ways_says_so() -> None:
    inner: Any = Inner()
    assert not isinstance(ForwardingDevice(inner), LoweringDevice)
    assert isinstance(ForwardingLoweringDevice(inner), LoweringDevice)


def test_what_is_passed_on_has_the_signature_of_the_contract() -> None:
    assert inspect.signature(ForwardingDevice.allocate) == inspect.signature(Device.allocate)
    assert ForwardingDevice.allocate.__doc__ == Device.allocate.__doc__


async def test_a_subclass_changes_what_it_wants() -> None:
    class Renamed(ForwardingDevice):
        @property
        def name(self) -> str:
            return "another"

        async def close(self) -> None:
            """It is not ours to close."""

    inner: Any = Inner()
    device = Renamed(inner)
    assert (device.name, device.version) == ("another", "its version")
    await device.close()
    status: Any = await device.get_status()
    assert status == ("get_status", (), {})


async def test_a_known_device_gives_its_answers() -> None:
    device = KnownDevice(ANSWERS)
    assert (device.name, device.version, device.type) == ("one", "2", DeviceType.GPU)
    assert device.feature_level == HalVersion.V1_3
    assert await device.get_capabilities() is ANSWERS.capabilities
    assert await device.get_supported_extensions() == (Extension("a.b"),)
    assert await device.get_number_of_cache_files_needed() == (3, 4)


def test_what_is_known_of_a_device_is_all_that_can_be_asked_without_an_argument() -> None:
    """But for its status, which changes, and closing, which is no question."""
    questions = {name for name in members(Device) if name not in methods(Device)}
    for name in methods(Device):
        if len(inspect.signature(getattr(Device, name)).parameters) == 1:
            questions.add(name)
    questions = questions - {"get_status", "close"} | {"caches_late"}  # which few devices have
    assert {name for name in vars(KnownDevice) if not name.startswith("_")} == questions


class Executing(PlainExecutions):
    """Notes how it is asked."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    async def _execute(
        self, request: Request, config: ExecutionConfig, *, at_once: bool
    ) -> ExecutionResult:
        self.asked.append((request, config, at_once))
        return ExecutionResult(timing=Timing(1, 2))


@pytest.mark.parametrize(("name", "at_once"), [("execute", False), ("execute_synchronously", True)])
async def test_both_plain_executions_are_one(name: str, at_once: bool) -> None:
    prepared, request, config = Executing(), Request((), (), ()), ExecutionConfig(deadline_ns=7)
    execute = getattr(prepared, name)
    assert inspect.signature(getattr(PlainExecutions, name)) == inspect.signature(
        getattr(PreparedModel, name)
    )
    await execute(request)
    result = await execute(request, config)
    assert result.timing == Timing(1, 2)
    assert prepared.asked == [(request, DEFAULT_CONFIG, at_once), (request, config, at_once)]


def test_a_duration_becomes_a_deadline_when_it_begins() -> None:
    config = ExecutionConfig(True, 90, 5, 30)
    assert begun_at(config, 50) == ExecutionConfig(True, 80, 5)
    assert begun_at(config, 70) == ExecutionConfig(True, 90, 5)
    assert begun_at(DEFAULT_CONFIG, 70) is DEFAULT_CONFIG
