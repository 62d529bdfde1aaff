"""A runtime under a policy: by name, as an object, of a third party; good ones and bad ones."""

from __future__ import annotations

import functools
import logging
from pathlib import Path

import anyio
import numpy as np
import pytest

import nnasync as nn
from nnasync.devices import NullEngine
from nnasync.errors import InvalidArgument
from nnasync.scheduler import Policy, SchedulerStatistics, policy_names
from nnasync.scheduler.policies import GROUP, EarliestDeadlineFirst, FirstComeFirstServed
from tests.installing import install, installing
from tests.rigs import REFERENCE, ROW, double, doubler, gated
from tests.workers.test_policies import BAD, Bad

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("no_leaks")]

OPTIONS = nn.Options(cores=2, inline_budget_us=0, competition_budget_ms=0, aging_ms=5)

ACME = """
import os
from pathlib import Path
from nnasync.scheduler.policies import FirstComeFirstServed

class Own(FirstComeFirstServed):
    name = "acme-own"

    def reset(self, servers):
        super().reset(servers)
        (Path(__file__).parent / f"{os.getpid()}.reset").write_text(str(servers))

def unlucky():
    raise ValueError("no luck today")

def number():
    return 7
"""


async def answers(policy: str | Policy | None, calls: int = 24) -> SchedulerStatistics:
    """What a runtime says of itself after calls of all priorities at once."""
    engine = NullEngine(compute=double)
    async with nn.open_runtime(devices=[engine], options=OPTIONS, policy=policy) as rt:
        nets = [await rt.compile(doubler(), priority=each) for each in nn.Priority]
        found = []

        async def call(number: int) -> None:
            found.append(await nets[number % 3](ROW))

        async with anyio.create_task_group() as group:
            for number in range(calls):
                group.start_soon(call, number)
        assert len(found) == calls
        assert all(np.array_equal(each, 2 * ROW) for each in found)
        return rt.statistics().workers.scheduler


@pytest.mark.parametrize("name", [name for name in policy_names() if name != "reservations"])
async def test_each_policy_by_its_name(name: str) -> None:
    found = await answers(name)
    assert (found.policy, found.policy_failure) == (name, "")
    assert found.dispatched == found.submitted + found.requeued
    assert found.submitted >= 24


async def test_an_object_and_the_options() -> None:
    policy = EarliestDeadlineFirst(preempts=False)
    assert (await answers(policy)).policy == "edf-non-preemptive"
    assert (await answers(None)).policy == "default"
    async with nn.open_runtime(devices=[REFERENCE], options=nn.Options(policy="fifo")) as rt:
        assert rt.statistics().workers.scheduler.policy == "fifo"
    both = nn.open_runtime(devices=[REFERENCE], options=nn.Options(policy="fifo"), policy="edf")
    async with both as rt:
        assert rt.statistics().workers.scheduler.policy == "edf"


def note(order: list[nn.Priority], priority: nn.Priority, _: object) -> None:
    order.append(priority)


async def test_calls_are_served_by_arrival() -> None:
    """HIGH that comes behind LOW, on one core, with first come first served."""
    engine = gated()
    options = nn.Options(cores=1, inline_budget_us=0, competition_budget_ms=0)
    order: list[nn.Priority] = []
    async with nn.open_runtime(devices=[engine], options=options, policy="fifo") as rt:
        nets = [await rt.compile(doubler(), priority=each) for each in nn.Priority]
        busy = await nets[0].launch(ROW)
        await engine.when(lambda c: c.waiting == 1)
        launched = [await net.launch(ROW) for net in nets]
        for priority, launch in zip(nn.Priority, launched, strict=True):
            launch.fence.add_callback(functools.partial(note, order, priority))
        engine.gate.open_wide()
        for launch in [busy, *launched]:
            await launch.result()
    assert order == list(nn.Priority)


@pytest.mark.parametrize("kind", BAD)
async def test_no_call_is_lost_to_a_bad_policy(
    kind: type[Bad], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    found = await answers(kind(), calls=60)
    # One that stops what runs is asked for that only where something is queued behind it.
    if kind.name != "stopping":
        assert (found.policy, found.policy_failures) == ("default", 1)
        assert f"policy {kind.name!r}" in found.policy_failure
    assert found.dispatched + found.displaced == found.submitted + found.requeued


@pytest.mark.parametrize(
    ("policy", "text"),
    [
        ("lifo", "there is no policy 'lifo'; there are default, fifo, .*, acme-own"),
        ("acme-unlucky", "'acme-unlucky' cannot be made: ValueError: no luck today"),
        ("acme-number", "int is not a policy"),
        ("acme-gone", "'acme-gone' of .* cannot be loaded from acme:gone: AttributeError"),
        (FirstComeFirstServed, "it is a class, not an object"),
    ],
)
async def test_what_is_no_policy(policy: str, text: str, tmp_path: Path) -> None:
    targets = {"acme-own": "acme:Own", "acme-unlucky": "acme:unlucky"}
    targets |= {"acme-number": "acme:number", "acme-gone": "acme:gone"}
    install(tmp_path, targets, {"acme": ACME}, group=GROUP)
    with installing(tmp_path), pytest.raises(InvalidArgument, match=text):
        nn.open_runtime(policy=policy)


def resets(folder: Path) -> list[str]:
    """For how many servers the policy was reset last, by process."""
    return [path.read_text() for path in folder.glob("*.reset")]


@pytest.mark.one_loop("It starts a process.")
async def test_an_isolated_device_has_the_policy_of_that_name(tmp_path: Path) -> None:
    install(tmp_path, {"acme-own": "acme:Own"}, {"acme": ACME}, group=GROUP)
    with installing(tmp_path):
        async with nn.open_runtime(
            devices=[REFERENCE], isolate=[REFERENCE], options=OPTIONS, policy="acme-own"
        ) as rt:
            net = await rt.compile(doubler())
            assert np.array_equal(await net(ROW), 2 * ROW)
            assert rt.statistics().workers.scheduler.policy == "acme-own"
    assert resets(tmp_path) == ["2", "2"]


@pytest.mark.parametrize("wrong", [None, 3, FirstComeFirstServed()])
async def test_options_have_a_name(wrong: object) -> None:
    with pytest.raises(InvalidArgument, match="policy must be the name of one"):
        nn.Options(policy=wrong)  # type: ignore[arg-type]  # to be refused
