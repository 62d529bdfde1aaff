"""Clients of a scheduler get their shares, whatever the priorities and numbers of their jobs."""

from __future__ import annotations

import heapq
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnasync.errors import DeviceUnavailable, ResourceExhaustedTransient
from nnasync.hal import Priority
from nnasync.scheduler import NEVER_NS, Estimate, Job, Scheduler

LOW, MEDIUM, HIGH = Priority.LOW, Priority.MEDIUM, Priority.HIGH
ALL = (HIGH, MEDIUM, LOW)
US = 1_000
MS = 1_000_000


class Arrival(NamedTuple):
    """A job that a test submits: `client` counts from 0."""

    at_ns: int
    client: int
    priority: Priority
    length_ns: int


class Piece(NamedTuple):
    """A client's job that ran."""

    client: int
    begun_ns: int
    ended_ns: int


class Bench:
    """A scheduler, servers that run what it hands out, and time that jumps."""

    def __init__(self, clients: int, *, servers: int = 1, knows: bool = True) -> None:
        self.queue = Scheduler(servers=servers, queue_limit=10**6, aging_ns=NEVER_NS)
        self.clients = [self.queue.open_client(queue_limit=10**6) for _ in range(clients)]
        self.servers = servers
        self.knows = knows
        self.pieces: list[Piece] = []
        self.backlogged: list[list[tuple[int, int]]] = [[] for _ in range(clients)]

    def job(self, client: int, priority: Priority, length_ns: int) -> Job:
        estimate = Estimate()
        if self.knows:
            estimate.ns = length_ns
        return Job(priority, estimate, client=self.clients[client])

    def run(self, arrivals: list[Arrival]) -> None:
        """Run all of it to its end; notes what ran when, and who had something queued when."""
        lengths: dict[Job, int] = {}
        coming = sorted(arrivals)
        running: list[tuple[int, int, Job, int]] = []
        since: dict[int, int] = {}
        now_ns = 0
        while coming or running or self.queue.queued(ALL):
            while coming and coming[0].at_ns <= now_ns:
                _, client, priority, length_ns = coming.pop(0)
                new = self.job(client, priority, length_ns)
                lengths[new] = length_ns
                self.queue.submit(new, now_ns)
            while len(running) < self.servers and (job := self.queue.next(now_ns, ALL)):
                entry = (now_ns + lengths[job], len(self.pieces), job, now_ns)
                heapq.heappush(running, entry)
                self.pieces.append(Piece(self.clients.index(job.client), now_ns, entry[0]))
            self._note(since, now_ns)
            ends = [running[0][0]] if running else []
            now_ns = min([*ends, *(each.at_ns for each in coming[:1])], default=now_ns)
            while running and running[0][0] <= now_ns:
                ended_ns, _, done, begun_ns = heapq.heappop(running)
                self.queue.ran(done, ended_ns - begun_ns)
        self._note(since, now_ns)

    def service(self, client: int, begin_ns: int, end_ns: int) -> int:
        """How long a client's jobs ran within a time."""
        return sum(
            max(0, min(piece.ended_ns, end_ns) - max(piece.begun_ns, begin_ns))
            for piece in self.pieces
            if piece.client == client
        )

    def _note(self, since: dict[int, int], now_ns: int) -> None:
        for number, client in enumerate(self.clients):
            if self.queue.queued_of(client):
                since.setdefault(number, now_ns)
            elif number in since:
                begun_ns = since.pop(number)
                if begun_ns < now_ns:
                    self.backlogged[number].append((begun_ns, now_ns))


lengths = st.integers(1, 40).map(lambda each: each * US)
arrivals = st.lists(
    st.builds(Arrival, st.integers(0, 1000 * US), st.integers(0, 3), st.sampled_from(ALL), lengths),
    min_size=1,
    max_size=80,
)


@given(arrivals, st.integers(1, 3), st.booleans())
def test_whoever_waits_gets_a_share(wanted: list[Arrival], servers: int, knows: bool) -> None:
    """Within one execution length for each client and server, over any arrivals."""
    bench = Bench(4, servers=servers, knows=knows)
    bench.run(wanted)
    assert len(bench.pieces) == len(wanted)
    longest = max(each.length_ns for each in wanted)
    for client, spans in enumerate(bench.backlogged):
        for begin_ns, end_ns in spans:
            fair = servers * (end_ns - begin_ns) / len(bench.clients)
            assert bench.service(client, begin_ns, end_ns) >= fair - 2 * servers * longest


