"""What is counted adds up to what was called: calls, launches and bursts, however they end."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import anyio
import anyio.lowlevel
import numpy as np
import pytest

import nnasync as nn
from nnasync._core.clock import Deadline, now_ns, within
from nnasync._core.drivers.null import NullEngine
from nnasync._core.execution.call_now import check_call
from nnasync.errors import InvalidArgument, NNError
from nnasync.fences import Fence
from nnasync.tracing.metrics import render
from nnasync.tracing.tally import Tally, outcome_of
from tests.rigs import (
    HOUR,
    INLINE,
    POOL,
    ROW,
    Attempt,
    ManualWatchdog,
    attempt,
    both,
    compiled,
    double,
    doubler,
    gated,
    late,
    runtime,
    until,
)

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("no_leaks")]

CROWDED = nn.Options(cores=1, inline_budget_us=0, competition_budget_ms=0, queue_limit=4)


def outcomes(tally: Tally) -> dict[str, int]:
    """Counts by outcome, and by reason behind a colon; without those that are 0."""
    found = Counter[str]()
    for (outcome, reason), count in tally.outcomes().items():
        found[f"{outcome}:{reason}" if reason else outcome] += count
    return {name: count for name, count in found.items() if count}


def in_flight(tally: Tally) -> int:
    return tally.calls - sum(tally.outcomes().values())


async def test_what_is_refused_before_it_is_called_counts_as_a_call() -> None:
    async with runtime(NullEngine(compute=double), options=POOL) as rt:
        net = await compiled(rt, doubler(), POOL)
        await net(ROW)
        tally = net._tally_at(nn.Priority.LOW)
        calls = tally.calls
        check_call(net, within(**HOUR), nn.Priority.LOW)
        assert tally.calls == calls
        with pytest.raises(nn.MissedDeadline):
            check_call(net, Deadline(now_ns() - 1), nn.Priority.LOW)
        assert (tally.calls, in_flight(tally)) == (calls + 1, 0)
        assert outcomes(tally)["missed:admission"] == 1


@both
async def test_each_way_to_call_is_counted_once(options: nn.Options) -> None:
    async with runtime(NullEngine(compute=double), options=options) as rt:
        net = await compiled(rt, doubler(), options)
        tally = net._tally
        before = tally.calls
        await net(ROW)
        await net([ROW.tolist()[0]])
        await net.measured(ROW)
        await (await net.launch(ROW)).fence
        async with net.burst() as burst:
            await burst(ROW)
        await until(lambda: in_flight(tally) == 0)
        assert tally.calls == before + 5
        assert outcomes(tally) == {"completed": before + 5}


@both
async def test_calls_that_nobody_made_are_not_counted(options: nn.Options) -> None:
    async with runtime(NullEngine(compute=double), options=options) as rt:
        net = await rt.compile(doubler())
        assert (net._tally.calls, outcomes(net._tally)) == (0, {})


@both
async def test_failures_and_misses_are_told_apart(options: nn.Options) -> None:
    engine = NullEngine(compute=double)
    async with runtime(engine, options=options) as rt:
        net = await compiled(rt, doubler(), options)
        done = net._tally.calls
        for wrong in (ROW.astype(np.float64), ROW[:, :2]):
            with pytest.raises(InvalidArgument):
                await net(wrong)
        with pytest.raises(nn.MissedDeadline):
            await net(ROW, deadline=nn.within(ms=-1))
        engine.fail("run", RuntimeError("boom"))
        with pytest.raises(NNError):
            await net(ROW)
        engine.heal()
        assert outcomes(net._tally) == {
            **({"completed": done} if done else {}),
            "failed:INVALID_ARGUMENT": 2,
            "missed:admission": 1,
            "failed:GENERAL_FAILURE": 1,
        }


async def test_an_inline_run_that_ends_too_late_is_a_miss(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = NullEngine(compute=double)
    async with runtime(engine, options=INLINE) as rt:
        net = await compiled(rt, doubler(), INLINE)
        before = outcomes(net._tally)["completed"]
        deadline = nn.within(**HOUR)
        engine.compute = late(deadline, monkeypatch)
        with pytest.raises(nn.MissedDeadlineTransient):
            await net(ROW, deadline=deadline)
        found = outcomes(net._tally)
        assert found.pop("completed") == before
        assert found == {"missed:running": 1}


async def test_a_full_queue_and_closing_are_refusals() -> None:
    engine = gated()
    async with anyio.create_task_group() as group:
        async with nn.open_runtime(devices=[engine], options=CROWDED) as rt:
            low = await rt.compile(doubler(), priority=nn.Priority.LOW, name="free")
            high = await rt.compile(doubler(), priority=nn.Priority.HIGH, name="gold")
            lows = [await attempt(group, lambda: low(ROW))]
            await engine.when(lambda c: c.waiting == 1)
            lows += [await attempt(group, lambda: low(ROW)) for _ in range(4)]
            refused = await attempt(group, lambda: low(ROW))
            gold = await attempt(group, lambda: high(ROW))
            await until(lambda: sum(each.done.is_set() for each in lows) == 1)
            assert outcomes(low._tally) == {"refused:queue_full": 1, "refused:displaced": 1}
            assert (in_flight(low._tally), in_flight(high._tally)) == (4, 1)
            assert refused.done.is_set()

            async def let_go() -> None:
                await lows[0].done.wait()
                engine.gate.open_wide()

            group.start_soon(let_go)
        for each in (*lows, gold):
            await each.done.wait()
        assert outcomes(high._tally) == {"refused:closing": 1}
        assert outcomes(low._tally)["refused:closing"] == 4
        text = render(None, rt.calls)
        assert 'network="gold",device="null",priority="high",outcome="refused"' in text


class Load:
    """Random calls of one network, what became of them as their callers saw it, and its tally."""

    def __init__(self, seed: int, net: nn.Net, engine: Any, watchdog: ManualWatchdog) -> None:
        self.random = random.Random(seed)
        self.net, self.engine, self.watchdog = net, engine, watchdog
        self.calls = 0
        self.attempts: list[Attempt] = []
        self.launches: list[nn.Execution] = []
        self.refused: list[BaseException] = []
        self.fences: list[Fence] = []
        self.deadlines: list[nn.Deadline] = []

    def deadline(self) -> nn.Deadline | None:
        kind = self.random.random()
        if kind < 0.6:
            return None
        if kind < 0.7:
            return nn.within(ms=-1)
        self.deadlines.append(nn.within(**HOUR))
        return self.deadlines[-1]

    async def call(self, group: Any, target: Any) -> None:
        deadline = self.deadline()
        row = ROW if self.random.random() < 0.95 else ROW[:, :1]
        self.calls += 1
        self.attempts.append(await attempt(group, lambda: target(row, deadline=deadline)))

    async def launch(self) -> None:
        fences = []
        if self.random.random() < 0.5:
            self.fences.append(Fence())
            fences = self.fences[-1:]
        self.calls += 1
        try:
            launched = await self.net.launch(ROW, wait_for=fences, deadline=self.deadline())
            self.launches.append(launched)
        except NNError as error:
            self.refused.append(error)

    def disturb(self) -> None:
        """Cancel, ring, signal or fail something that is under way, or let the device go on."""
        kind = self.random.randrange(5)
        if kind == 0 and self.attempts:
            self.random.choice(self.attempts).scope.cancel()
        elif kind == 1 and self.launches:
            self.random.choice(self.launches).cancel()
        elif kind == 2 and self.deadlines:
            self.watchdog.ring(self.random.choice(self.deadlines))
        elif kind == 3 and self.fences:
            fence = self.random.choice(self.fences)
            if not fence.done:
                fence.signal() if self.random.random() < 0.7 else fence.fail(RuntimeError("x"))
        else:
            self.engine.gate.open()

    def under_way(self) -> int:
        waiting = sum(not each.done.is_set() for each in self.attempts)
        return waiting + sum(not each.fence.done for each in self.launches)

    def adds_up(self) -> bool:
        tally = self.net._tally
        return tally.calls == self.calls and in_flight(tally) == self.under_way()

    def seen(self) -> Counter[str]:
        """Outcomes as the callers saw them."""
        found = Counter[str]()
        for each in self.attempts:
            if each.scope.cancelled_caught:
                found["cancelled"] += 1
            else:
                found["completed" if each.error is None else outcome_of(each.error)[0]] += 1
        for launched in self.launches:
            error = launched.fence.error
            found["completed" if error is None else outcome_of(error)[0]] += 1
        for refusal in self.refused:
            found[outcome_of(refusal)[0]] += 1
        return found


@pytest.mark.parametrize("seed", range(6))
async def test_whatever_is_called_adds_up_at_every_moment(
    seed: int, watchdog: ManualWatchdog
) -> None:
    engine = gated()
    async with anyio.create_task_group() as group:
        async with runtime(engine, options=CROWDED if seed % 2 else POOL) as rt:
            net = await rt.compile(doubler())
            burst = net.burst(depth=3)
            await burst.__aenter__()
            load = Load(seed, net, engine, watchdog)
            for _ in range(60):
                kind = load.random.random()
                if kind < 0.3:
                    await load.call(group, net)
                elif kind < 0.5:
                    await load.call(group, burst)
                elif kind < 0.65:
                    await load.launch()
                else:
                    load.disturb()
                await until(load.adds_up)
            burst.close()
        await until(lambda: load.under_way() == 0)
        await until(load.adds_up)
    found = Counter[str]()
    for (outcome, _), count in net._tally.outcomes().items():
        found[outcome] += count
    assert +found == load.seen()
    assert sum(found.values()) == net._tally.calls == load.calls > 30


async def test_high_is_answered_beside_clients_that_fill_the_queue_with_low() -> None:
    options = nn.Options(cores=1, inline_budget_us=0, competition_budget_ms=0, queue_limit=4)
    async with runtime(NullEngine(compute=double), options=options) as rt:
        low = await rt.compile(doubler(), priority=nn.Priority.LOW)
        high = await rt.compile(doubler(), priority=nn.Priority.HIGH)

        async def insist() -> None:
            while True:
                try:
                    await low(ROW)
                except nn.ResourceExhausted:
                    await anyio.lowlevel.checkpoint()

        async with anyio.create_task_group() as group:
            for _ in range(10):
                group.start_soon(insist)
            await until(lambda: outcomes(low._tally).get("refused:queue_full", 0) > 0)
            for _ in range(20):
                assert (await high(ROW)).tolist() == [[2, 4, 6, 8]]
            group.cancel_scope.cancel()
        assert outcomes(high._tally) == {"completed": 20}
        assert in_flight(low._tally) == 0
