"""Networks that are compiled again: whatever fails meanwhile, the application goes on."""

from __future__ import annotations

import logging
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from nnasync import errors
from nnasync._core.compilation import CompileSpec
from nnasync._core.compilation.report import Partition, Report
from nnasync._core.runtime import reviving
from nnasync._core.runtime.reviving import Reviver
from nnasync._core.runtime.tasks import Tasks, tasks_of_this_loop
from nnasync.fences import Fence
from tests.rigs import GUARD_S, doubler, until

pytestmark = pytest.mark.anyio

FAILURES = [
    errors.DeviceDied("died again"),
    errors.InvalidArgument("no such model"),
    OSError("the file is gone"),
    RuntimeError("can't start new thread"),
    ExceptionGroup("two", [ValueError("a"), ValueError("b")]),
]


@pytest.fixture(autouse=True)
async def patience(anyio_backend: Any, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """No test waits for ever, or long."""
    monkeypatch.setattr(reviving, "_FIRST_PAUSE_S", 0.0)
    with anyio.fail_after(GUARD_S):
        yield


class Service:
    """An isolated device, as a reviver sees it; one that `is_away` is awaited in vain."""

    def __init__(self, name: str = "isolated") -> None:
        self.name = name
        self.lost = Fence()
        self.connections = 0
        self.is_away = False
        self.may_stay_away = True

    async def connected(self) -> None:
        self.connections += 1
        while self.is_away:
            await anyio.lowlevel.checkpoint()

    def die(self) -> None:
        """End this connection; the next one is there at once."""
        old, self.lost = self.lost, Fence()
        old.signal()


class Prepared:
    """What a compilation made; `close` may fail."""

    closing_error: Exception | None = None
    closed = False

    async def close(self) -> None:
        self.closed = True
        if self.closing_error is not None:
            raise self.closing_error


class Compiled:
    """A compilation for a device; `later` brings a better plan."""

    def __init__(
        self, later: Callable[[], Awaitable[Any]] | None = None, device: str = "isolated"
    ) -> None:
        self.later = later
        self.device = device
        self.prepared = Prepared()


class Network:
    """A network, as a reviver sees it."""

    def __init__(self) -> None:
        self.taken: list[Any] = []
        self.improved: list[Any] = []
        self.is_open = True
        self.device = "isolated"
        self.model = type("Model", (), {"name": "net"})()

    @property
    def _closed(self) -> bool:
        return not self.is_open

    def report(self) -> Any:
        """One part."""
        return Report((Partition(self.device, (0,), "chosen"),), (), (), False, "", "")

    def _take_over(self, compilation: Any) -> bool:
        """Use another compilation, unless the network is closed."""
        if self.is_open:
            self.taken.append(compilation)
            self.device = compilation.device
        return self.is_open

    def _improved(self, report: Any) -> None:
        """Note the report of a better plan."""
        self.improved.append(report)


def spec_of(*devices: Any) -> Any:
    """What a network was compiled to, as far as a reviver looks."""
    return CompileSpec(source=doubler(), fingerprint=b"", devices=devices)


class Rig:
    """A reviver in the tasks of a runtime."""

    def __init__(self) -> None:
        self.service, self.net = Service(), Network()
        self.services = [self.service]
        self.outcomes: list[Any] = []
        self.asked: list[list[str]] = []
        self.tasks: Tasks = tasks_of_this_loop()

    async def again(self, spec: CompileSpec) -> Any:
        """The next compilation, or error, that the test wants."""
        self.asked.append([device.name for device in spec.devices])
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def __aenter__(self) -> Rig:
        await self.tasks.open()
        reviver: Any = Reviver(self.services, spec_of(*self.services), self.again)
        self.tasks.start(reviver.run, weakref.ref(self.net))
        await anyio.wait_all_tasks_blocked()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.tasks.close()


@pytest.mark.parametrize("failure", FAILURES, ids=lambda error: type(error).__name__)
async def test_a_death_while_the_better_plan_is_made_disturbs_nothing(
    failure: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    async def later() -> Any:
        raise failure.with_traceback(None)

    async with Rig() as rig:
        first, second = Compiled(later), Compiled()
        rig.outcomes += [first, second]
        rig.service.die()
        await until(lambda: rig.net.taken == [first])
        rig.service.die()
        await until(lambda: rig.net.taken == [first, second])
    for report in rig.net.improved:
        assert "stays with the first plan" in report.rejections[0].reason
    assert "stays with its first plan" in caplog.text


@pytest.mark.parametrize("failure", FAILURES, ids=lambda error: type(error).__name__)
async def test_compiling_again_is_tried_again_whatever_it_failed_with(
    failure: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    async with Rig() as rig:
        compiled = Compiled()
        rig.outcomes += [failure.with_traceback(None)] * 3 + [compiled]
        rig.service.die()
        await until(lambda: rig.net.taken == [compiled])
    warned = [each for each in caplog.records if each.levelno == logging.WARNING]
    assert len(warned) == 1, "the same failure is told once"


async def test_what_a_closed_network_cannot_take_is_closed_even_if_that_fails(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with Rig() as rig:
        compiled = Compiled()
        compiled.prepared.closing_error = errors.DeviceDied("died again")
        rig.outcomes.append(compiled)
        rig.net.is_open = False
        rig.service.die()
        await until(lambda: compiled.prepared.closed)
    assert "died again" in caplog.text


async def test_another_device_takes_over_from_one_that_stays_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reviving, "_OTHERS_WAIT_S", 0.0)
    rig = Rig()
    other = Service("other")
    rig.services.append(other)
    rig.service.is_away = True
    async with rig:
        first, second = Compiled(device=other.name), Compiled()
        rig.outcomes += [first, second]
        rig.service.die()
        await until(lambda: rig.net.taken == [first])
        rig.service.is_away = False
        other.die()
        await until(lambda: rig.net.taken == [first, second])
    assert rig.asked == [["other"], ["isolated", "other"]]


@pytest.mark.parametrize("is_far", [True, False], ids=["far", "near"])
async def test_a_device_that_is_soon_there_again_is_waited_for(
    is_far: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reviving, "_OTHERS_WAIT_S", 3600.0 if is_far else 0.0)
    rig = Rig()
    rig.service.may_stay_away = is_far
    rig.services.append(Service("other"))
    rig.service.is_away = True
    async with rig:
        compiled = Compiled()
        rig.outcomes.append(compiled)
        rig.service.die()
        await until(lambda: rig.service.connections > 0)
        rig.service.is_away = False
        await until(lambda: rig.net.taken == [compiled])
    assert rig.asked == [["isolated", "other"]]