@given(
    st.lists(st.lists(lengths, min_size=30, max_size=30), min_size=2, max_size=5),
    st.lists(st.sampled_from(ALL), min_size=5, max_size=5),
)
def test_of_two_that_always_wait_none_is_more_than_one_execution_ahead(
    work: list[list[int]], priorities: list[Priority]
) -> None:
    bench = Bench(len(work))
    bench.run(
        [
            Arrival(0, client, priorities[client], length)
            for client, lengths in enumerate(work)
            for length in lengths
        ]
    )
    had = [0] * len(work)
    left = [len(each) for each in work]
    longest = max(max(each) for each in work)
    for piece in bench.pieces:
        had[piece.client] += piece.ended_ns - piece.begun_ns
        left[piece.client] -= 1
        if not all(left):
            break
        assert max(had) - min(had) <= longest


@given(st.integers(1, 8), st.lists(lengths, min_size=200, max_size=200))
def test_whose_jobs_are_longer_gets_fewer_of_them(factor: int, work: list[int]) -> None:
    """Shares are of time, and equal."""
    queue = Scheduler(servers=1, queue_limit=1)
    long, short = queue.open_client(queue_limit=10**6), queue.open_client(queue_limit=10**6)
    had = {long: 0, short: 0}
    for length_ns in work:
        for client, times in ((long, factor), (short, 1)):
            estimate = Estimate()
            estimate.ns = times * length_ns
            queue.submit(Job(MEDIUM, estimate, client=client), 0)
    while queue.queued_of(long) and queue.queued_of(short):
        job = queue.next(0, ALL)
        assert job is not None
        queue.ran(job, int(job.estimate.ns))
        had[job.client] += int(job.estimate.ns)
        assert abs(had[long] - had[short]) <= factor * max(work)


def test_high_of_one_client_delays_another_by_no_more_than_its_share() -> None:
    bench = Bench(2)
    flood = [Arrival(0, 0, HIGH, 10 * US) for _ in range(100)]
    patient = [Arrival(500 * US, 1, LOW, 10 * US) for _ in range(10)]
    bench.run(flood + patient)
    ends = [piece.ended_ns for piece in bench.pieces if piece.client == 1]
    assert ends[0] <= 520 * US
    assert ends[-1] <= (500 + 10 * 20) * US


def test_priorities_count_within_a_client() -> None:
    bench = Bench(2)
    bench.run([Arrival(0, c, p, US) for c in (0, 1) for p in (LOW, MEDIUM, HIGH)])
    assert [piece.client for piece in bench.pieces] == [0, 1] * 3
    queue = Scheduler(servers=1, queue_limit=1)
    mine = queue.open_client(queue_limit=10)
    for priority in (LOW, HIGH, MEDIUM):
        queue.submit(Job(priority, Estimate(), client=mine), 0)
    handed = [queue.next(0, ALL) for _ in range(3)]
    assert [job.priority for job in handed if job is not None] == [HIGH, MEDIUM, LOW]


