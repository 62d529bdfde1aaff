"""Overheads: measured ones, and what they add to requests in a simulation."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import msgspec
import pytest

from nnasync._core.workers.admission import NEXT_TURN, RUN
from nnasync.errors import ExperimentError
from nnasync.experiments import (
    Batching,
    ClosedLoop,
    Constant,
    Delays,
    Network,
    Overheads,
    Periodic,
    Recording,
    RunResult,
    RunTimes,
    Steps,
    Stream,
    Workload,
    overheads_here,
    simulate,
)
from nnasync.experiments.overheads import overheads_of
from nnasync.experiments.record import Outcome, RequestRow, StreamAccount
from nnasync.experiments.simulation_lane import SimulatedLane
from nnasync.experiments.simulation_requests import Source
from nnasync.machine.decisions import USUAL_COSTS
from nnasync.scheduler import Scheduler

ALL = Recording(timeline_requests=1_000)
US, MS = 1_000, 1_000_000
HEAVY = Overheads(hop_ns=200 * US, cold_hop_ns=500 * US, call_ns=100 * US)


def at(time_ms: float) -> Periodic:
    """One request at that time, in runs of less than an hour."""
    return Periodic(3.6e6, phase_ms=time_ms)


def stream(name: str = "a", **changes: Any) -> Stream:
    given: dict[str, Any] = {"arrivals": at(0.0), "cost": Constant(2.0)}
    return Stream(name=name, **(given | changes))


def run(*streams: Stream, duration_ms: float = 100.0, **options: Any) -> RunResult:
    return simulate(
        Workload(streams),
        duration_ns=round(duration_ms * MS),
        overheads=HEAVY,
        record=ALL,
        **options,
    )


def test_a_request_alone_pays_for_the_loop_and_a_cold_hop() -> None:
    found = run(stream(), stream("later", arrivals=at(50.0)))
    # Into the loop, half of the call, a worker that sleeps deeply; the run; back, the other half.
    begins_us = 100 + 50 + 400
    assert [span.began_ns for span in found.spans] == [begins_us * US, 50 * MS + begins_us * US]
    for row in found.requests:
        assert row.ended_ns - row.arrived_ns == (begins_us + 2_000 + 100 + 50) * US


def test_a_worker_that_is_awake_goes_on_without_a_hop() -> None:
    found = run(stream(arrivals=Periodic(1.0)), duration_ms=20.0)
    first, *others = found.spans
    assert first.began_ns == 550 * US
    ends = [first.ended_ns, *(span.ended_ns for span in others)]
    assert [span.began_ns for span in others] == ends[:-1]


def test_calls_wait_for_the_loop_one_after_the_other() -> None:
    found = run(*(stream(str(number)) for number in range(8)), cores=8)
    assert [span.began_ns // US for span in found.spans] == [550 + 50 * i for i in range(8)]
    told = [(row.ended_ns - 2 * MS) // US for row in found.requests]
    assert told == [700 + 50 * number for number in range(8)]


def test_urgent_requests_begin_beside_low_that_gives_way() -> None:
    low = stream("low", cost=Steps((5.0, 5.0)), priority="low")
    high = stream("high", arrivals=at(2.0), priority="high")
    found = run(low, high)
    assert [(s.core, s.stream, s.began_ns // US, s.ended_ns // US) for s in found.spans] == [
        (2, 1, 2_550, 4_550),
        (0, 0, 550, 5_550),
        (0, 0, 5_550, 10_550),
    ]
    assert found.preemptions == 1


def test_under_a_policy_all_cores_are_alike() -> None:
    low = stream("low", cost=Steps((5.0, 5.0)), priority="low")
    high = stream("high", arrivals=at(2.0), priority="high")
    found = run(low, high, policy="fixed-priority-preemptive")
    assert [(s.core, s.stream, s.began_ns // US) for s in found.spans] == [
        (0, 0, 550),
        (0, 1, 5_550),
        (0, 0, 7_550),
    ]


def test_whose_answer_comes_late_has_missed_the_deadline() -> None:
    found = run(stream(deadline_ms=2.6))
    assert [row.outcome.value for row in found.requests] == ["late"]
    found = run(stream(deadline_ms=2.71))
    assert [row.outcome.value for row in found.requests] == ["met"]
    found = run(stream(cost=Steps((2.0, 2.0)), deadline_ms=4.5))
    (row,) = found.requests
    assert (row.outcome.value, row.ended_ns) == ("expired", 4_650 * US)
    assert found.busy_ns == 4 * MS


def test_who_cancels_before_the_loop_begins_the_call_never_runs() -> None:
    found = run(stream(cancel_after_ms=0.05))
    assert [row.outcome.value for row in found.requests] == ["cancelled"]
    assert found.spans == ()
    assert found.streams[0].cancelled == 1


def test_callers_think_when_they_have_heard() -> None:
    found = run(stream(arrivals=ClosedLoop(1, 1.0, think="constant")), duration_ms=10.0)
    first, second = found.requests[:2]
    assert second.arrived_ns == first.ended_ns + MS


def inline(*streams: Stream, budget_us: int = 1_000, cores: int = 2) -> RunResult:
    """As `run`, with an inline budget and a stall budget of a millisecond; hops are dear."""
    overheads = Overheads(300 * US, 900 * US, 100 * US, inline_budget_ns=budget_us * US)
    return simulate(
        Workload(streams), cores=cores, overheads=overheads, duration_ns=100 * MS, record=ALL
    )


def test_short_requests_run_on_the_thread_of_the_loop() -> None:
    found = inline(stream(cost=Constant(0.5)))
    (span,), (row,) = found.spans, found.requests
    # Into the loop and half of the call, then the run; there is no way back.
    assert (span.core, span.began_ns, span.ended_ns) == (2, 200 * US, 700 * US)
    assert (row.ended_ns, row.outcome.value) == (750 * US, "met")
    assert found.busy_ns == 500 * US


@pytest.mark.parametrize(
    ("cost_ms", "priority", "core"),
    [(0.9, "high", 2), (1.1, "high", 0), (0.4, "low", 2), (0.6, "low", 0), (0.6, "medium", 2)],
)
def test_what_would_hold_the_loop_for_too_long_goes_to_a_worker(
    cost_ms: float, priority: str, core: int
) -> None:
    found = inline(stream(cost=Constant(cost_ms), priority=priority))
    assert [span.core for span in found.spans] == [core]


def test_the_loop_runs_requests_one_after_the_other() -> None:
    found = inline(*(stream(str(number), cost=Constant(0.4)) for number in range(6)))
    here = [span for span in found.spans if span.core == 2]
    assert len(here) == len(found.spans) == 6
    # The loop itself is never doing two things.
    assert all(a.ended_ns + 100 * US == b.began_ns for a, b in itertools.pairwise(here))


def test_what_requests_may_take_of_one_turn_is_limited() -> None:
    overheads = Overheads(300 * US, 900 * US, 0, inline_budget_ns=MS, stall_budget_ns=MS)
    source = Source(
        stream(cost=Constant(0.4)), 0, number=0, client=0, account=StreamAccount(stream())
    )
    lane = SimulatedLane(overheads, Scheduler(servers=2, queue_limit=9), 1)
    next(source.times_ns)
    request = source.request(0)
    found = []
    for spent_us in (0, 600, 1, 0):
        lane.spend(spent_us * US)
        found.append(lane.admission(0, request, [], 0))
    lane.begin_turn()
    found.append(lane.admission(0, request, [], 0))
    assert found == [RUN, RUN, NEXT_TURN, NEXT_TURN, RUN]


def test_a_run_of_the_loop_keeps_others_waiting() -> None:
    found = inline(stream("short", cost=Constant(0.9)), stream("long", arrivals=at(0.3)))
    short, long = sorted(found.spans, key=lambda span: span.stream)
    # The call of the long one begins when the loop has ended the short one.
    assert long.began_ns >= short.ended_ns + 100 * US
    assert long.core < 2


def test_what_the_loop_cannot_do_by_its_deadline_is_refused_there() -> None:
    first = stream("first", cost=Constant(0.9))
    second = stream("second", arrivals=at(0.1), cost=Constant(0.9), deadline_ms=1.2)
    found = inline(first, second, cores=1)
    assert [row.outcome.value for row in found.requests] == ["met", "refused"]


def test_overheads_of_nothing_change_nothing() -> None:
    """Where LOW has no threads of its own, and everything happens at the same instants."""
    streams = (
        stream("a", arrivals=Periodic(3.0), priority="high"),
        stream("b", arrivals=Periodic(7.0), deadline_ms=20.0),
    )
    nothing = Overheads(hop_ns=0, cold_hop_ns=0, call_ns=0)
    ideal, real = (
        simulate(Workload(streams), overheads=each, duration_ns=10**9) for each in (None, nothing)
    )
    assert msgspec.structs.asdict(ideal.streams[1]) == msgspec.structs.asdict(real.streams[1])
    assert ideal.busy_ns == real.busy_ns


def test_the_overheads_of_this_machine_are_measured_and_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("NNASYNC_STATE_DIR", str(tmp_path))
    module = "nnasync.experiments.overheads"
    monkeypatch.setattr(f"{module}.costs_here", lambda folder: USUAL_COSTS)
    monkeypatch.setattr(f"{module}.SAMPLES", 1)
    monkeypatch.setattr(f"{module}._REQUESTS", 60)
    found = overheads_here()
    assert 0 < found.hop_ns == USUAL_COSTS.hop.low_ns <= found.cold_hop_ns
    assert 0 <= found.call_ns < 10**9
    assert found.delays is not None
    assert max(found.delays.comes_ns) > 0
    assert overheads_here() == found
    assert overheads_here(again=True) != found
    for file in tmp_path.iterdir():
        file.write_bytes(b"damaged")
    assert overheads_here() != found


def test_overheads_without_a_sample_are_hops_alone() -> None:
    assert overheads_of(USUAL_COSTS, 1).call_ns == 0
    assert overheads_of(USUAL_COSTS, 1).delays is None


LATE = Delays(
    comes_ns=(300 * US,),
    begins_ns=(70 * US,),
    follows_ns=(20 * US,),
    device_ns=(10 * US,),
    heard_ns=(50 * US,),
)


def late(*streams: Stream, delays: Delays = LATE, **options: Any) -> RunResult:
    overheads = Overheads(hop_ns=0, cold_hop_ns=0, call_ns=0, delays=delays)
    return simulate(
        Workload(streams), duration_ns=100 * MS, overheads=overheads, record=ALL, **options
    )


def test_measured_delays_pass_on_the_way_of_a_request() -> None:
    found = late(stream(), stream("b"))
    first, second = sorted(found.spans, key=lambda span: span.began_ns)
    assert {row.queued_ns for row in found.requests} == {300 * US}
    assert (first.began_ns, first.ended_ns) == (370 * US, 2_380 * US)
    # The worker is awake when it has ended the first one.
    assert second.began_ns == first.ended_ns + 20 * US
    told = sorted(row.ended_ns for row in found.requests)
    assert told == [first.ended_ns + 50 * US, second.ended_ns + 50 * US]


def test_low_is_woken_by_a_worker_that_has_ended_what_was_more_urgent() -> None:
    high, low = stream("high", priority="high"), stream("low", priority="low")
    for policy, delay_us in ((None, 90), ("fifo", 20)):
        found = late(high, low, policy=policy)
        first, second = sorted(found.spans, key=lambda span: span.began_ns)
        assert (first.stream, second.stream) == (0, 1)
        assert second.began_ns == first.ended_ns + delay_us * US


def test_what_stands_for_costs_is_late_and_a_network_is_not() -> None:
    network = stream(cost=Network("net.nnm", (2.0,)))
    (span,) = late(network).spans
    assert span.ended_ns - span.began_ns == 2 * MS


def test_networks_are_slower_while_others_run_beside_them() -> None:
    short = stream("short", cost=Network("a.nnm", (1.0,), beside={"long": 2.0}))
    long = stream("long", cost=Network("b.nnm", (4.0,), beside={"short": 1.5}))
    delays = Delays()
    first, second = sorted(late(short, long, delays=delays, cores=2).spans, key=lambda s: s.stream)
    assert (first.began_ns, first.ended_ns) == (0, 2 * MS)
    # In the first 2 ms two thirds of that were done, the rest alone.
    assert second.ended_ns == pytest.approx(2 * MS + 4 * MS - 2 * MS / 1.5, abs=10)
    alone = late(long, delays=delays, cores=2)
    assert [span.ended_ns for span in alone.spans] == [4 * MS]


def test_a_network_that_stops_beside_others_does_what_is_left_alone() -> None:
    cost = Network("b.nnm", (2.0, 2.0), beside={"high": 2.0})
    low = stream("low", cost=cost, priority="low")
    high = stream("high", arrivals=at(1.0), cost=Network("a.nnm", (5.0,)), priority="high")
    found = late(low, high, delays=Delays())
    mine = [(span.began_ns, span.ended_ns) for span in found.spans if span.stream == 0]
    # A millisecond alone, one more beside the other; then the second half.
    assert mine == [(0, 3 * MS), (6 * MS, 8 * MS)]


def test_the_more_networks_run_the_later_everybody_is() -> None:
    overheads = Overheads(0, 0, 0, delays=LATE, beside=(Delays(), LATE))
    busy = stream("busy", cost=Network("a.nnm", (10.0,)))
    other = stream("other", arrivals=at(5.0), cost=Network("b.nnm", (1.0,)))
    calm = stream("calm", arrivals=at(20.0), cost=Network("b.nnm", (1.0,)))
    found = simulate(
        Workload((busy, other, calm)), cores=2, overheads=overheads, duration_ns=MS * 50, record=ALL
    )
    late_ns = [row.queued_ns - row.arrived_ns for row in found.requests]
    assert late_ns == [0, 300 * US, 0]


def test_a_network_that_is_given_up_runs_no_more() -> None:
    overheads = Overheads(0, 0, 0, delays=Delays(), beside=(Delays(), LATE))
    gone = stream("gone", cost=Network("a.nnm", (9.0,)), cancel_after_ms=2.0)
    later = stream("later", arrivals=at(10.0), cost=Network("b.nnm", (1.0,)))
    found = simulate(
        Workload((gone, later)), cores=1, overheads=overheads, duration_ns=MS * 50, record=ALL
    )
    assert found.requests[1].queued_ns == 10 * MS


@pytest.mark.parametrize("given_up", [{"cancel_after_ms": 2.0}, {"deadline_ms": 2.0}])
def test_those_of_a_run_that_all_give_up_run_no_more(given_up: dict[str, float]) -> None:
    overheads = Overheads(0, 0, 0, delays=Delays(), beside=(Delays(), Delays(), LATE))
    cost = Network("a.nnm", (9.0,))
    gone = stream("gone", cost=cost, batching=Batching(), **given_up)
    later = stream("later", arrivals=at(20.0), cost=Network("b.nnm", (1.0,)))
    found = simulate(
        Workload((gone, later)), cores=1, overheads=overheads, duration_ns=MS * 50, record=ALL
    )
    assert found.requests[1].queued_ns == 20 * MS


def test_a_network_that_joins_another_is_late_and_so_is_that() -> None:
    times = RunTimes((4.0,), {"mine": (6.0,)}, joined_ms={"mine": ((0.5, 3.0, 1.5),)})
    cost = Network("a.nnm", (4.0,), times=times)
    found = late(stream("mine", arrivals=Periodic(2.0, 0.0), cost=cost), delays=Delays(), cores=2)
    spans = sorted((span.began_ns / MS, span.ended_ns / MS) for span in found.spans[:4])
    # The second one is late and quick, and makes the first longer. The third goes on where that
    # ends, beside the second, and is longer as the fourth joins it.
    assert spans == [(0, 5.5), (2.5, 5.5), (5.5, 13.0), (6.5, 9.5)]


def test_a_run_is_longer_for_the_first_that_joins_it_only() -> None:
    times = RunTimes((9.0,), joined_ms={"short": ((0.0, 1.0, -2.0), (0.0, 1.0, -2.0))})
    long = stream("long", cost=Network("b.nnm", (9.0,), times=times))
    short = stream("short", arrivals=Periodic(2.0, 1.0), cost=Network("a.nnm", (1.0,)))
    found = late(long, short, delays=Delays(), cores=2)
    assert next(span.ended_ns for span in found.spans if span.stream == 0) == 7 * MS
    # One that is to end sooner than now ends now.
    soon = msgspec.structs.replace(times, joined_ms={"short": ((0.0, 1.0, -20.0),)})
    long = stream("long", cost=Network("b.nnm", (9.0,), times=soon))
    found = late(long, short, delays=Delays(), cores=2)
    assert next(span.ended_ns for span in found.spans if span.stream == 0) == 1 * MS


@pytest.mark.parametrize(
    "cost",
    [
        Network("a.nnm", (3.0,) * 3, beside={"other": 2.5}),
        Network("a.nnm", (3.0,) * 3, times=RunTimes((9.0,), {}, (), {"other": ((0.0, 9.0, 6.0),)})),
    ],
)
def test_a_run_that_others_make_too_long_stops_behind_its_deadline(cost: Network) -> None:
    mine = stream("mine", cost=cost, deadline_ms=10.0)
    other = stream("other", arrivals=at(1.0), cost=Network("b.nnm", (9.0,)))
    found = late(mine, other, delays=Delays(), cores=2)
    (row,) = (row for row in found.requests if row.stream == 0)
    assert (row.outcome, row.ended_ns) == (Outcome.EXPIRED, 10 * MS)
    (span,) = (span for span in found.spans if span.stream == 0)
    assert 10 * MS <= span.ended_ns < 15 * MS


def test_what_joins_do_is_drawn_for_each_two_networks_on_their_own() -> None:
    joins = tuple((late_ms / 10, 1.0, 0.0) for late_ms in range(8))
    times = RunTimes((4.0,), joined_ms={"short": joins})
    streams = [
        stream(name, arrivals=Periodic(40.0, ms), cost=Network("a.nnm", (4.0,), times=times))
        for name, ms in (("a", 0.0), ("b", 20.0))
    ]
    short = stream("short", arrivals=Periodic(20.0, 1.0), cost=Network("b.nnm", (1.0,)))
    found = simulate(
        Workload((*streams, short)),
        cores=2,
        overheads=Overheads(0, 0, 0),
        duration_ns=2_000 * MS,
        record=ALL,
    )
    late_ns = [span.began_ns % (20 * MS) for span in found.spans if span.stream == 2]
    assert len(set(late_ns)) == 8
    assert late_ns[::2] != late_ns[1::2]


def networks(
    delays: Delays, *times_ms: float, cost_ms: float, call_ns: int = 0
) -> tuple[RequestRow, ...]:
    """The requests of networks, one each at these times, with the delays in whatever company."""
    cost = Network("a.nnm", (cost_ms,))
    streams = [
        stream(name, arrivals=at(ms), cost=cost)
        for name, ms in zip("abcdef", times_ms, strict=False)
    ]
    overheads = Overheads(0, 0, call_ns, delays=delays, beside=(delays,))
    found = simulate(
        Workload(tuple(streams)), cores=4, overheads=overheads, duration_ns=MS * 50, record=ALL
    )
    return found.requests


def test_a_loop_on_its_way_is_there_for_all_that_happens_meanwhile() -> None:
    far = Delays(told_ns=(200 * US,), comes_ns=(2 * MS,), heard_ns=(3 * MS,))
    rows = networks(far, 0, 0.1, 2.0, cost_ms=1.0)
    # The thread wakes for the first, and tells of both; for the third it wakes again.
    assert [row.told_ns for row in rows] == [200 * US, 200 * US, 2200 * US]
    assert [row.queued_ns for row in rows] == [2200 * US, 2200 * US, 4200 * US]
    # The first two are heard of when the loop is there for the first; it was on its way for the
    # third when they ended.
    assert [row.ended_ns for row in rows] == [4200 * US, 4200 * US, 8200 * US]


def test_a_loop_on_its_way_is_there_for_nobody_sooner() -> None:
    far = Delays(comes_ns=(2 * MS,), heard_ns=(0,))
    rows = networks(far, 0, 4.0, cost_ms=3.0)
    # It is woken for the second at 4 ms, and hears at 6 ms of what ended at 5 ms.
    assert [row.ended_ns for row in rows] == [6 * MS, 9 * MS]


def test_a_busy_loop_is_there_for_what_comes_as_soon_as_it_is_free() -> None:
    late_once = Delays(comes_ns=(2 * MS,))
    rows = networks(late_once, 0, 2.1, cost_ms=3.0, call_ns=400 * US)
    # It begins the first call at 2 ms, which keeps it for 200 us, and then the second one.
    assert [row.queued_ns for row in rows] == [2200 * US, 2400 * US]


def test_what_waited_for_the_loop_takes_as_long_as_was_seen() -> None:
    slow = Delays(calls_ns=(300 * US,), answers_ns=(50 * US,))
    overheads = Overheads(0, 0, call_ns=200 * US, delays=slow, beside=(slow,))
    cost = Network("a.nnm", (2.0,))
    streams = [stream(name, arrivals=at(1.0), cost=cost) for name in "abc"]
    found = simulate(
        Workload(tuple(streams)), cores=4, overheads=overheads, duration_ns=MS * 50, record=ALL
    )
    assert [row.queued_ns for row in found.requests] == [1100 * US, 1400 * US, 1700 * US]
    # An answer takes no less than half of a call; none of these waited.
    assert [row.ended_ns for row in found.requests] == [3200 * US, 3500 * US, 3800 * US]
    # What stands for costs takes what a call takes.
    others = [stream(name, arrivals=at(1.0)) for name in "abc"]
    found = simulate(
        Workload(tuple(others)), cores=4, overheads=overheads, duration_ns=MS * 50, record=ALL
    )
    assert [row.queued_ns for row in found.requests] == [1100 * US, 1200 * US, 1300 * US]


def test_a_network_takes_as_long_as_was_measured_beside_what_runs() -> None:
    times = RunTimes(usual_ms=(2.0, 4.0), beside_ms={"long": (3.0, 7.0)})
    mine = stream("mine", arrivals=Periodic(9.0, 2.0), cost=Network("a.nnm", (3.0,), times=times))
    assert mine.cost.mean_ns == 3 * MS
    alone = late(mine, delays=Delays(), cores=2)
    assert {span.ended_ns - span.began_ns for span in alone.spans} == {2 * MS, 4 * MS}
    long = stream("long", cost=Network("b.nnm", (1000.0,)))
    both = late(mine, long, delays=Delays(), cores=2)
    lengths = [span.ended_ns - span.began_ns for span in both.spans if span.stream == 0]
    assert set(lengths) == {3 * MS, 7 * MS}
    # Who is slow alone is slow beside others.
    assert [{3: 2, 7: 4}[ns // MS] for ns in lengths] == [
        (span.ended_ns - span.began_ns) // MS for span in alone.spans
    ]


def test_many_runs_that_each_make_a_network_quicker_do_not_add_up_to_no_time() -> None:
    """What is measured beside one other is a little less than alone now and then, by chance."""
    times = RunTimes(usual_ms=(10.0,), beside_ms={"mine": (9.0,)})
    network = Network("a.nnm", (10.0,), times=times)
    mine = stream("mine", arrivals=ClosedLoop(16, 1.0), cost=network)
    found = late(mine, delays=Delays(), cores=16)
    over = {row.request for row in found.requests if row.outcome is Outcome.MET}
    lengths = [span.ended_ns - span.began_ns for span in found.spans if span.request in over]
    assert len(lengths) > 50
    assert 9 * MS <= min(lengths) <= max(lengths) <= 10 * MS


def test_a_network_that_usually_runs_alone_takes_its_wide_form() -> None:
    times = RunTimes(usual_ms=(4.0,), wide_ms=(2.0,))
    cost = Network("a.nnm", (4.0,), times=times)
    alone = late(stream("mine", arrivals=Periodic(10.0, 1.0), cost=cost), delays=Delays(), cores=2)
    assert {span.ended_ns - span.began_ns for span in alone.spans} == {2 * MS}
    # One that begins beside others has its usual form, which it keeps when those have ended.
    short = stream("short", cost=Network("b.nnm", (1.5,)))
    both = late(stream("mine", arrivals=at(1.0), cost=cost), short, delays=Delays(), cores=2)
    (mine,) = (span for span in both.spans if span.stream == 0)
    assert mine.ended_ns - mine.began_ns == 4 * MS


def test_delays_are_drawn_by_the_seed() -> None:
    varied = msgspec.structs.replace(LATE, comes_ns=(0, 100 * US, 900 * US))
    often = stream(arrivals=Periodic(5.0))
    first, again, other = (late(often, delays=varied, seed=seed) for seed in (1, 1, 2))
    assert msgspec.json.encode(first) == msgspec.json.encode(again)
    queued = [row for row in first.requests if row.queued_ns >= 0]
    assert {row.queued_ns - row.arrived_ns for row in queued} == set(varied.comes_ns)
    assert first.requests != other.requests


def test_overheads_that_cannot_be_are_refused() -> None:
    with pytest.raises(ExperimentError, match="call_ns is -1"):
        Overheads(hop_ns=1, cold_hop_ns=1, call_ns=-1)
