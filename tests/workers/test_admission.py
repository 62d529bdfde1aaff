"""The decision where an execution runs: properties of the rule, and whole machines simulated."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnasync._core.workers.admission import (
    NEXT_TURN,
    RUN,
    SPREAD,
    Admission,
    Company,
    delay_ns,
    leaves_to_workers,
    loop_limit_ns,
    may_hold_loop,
    pays_to_spread,
    quickest,
)
from nnasync.hal import Priority
from nnasync.machine.decisions import Decisions, decide
from nnasync.scheduler import Estimate
from tests.machine.rig import US, costs

MS = 1000 * US
STALL_NS = 1 * MS
MACHINE = decide(costs(), STALL_NS)
durations = st.floats(0, 10**9)
machines = st.builds(
    lambda hop_us, more_us: decide(costs(hop_us, hop_us + more_us), STALL_NS),
    st.integers(1, 500),
    st.integers(0, 500),
)


def asked(machine: Decisions = MACHINE, **given_ones: float) -> Admission:
    """The rule, asked about a call that comes alone unless it says otherwise."""
    usual = {
        "run_ns": 400 * US,
        "worker_run_ns": given_ones.get("run_ns", 400 * US),
        "has_room": True,
        "waiting": 0,
        "ahead_ns": 0.0,
        "delays_ns": 0.0,
        "expects_company": False,
        "free_workers": 1,
        "backlog_ns": 0.0,
        "servers": 1,
    }
    question: Callable[..., Admission] = quickest
    return question(machine, **(usual | given_ones))


@given(machines, durations, durations, st.integers(1, 64))
def test_who_comes_alone_runs_here(
    machine: Decisions, run_ns: float, more_ns: float, servers: int
) -> None:
    there_ns = run_ns + more_ns
    found = asked(
        machine, run_ns=run_ns, worker_run_ns=there_ns, servers=servers, free_workers=servers
    )
    assert found is RUN


@given(machines, durations, st.booleans(), st.booleans(), st.integers(0, 9), durations)
def test_one_core_runs_all_on_the_thread_of_the_loop(
    machine: Decisions, run_ns: float, room: bool, company: bool, waiting: int, ahead_ns: float
) -> None:
    found = asked(
        machine,
        run_ns=run_ns,
        has_room=room,
        waiting=waiting,
        ahead_ns=ahead_ns,
        expects_company=company,
        servers=0,
        free_workers=0,
    )
    assert found is (RUN if room else NEXT_TURN)


@given(machines, durations, st.floats(0, 10**9), st.integers(0, 9), durations, st.integers(1, 16))
def test_nobody_is_sent_to_where_it_ends_later(
    machine: Decisions,
    run_ns: float,
    ahead_ns: float,
    waiting: int,
    backlog_ns: float,
    servers: int,
) -> None:
    found = asked(
        machine,
        run_ns=run_ns,
        has_room=False,
        waiting=waiting,
        ahead_ns=ahead_ns,
        servers=servers,
        free_workers=0,
        backlog_ns=backlog_ns,
    )
    here_ns = (waiting + 1) * machine.turn_ns + ahead_ns + run_ns
    there_ns = machine.hop_ns + backlog_ns / servers + run_ns
    assert found is SPREAD or found is NEXT_TURN
    if found is SPREAD:
        assert there_ns < here_ns
    elif there_ns < here_ns:
        assert there_ns > 0.8 * here_ns


@given(
    machines,
    st.floats(1, 10**7),
    st.floats(0, 10**8),
    st.floats(0, 10**8),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.integers(0, 4),
    st.integers(0, 9),
)
def test_no_call_with_a_deadline_is_sent_to_where_it_is_late_if_it_may_run_here(
    machine: Decisions,
    run_ns: float,
    left_ns: float,
    lag_ns: float,
    room: bool,
    others_end: bool,
    company: bool,
    servers: int,
    waiting: int,
) -> None:
    situation: dict[str, float] = {
        "run_ns": run_ns,
        "has_room": room,
        "others_end": others_end,
        "expects_company": company,
        "servers": servers,
        "free_workers": servers,
        "waiting": waiting,
        "ahead_ns": waiting * run_ns,
    }
    found = asked(machine, **situation, left_ns=left_ns, lag_ns=lag_ns)
    there_ns = lag_ns + machine.cold_hop_ns + run_ns
    turn_ns = lag_ns + (waiting + 1) * machine.turn_ns + (waiting + 1) * run_ns
    slack_ns = 1e-6 * (left_ns + 1)
    if room and run_ns <= left_ns:
        assert not (found is SPREAD and there_ns > left_ns + slack_ns)
        assert not (found is NEXT_TURN and turn_ns > left_ns + slack_ns)
    if not room and servers and there_ns <= left_ns - slack_ns < left_ns < turn_ns - slack_ns:
        assert found is SPREAD
    if not room and turn_ns <= left_ns - slack_ns < left_ns < there_ns - slack_ns:
        assert found is NEXT_TURN
    assert asked(machine, **situation, left_ns=10**12, lag_ns=lag_ns) is asked(machine, **situation)


def test_where_the_loop_lags_a_call_in_company_meets_its_deadline_here() -> None:
    for servers in (0, 1):

        def where(left_ns: float, lag_ns: float, servers: int = servers) -> Admission:
            return asked(
                run_ns=150 * US,
                others_end=True,
                servers=servers,
                free_workers=servers,
                left_ns=left_ns,
                lag_ns=lag_ns,
            )

        assert where(3 * MS, 0) is not RUN
        assert where(3 * MS, 4 * MS) is RUN


def test_of_two_the_first_goes_to_another_core() -> None:
    assert asked(expects_company=True) is SPREAD
    assert asked(expects_company=True, free_workers=0, backlog_ns=400 * US) is RUN
    assert asked(expects_company=True, run_ns=30 * US) is RUN
    # Where cores are shared or the interpreter lock is, two at once gain nothing.
    assert asked(expects_company=True, worker_run_ns=900 * US) is RUN


def test_the_limits_have_a_gap_between_leaving_and_coming_back() -> None:
    def holds(low_us: float, *, did: bool, high_us: float = 0) -> bool:
        return may_hold_loop(low_us * US, high_us * US, 1000 * US, 2000 * US, did=did)

    assert holds(1000, did=True)
    assert not holds(1001, did=True)
    assert not holds(801, did=False)
    assert holds(800, did=False)
    assert not holds(100, did=True, high_us=2001)
    assert not holds(100, did=False, high_us=1601)


@given(st.lists(st.floats(0.81, 0.999), min_size=1))
def test_an_estimate_that_moves_around_the_limit_does_not_flip(shares: list[float]) -> None:
    did = False
    for share in shares:
        did = may_hold_loop(share * MS, 0, MS, 2 * MS, did=did)
        assert not did


def test_low_holds_the_loop_for_half_as_long() -> None:
    assert loop_limit_ns(Priority.LOW, 900) == 450
    assert loop_limit_ns(Priority.MEDIUM, 900) == 900


def test_company_is_a_habit() -> None:
    company = Company()

    def usual_after(*calls: bool) -> bool:
        for has_others in calls:
            company.note(has_others=has_others)
        return company.is_usual

    assert not usual_after(True)
    assert usual_after(*([False, True] * 10))
    assert usual_after(False, False)
    assert not usual_after(*[False] * 16)


positive = st.floats(1, 10**9)


@pytest.mark.parametrize("in_flight", [2, 3, 8])
@pytest.mark.parametrize("is_staggered", [False, True])
@pytest.mark.parametrize("before", [0, 8])
def test_two_in_flight_are_told_from_more(in_flight: int, is_staggered: bool, before: int) -> None:
    """Whether each finds the others under way, or all come back at once, one after the other."""
    company = Company()
    others = [in_flight - 1] * in_flight if is_staggered else list(range(in_flight))
    for each in [before] * before + 20 * others:
        company.note(has_others=each > 0, others=each)
    for each in others:
        company.note(has_others=each > 0, others=each)
        spreads = pays(
            alone_ns=120 * US, beside_ns=210 * US, worker_ns=210 * US, others=company.others
        )
        assert spreads is (in_flight > 2)


def pays(machine: Decisions = MACHINE, did: float = True, **given_ones: float) -> bool:
    """The rule for two in company, asked about executions that are as quick everywhere."""
    usual = {"alone_ns": MS, "beside_ns": MS, "worker_ns": MS, "servers": 1, "others": 1.0}
    question: Callable[..., bool] = pays_to_spread
    return question(machine, did=bool(did), **(usual | given_ones))


@given(machines, positive, positive, positive, st.integers(1, 15), st.floats(0, 64))
def test_what_is_chosen_stays_until_the_other_is_clearly_better(
    machine: Decisions, alone_ns: float, beside_ns: float, worker_ns: float, servers: int, n: float
) -> None:
    given_ones = {"beside_ns": beside_ns, "worker_ns": worker_ns, "servers": servers, "others": n}
    known = {"alone_ns": alone_ns, **given_ones}
    if pays(machine, did=False, **known):
        assert pays(machine, did=True, **known)
        assert pays(machine, did=False, **known | {"alone_ns": 1.01 * alone_ns})
        assert pays(machine, did=True, **known | {"alone_ns": alone_ns / 1.1})
    elif pays(machine, did=True, **known):
        assert not pays(machine, did=True, **known | {"alone_ns": alone_ns / 1.2})
        assert pays(machine, did=False, **known | {"alone_ns": alone_ns * 1.2})


@given(machines, positive, positive, positive, st.integers(1, 15))
def test_quicker_workers_never_speak_against_them(
    machine: Decisions, alone_ns: float, beside_ns: float, worker_ns: float, servers: int
) -> None:
    known = {"alone_ns": alone_ns, "beside_ns": beside_ns, "servers": servers}
    quicker = max(1.0, worker_ns / 2)
    if worker_ns > machine.hop_ns and pays(machine, worker_ns=worker_ns, **known):
        more = min(servers + 1, 15)
        assert pays(machine, worker_ns=worker_ns, **known | {"servers": more, "others": 15.0})
        if quicker > machine.hop_ns and beside_ns > machine.hop_ns:
            assert pays(machine, worker_ns=quicker, **known)


def test_side_by_side_or_one_after_the_other() -> None:
    assert pays()
    assert not pays(servers=0)
    assert not pays(beside_ns=2.3 * MS, worker_ns=2.3 * MS)
    assert not pays(alone_ns=0.45 * MS)
    assert pays(alone_ns=0.7 * MS)
    assert pays(alone_ns=0.25 * MS, servers=15, others=8.0)
    # Of two in all none waits that a worker could go on with, and both are heard of together.
    for alone_us, others, is_better in [(120, 2.0, True), (120, 0.5, False), (210, 0.5, True)]:
        alone_ns, both_ns = alone_us * US, 210 * US
        known = pays(alone_ns=alone_ns, beside_ns=both_ns, worker_ns=both_ns, others=others)
        assert known is is_better
    # What is not known is tried.
    assert pays(alone_ns=0)
    assert pays(beside_ns=0, worker_ns=0)


# -- whole machines


class Machine:
    """A loop, its turns and its workers in simulated time; callers call again and again.

    A worker hears of work after half a hop and the loop of its end after another half, but not
    before the loop turns. `alone_ns` is what a run takes that has all cores, `spreads` whether runs
    are spread; where it is not given, the rule decides by what has been measured.
    """

    def __init__(
        self,
        cores: int,
        run_ns: float,
        hop_us: int = 20,
        cold_hop_us: int = 60,
        *,
        alone_ns: float = 0.0,
        spreads: bool | None = None,
    ) -> None:
        self.alone_ns = alone_ns or run_ns
        self.spreads = spreads
        self.estimate = Estimate()
        self.estimate.is_beside = False
        self.estimate.learn_manner(int(self.alone_ns))
        self.estimate.alone_ns = self.alone_ns
        self.decisions = decide(costs(hop_us, cold_hop_us), STALL_NS)
        self.servers = cores - 1
        self.run_ns = run_ns
        self.now_ns = self.spent_ns = 0.0
        self.company = Company()
        self.first = -1
        self.waiting: deque[tuple[int, float]] = deque()
        self.frees = [0.0] * self.servers
        self.away: list[tuple[float, int, float]] = []
        self.latencies: list[float] = []
        self.longest_turn_ns = 0.0
        self.spread = 0

    def calls(self, callers: int, until_ns: float) -> float:
        """Executions a second, where each of the callers calls again as soon as it may."""
        ready = list(range(callers))
        while self.now_ns < until_ns:
            began_ns, self.spent_ns = self.now_ns, 0.0
            if self.waiting:
                caller, called_ns = self.waiting.popleft()
                self._run(called_ns)
                ready.insert(0, caller)
            for caller in ready:
                self._go_on(caller)
            self.longest_turn_ns = max(self.longest_turn_ns, self.now_ns - began_ns)
            self.now_ns += self.decisions.turn_ns
            if not self.waiting and self.away:
                self.now_ns = max(self.now_ns, self.away[0][0])
            ready = []
            while self.away and self.away[0][0] <= self.now_ns:
                _, caller, called_ns = heapq.heappop(self.away)
                self.latencies.append(self.now_ns - called_ns)
                ready.append(caller)
        return len(self.latencies) / self.now_ns * 1e9

    def _go_on(self, caller: int) -> None:
        """Call until that takes another turn, or a worker."""
        while (admission := self._ask(caller)) is RUN:
            self._run(self.now_ns)
        if admission is NEXT_TURN:
            self.waiting.append((caller, self.now_ns))
            return
        self.spread += 1
        hop_ns = self.decisions.hop_ns if self.away else self.decisions.cold_hop_ns
        at = self.frees.index(min(self.frees))
        self.frees[at] = max(self.frees[at], self.now_ns + hop_ns / 2) + self.run_ns
        self.estimate.observe_on_worker(int(self.run_ns))
        heapq.heappush(self.away, (self.frees[at] + hop_ns / 2, caller, self.now_ns))

    def _ask(self, caller: int) -> Admission:
        if self.spent_ns <= 0:
            self.first = caller
        others = bool(self.away or self.waiting) or self.first != caller
        self.company.note(has_others=others, others=len(self.away) + len(self.waiting))
        self.estimate.is_beside = self.company.is_usual and self._side_by_side()
        servers = self.servers if self.estimate.is_beside or not self.company.is_usual else 0
        run_ns = self._length_ns()
        busy = sum(free > self.now_ns for free in self.frees)
        fits = self.spent_ns <= 0 or self.spent_ns + run_ns <= STALL_NS
        return quickest(
            self.decisions,
            run_ns=run_ns,
            worker_run_ns=self.run_ns,
            has_room=fits and not self.waiting and not (self.away and self.spent_ns > 0),
            waiting=len(self.waiting),
            ahead_ns=len(self.waiting) * run_ns,
            delays_ns=delay_ns(run_ns, [end - self.now_ns for end, _, _ in self.away]),
            expects_company=self.company.is_usual,
            free_workers=servers - busy,
            backlog_ns=sum(max(0.0, free - self.now_ns) for free in self.frees),
            servers=servers,
        )

    def _side_by_side(self) -> bool:
        if self.spreads is None:
            known = self.estimate
            known.spreads = pays_to_spread(
                self.decisions,
                alone_ns=known.alone_ns,
                beside_ns=known.beside_ns,
                worker_ns=known.worker_ns,
                servers=self.servers,
                others=self.company.others,
                did=known.spreads,
            )
            return known.spreads
        return self.spreads

    def _length_ns(self) -> float:
        return self.run_ns if self.estimate.is_beside else self.alone_ns

    def _run(self, called_ns: float) -> None:
        run_ns = self._length_ns()
        self.estimate.learn_manner(int(run_ns))
        self.now_ns += run_ns
        self.spent_ns += run_ns
        self.latencies.append(self.now_ns - called_ns)


SECOND_NS = 1e9


@pytest.mark.parametrize("cores", [1, 2, 16])
@pytest.mark.parametrize("run_us", [50, 150, 400, 900])
@pytest.mark.parametrize(("hop_us", "cold_hop_us"), [(20, 60), (100, 350)])
def test_one_in_flight_keeps_its_latency(
    cores: int, run_us: int, hop_us: int, cold_hop_us: int
) -> None:
    machine = Machine(cores, run_us * US, hop_us, cold_hop_us)
    machine.calls(1, SECOND_NS)
    assert machine.spread == 0
    assert max(machine.latencies) <= run_us * US + machine.decisions.turn_ns
    assert machine.longest_turn_ns <= STALL_NS


@pytest.mark.parametrize(
    ("cores", "callers", "share"),
    [(2, 2, 0.85), (2, 4, 0.9), (2, 8, 0.9), (2, 32, 0.9), (16, 8, 0.85), (16, 64, 0.85)],
)
@pytest.mark.parametrize("run_us", [400, 900])
def test_several_in_flight_keep_all_cores_busy(
    cores: int, callers: int, share: float, run_us: int
) -> None:
    machine = Machine(cores, run_us * US)
    rate = machine.calls(callers, SECOND_NS)
    assert rate >= share * min(cores, callers) / (run_us * 1e-6)
    assert machine.longest_turn_ns <= STALL_NS


@pytest.mark.parametrize("cores", [1, 2, 16])
@pytest.mark.parametrize("callers", [2, 8, 32])
@pytest.mark.parametrize("share", [0.2, 0.5, 0.6, 1.0])
def test_several_get_done_about_as_soon_as_the_better_way_would_have_it(
    cores: int, callers: int, share: float
) -> None:
    """Of runs that have others beside them (300 us) and ones with all cores (a share of that)."""
    alone_ns = share * 300 * US

    def rate(*, spreads: bool | None) -> float:
        machine = Machine(cores, 300 * US, alone_ns=alone_ns, spreads=spreads)
        return machine.calls(callers, SECOND_NS / 10)

    best = max(rate(spreads=True), rate(spreads=False))
    assert rate(spreads=None) >= 0.9 * best


@pytest.mark.parametrize("callers", [1, 2, 8, 32])
def test_a_single_core_is_never_left_for_a_worker(callers: int) -> None:
    machine = Machine(1, 400 * US)
    rate = machine.calls(callers, SECOND_NS)
    assert machine.spread == 0
    assert rate >= 0.95 / 400e-6


@pytest.mark.parametrize("callers", [2, 8])
def test_where_hops_cost_more_than_runs_nothing_is_spread_too_soon(callers: int) -> None:
    alone = Machine(1, 100 * US, 300, 800)
    spread = Machine(2, 100 * US, 300, 800)
    assert spread.calls(callers, SECOND_NS) >= 0.95 * alone.calls(callers, SECOND_NS)


def test_slower_runs_beside_others_are_taken_into_account() -> None:
    """Where the interpreter lock or one core is shared, a worker ends no sooner."""
    for worker_run_us in (400, 700, 1000):
        found = asked(expects_company=True, worker_run_ns=worker_run_us * US)
        assert (found is SPREAD) == (60 + worker_run_us < 0.875 * 800)


def test_what_a_half_core_container_decides() -> None:
    """A quota below one core allows one execution at once: nothing spins and nothing is spread."""
    slow = msgspec.structs.replace(MACHINE, hop_ns=1 * MS, cold_hop_ns=5 * MS)
    assert asked(slow, expects_company=True, servers=0, free_workers=0) is RUN
    assert asked(slow, has_room=False, servers=0, free_workers=0) is NEXT_TURN


@pytest.mark.parametrize(
    ("left_us", "coming", "queued", "leaves"),
    [
        ((), 0, 1, False),
        ((), 1, 1, True),
        ((), 1, 2, False),
        ((109,), 0, 1, True),
        ((111,), 0, 1, False),
        ((10, 20), 0, 2, True),
        ((10, 500), 0, 2, False),
        ((10,), 1, 2, True),
    ],
)
def test_the_loop_leaves_what_workers_take_before_half_of_a_run_here(
    left_us: tuple[int, ...], coming: int, queued: int, *, leaves: bool
) -> None:
    left_ns = [each * US for each in left_us]
    assert leaves_to_workers(200 * US, 20 * US, left_ns, coming, queued) is leaves