def test_nobody_saves_up_and_nobody_is_billed_for_what_he_had_alone() -> None:
    bench = Bench(2)
    alone = [Arrival(0, 0, MEDIUM, 10 * US) for _ in range(100)]
    bench.run(alone)
    begin = len(bench.pieces)
    at_ns = bench.pieces[-1].ended_ns
    bench.run([Arrival(at_ns, client, MEDIUM, 10 * US) for _ in range(20) for client in (0, 1)])
    order = [piece.client for piece in bench.pieces[begin:]]
    for place in range(2, len(order), 2):
        assert abs(order[:place].count(0) - place // 2) <= 1


def test_what_runs_past_the_queue_is_charged() -> None:
    queue = Scheduler(servers=1, queue_limit=1)
    inline, queued = queue.open_client(queue_limit=9), queue.open_client(queue_limit=9)
    assert not queue.is_over(inline)
    queue.spent(inline, 5 * MS)
    assert not queue.is_over(inline)
    queue.submit(Job(MEDIUM, Estimate(), client=queued), 0)
    assert queue.is_over(inline)
    assert not queue.is_over(queued)
    queue.submit(Job(HIGH, Estimate(), client=inline), 0)
    first = queue.next(0, ALL)
    assert first is not None
    assert first.client == queued


def test_work_that_was_underestimated_is_charged_when_it_has_run() -> None:
    queue = Scheduler(servers=1, queue_limit=1)
    long, short = queue.open_client(queue_limit=99), queue.open_client(queue_limit=99)
    for _ in range(20):
        queue.submit(Job(HIGH, Estimate(), client=long), 0)
        queue.submit(Job(LOW, Estimate(), client=short), 0)
    order = []
    for _ in range(12):
        job = queue.next(0, ALL)
        assert job is not None
        queue.ran(job, (10 if job.client == long else 1) * MS)
        order.append(job.client)
    assert order.count(short) == 10


@given(st.integers(0, 6), st.integers(1, 200))
def test_aging_holds_beside_other_clients(flooders: int, every_ns: int) -> None:
    """LOW below its own client's HIGH is handed out once it is due, beside floods of others."""
    aging_ns = 1000
    queue = Scheduler(servers=1, queue_limit=1, aging_ns=aging_ns)
    mine = queue.open_client(queue_limit=10**6)
    others = [queue.open_client(queue_limit=10**6) for _ in range(flooders)]
    waiting = Job(LOW, Estimate(), client=mine)
    queue.submit(waiting, 0)
    now_ns = 0
    while waiting.queued:
        for client in (mine, *others):
            queue.submit(Job(HIGH, Estimate(), client=client), now_ns)
        job = queue.next(now_ns, ALL)
        assert job is not None
        queue.ran(job, every_ns)
        now_ns += every_ns
    assert aging_ns <= now_ns <= aging_ns + 2 * every_ns
    assert waiting.shielded_until_ns > 0


def test_low_of_a_client_behind_goes_before_high_of_one_ahead() -> None:
    queue = Scheduler(servers=1, queue_limit=9)
    busy, patient = queue.open_client(queue_limit=9), queue.open_client(queue_limit=9)
    running = Job(LOW, Estimate(), client=busy)
    queue.submit(running, 0)
    assert queue.next(0, ALL) is running
    queue.spent(busy, MS)
    queue.submit(Job(HIGH, Estimate(), client=busy), 0)
    assert not queue.low_goes_first()
    queue.submit(Job(LOW, Estimate(), client=patient), 0)
    assert queue.low_goes_first()


def test_a_client_ahead_displaces_only_its_own() -> None:
    queue = Scheduler(servers=1, queue_limit=9)
    ahead, behind = queue.open_client(queue_limit=9), queue.open_client(queue_limit=9)
    jobs: dict[int, Job] = {}
    for client in (ahead, behind):
        queue.submit(jobs.setdefault(client, Job(LOW, Estimate(), client=client)), 0)
        queue.next(0, ALL)
    queue.spent(ahead, MS)
    queue.submit(Job(HIGH, Estimate(), client=ahead), 0)
    assert queue.displaces(jobs[ahead], HIGH)
    assert not queue.displaces(jobs[behind], HIGH)
    queue.submit(Job(MEDIUM, Estimate(), client=behind), 0)
    assert queue.displaces(jobs[ahead], MEDIUM)
    assert not queue.displaces(Job(HIGH, Estimate(), client=ahead), HIGH)


def test_each_client_has_a_queue_of_its_own_length() -> None:
    queue = Scheduler(servers=1, queue_limit=1)
    small, other = queue.open_client(queue_limit=2), queue.open_client(queue_limit=1)
    for _ in range(2):
        queue.submit(Job(HIGH, Estimate(), client=small), 0)
    with pytest.raises(ResourceExhaustedTransient, match="2 executions are queued already"):
        queue.submit(Job(HIGH, Estimate(), client=small), 0)
    queue.submit(Job(LOW, Estimate(), client=other), 0)
    queue.submit(Job(LOW, Estimate()), 0)
    assert queue.statistics().refused == 1


def test_a_client_that_is_closed_is_forgotten_when_nothing_of_it_is_left() -> None:
    queue = Scheduler(servers=1, queue_limit=9)
    client = queue.open_client(queue_limit=9)
    queued, running, late = (
        Job(priority, Estimate(), deadline_ns, client)
        for priority, deadline_ns in ((LOW, NEVER_NS), (HIGH, NEVER_NS), (MEDIUM, 10))
    )
    for each in (queued, running, late):
        queue.submit(each, 0)
    assert queue.next(0, ALL) is running
    queue.close_client(client)
    with pytest.raises(DeviceUnavailable):
        queue.submit(Job(HIGH, Estimate(), client=client), 0)
    queue.requeue(running, 0)
    queue.ran(running, 1)
    assert queue.next(20, (HIGH,)) is running
    assert queue.next(20, (MEDIUM,)) is None
    assert queue.take_expired() == [late]
    queue.withdraw(queued)
    shared = [queue.is_shared]
    queue.ran(running, 1)
    assert [*shared, queue.is_shared] == [True, False]
    queue.close_client(client)
    queue.spent(client, MS)
    queue.ran(queued, 1)
