"""What a device says of itself: asked once, checked, and kept."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

import nnasync as nn
from nnasync import hal
from nnasync._core.drivers.null import NullEngine
from nnasync._core.versions import Answers, Discovered, admit, examine
from nnasync._core.versions.device import Versioned
from nnasync.errors import DeviceUnavailable, GeneralFailure, MissedDeadlineTransient
from nnasync.fences import Fence
from nnasync.hal import (
    Capabilities10,
    Capabilities12,
    DeviceType,
    Extension,
    HalVersion,
    OperandPerformance,
    OperandType,
    PerformanceInfo,
)
from tests.versions.rig import Fake10, Fake11, Fake12, Fake13, errands

pytestmark = [pytest.mark.anyio, pytest.mark.one_loop("A question is a plain coroutine.")]
ONE = PerformanceInfo(1.0, 1.0)


def capabilities12(*entries: tuple[int, PerformanceInfo]) -> Capabilities12:
    table = tuple(OperandPerformance(type, info) for type, info in entries)  # type: ignore[arg-type]
    return Capabilities12(ONE, ONE, table)


def telling(**answers: Any) -> Fake12:
    """A device of HAL 1.2 that says such things."""
    fake = Fake12("odd")
    for name, value in answers.items():
        if name in ("version", "type", "feature_level", "name"):
            setattr(fake, name, value)
            continue

        async def answer(value: Any = value) -> Any:
            if isinstance(value, Exception):
                raise value
            return value

        setattr(fake, name, answer)
    return fake


def dear(info: PerformanceInfo) -> Capabilities12:
    return capabilities12((OperandType.TENSOR_FLOAT32, info))


FLOAT, INT = OperandType.TENSOR_FLOAT32, OperandType.TENSOR_INT32
FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"name": ""}, "must be a text, not empty"),
    ({"feature_level": 31}, r"has feature level 31; known are 27 \(HAL 1\.0\), 28"),
    ({"get_capabilities": DeviceUnavailable("off")}, "odd cannot say its capabilities: off"),
    ({"get_capabilities": ValueError("x")}, "cannot say its capabilities: ValueError: x"),
    ({"get_capabilities": None}, "states its capabilities as NoneType; HAL 1.2 has Capab"),
    (
        {"get_capabilities": Capabilities10(ONE, ONE)},
        "as Capabilities10; HAL 1.2 has Capabilities12",
    ),
    ({"get_capabilities": dear(PerformanceInfo(0, 1))}, "FLOAT32 say exec_time = 0: it must be"),
    ({"get_capabilities": dear(PerformanceInfo(-1, 1))}, "must be a number above 0"),
    ({"get_capabilities": dear(PerformanceInfo(1, math.nan))}, "power_usage = nan"),
    ({"get_capabilities": capabilities12((INT, ONE), (FLOAT, ONE))}, "not sorted by type"),
    ({"get_capabilities": capabilities12((INT, ONE), (INT, ONE))}, "TENSOR_INT32 comes after TEN"),
    ({"get_capabilities": capabilities12((OperandType.SUBGRAPH, ONE))}, "SUBGRAPH, which has no"),
    ({"get_capabilities": capabilities12((77, ONE))}, "has no figures"),
    ({"get_capabilities": Capabilities12(ONE, None, ())}, "performance_tensor are None"),  # type: ignore[arg-type]
    ({"version": ""}, "says its version is ''"),
    ({"version": 3}, "says its version is 3"),
    ({"type": 7}, "says its type is 7: it must be one of OTHER, CPU"),
    ({"get_supported_extensions": ValueError("x")}, "cannot say its extensions"),
    ({"get_supported_extensions": "none"}, "a tuple of Extension"),
    ({"get_supported_extensions": (Extension("No.Name"),)}, "an extension that cannot be"),
    ({"get_supported_extensions": (Extension("a.b"), Extension("a.b"))}, "an extension twice"),
    ({"get_number_of_cache_files_needed": ValueError("x")}, "cannot say its cache files"),
    ({"get_supported_extensions": MissedDeadlineTransient("y")}, "cannot say its extensions: y"),
    ({"get_number_of_cache_files_needed": (33, 0)}, r"\(33, 0\) cache files: .* from 0 to 32"),
    ({"get_number_of_cache_files_needed": (0, -1)}, "from 0 to 32"),
    ({"get_number_of_cache_files_needed": (0,)}, "two numbers"),
    ({"get_number_of_cache_files_needed": 1}, "two numbers"),
]


@pytest.mark.parametrize(("answers", "fault"), FAULTS)
async def test_a_device_that_says_nonsense_is_told_so(answers: dict[str, Any], fault: str) -> None:
    with pytest.raises(GeneralFailure, match=fault):
        await examine(telling(**answers))


async def test_a_device_that_says_nothing_is_not_waited_for() -> None:
    class Silent(Fake12):
        async def get_supported_extensions(self) -> Any:
            await Fence()

    with pytest.raises(GeneralFailure, match="did not say its extensions within 0.01 s"):
        await examine(Silent("silent"), patience_s=0.01)


async def test_what_lacks_everything_is_a_failure_too() -> None:
    with pytest.raises(GeneralFailure, match="cannot say its name"):
        await examine(object())


@pytest.mark.parametrize("counts", [(0, 0), (32, 32), (1, 0)])
async def test_every_legal_number_of_files_is_taken(counts: tuple[int, int]) -> None:
    answers = await examine(telling(get_number_of_cache_files_needed=counts))
    assert isinstance(answers, Answers)
    assert answers.cache_files == counts


async def test_an_unstated_figure_is_no_fault() -> None:
    """Infinity is what HAL 1.3 says of what nobody stated."""
    answers = await examine(telling(get_capabilities=dear(PerformanceInfo())))
    assert hal.type_performance(answers.capabilities, FLOAT) == PerformanceInfo()


async def test_answers_do_not_change() -> None:
    async with errands() as made:
        fake = Fake13("thirteen")
        device = await admit(fake, made)
        assert isinstance(device, Discovered)
        before = await device.get_capabilities()
        fake.info = PerformanceInfo(9.0, 9.0)
        fake.version, fake.type, fake.cache_files = "14", DeviceType.GPU, (7, 7)
        fake.name = "renamed"
        assert await device.get_capabilities() == before
        assert (device.name, device.version) == ("thirteen", "12")
        assert device.type == DeviceType.ACCELERATOR
        assert await device.get_number_of_cache_files_needed() == (1, 0)
        assert device.feature_level == HalVersion.V1_3


async def test_older_ones_are_asked_once_too() -> None:
    async with errands() as made:
        fake = Fake10("ten")
        device = await admit(fake, made)
        assert isinstance(device, Versioned)
        for _ in range(3):
            await device.get_capabilities()
        assert fake.heard == [("capabilities",)]
        assert await admit(device, made) is device


def failing(kind: Callable[[str], Any]) -> Any:
    fake = kind("failing")

    async def fail() -> Any:
        raise DeviceUnavailable("gone for lunch")

    fake.get_capabilities = fail
    return fake


@pytest.mark.parametrize("kind", [Fake10, Fake11, Fake12, Fake13])
async def test_a_named_device_that_fails_is_an_error(kind: Any) -> None:
    with pytest.raises(GeneralFailure, match="failing cannot say its capabilities: gone for lunch"):
        async with nn.open_runtime(devices=["nnasync-reference", failing(kind)]):
            pass
    async with nn.open_runtime(devices=["nnasync-reference"]) as runtime:
        builder = nn.ModelBuilder()
        builder.output("y", builder.relu(builder.input("x", (1, 4))))
        with pytest.raises(GeneralFailure, match="gone for lunch"):
            await runtime.compile(builder.build(), devices=[failing(kind)])


async def test_a_device_that_was_found_and_fails_is_left_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Odd(NullEngine):
        def __init__(self) -> None:
            super().__init__("odd")
            self.version = ""

    names = ("odd", "nnasync-reference")
    monkeypatch.setattr("nnasync._core.runtime.device_list.default_devices", lambda *_: names)
    monkeypatch.setattr(
        "nnasync._core.runtime.device_list.foreign_devices", lambda *_: {"odd": Odd()}
    )
    async with nn.open_runtime() as runtime:
        assert [device.name for device in runtime.devices] == ["nnasync-reference"]
    assert caplog.messages == [
        "device odd is left out: odd says its version is '': it must be a text"
    ]
