"""Deadlines and priorities of `nnasync serve` under load: `python -m benchmarks.goodput.deadlines`.

The server and the network are those of the goodput benchmark. First there are urgent requests
(priority 1) alone, some every second, and then beside more of priority 3 than the machine can do,
which another process sends: by how much do the urgent ones become slower? That is told from the
planned arrival on, and from when the client came to send it, since a client waits for a core as
all do; with intervals of 95 %, which are wide for few rounds (`--only-urgent` leaves time for
more). At the end there are 1.5 times as many requests as can be done, of both kinds, from clients
that do not hang up: how late are the answers of those that are not served by their deadlines? The
client tells it from the planned arrival on, which has in it what the client itself and the sending
of the request take; the server tells in its metrics how late it was by its own clock, from when it
had read the header. Beside each load runs a loop that does nothing but sleep (`idle_loop`): that
late is on this machine whoever waits for a timer. With `--real-time` the server has that option,
and so have that loop and the client of urgent requests, which else would wait for a core beside the
one that sends the flood.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import re
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

import uvloop

from benchmarks._report import arguments, models_folder, percentile, publish, table
from benchmarks._tails import tail_ratio
from benchmarks._verdicts import told, verdict
from benchmarks.goodput.__main__ import MODEL, SETTLING_S, capacity_hz
from benchmarks.goodput.clients import KINDS, Answer, Kind, answers, arrivals
from benchmarks.goodput.flood import FLOOD, flood
from benchmarks.goodput.idle_loop import ahead_of_all, idle_loop
from benchmarks.goodput.servers import contestants, served

ALONE_HZ = 25.0
URGENT = Kind("urgent with time", 1.0, 1000, 1)
"""They have time: it is their latency that is asked."""
MOST_TIMES = 1.5
IN_TIME_S = 0.002
PATIENCE_S = 1.0
IDLE = "timers of an idle loop"
_BUCKET = re.compile(r'^nnasync_serving_late_seconds_bucket\{.*le="(.+)"\} (\d+)$', re.MULTILINE)


class Urgent:
    """Latencies of urgent requests that were served, by round; some are sent every second."""

    def __init__(self, *, real_time: bool) -> None:
        """Who asks has a real-time priority, above the server's, if `real_time`."""
        self._real_time = real_time
        self.after_ms: list[list[float]] = []
        self.once_sent_ms: list[list[float]] = []

    def ask(self, port: int, request: bytes, duration_s: float, seed: int) -> None:
        """Sends the urgent requests of a round, and adds their latencies."""
        plan = arrivals(ALONE_HZ, duration_s, seed, (URGENT,))
        with ahead_of_all() if self._real_time else contextlib.nullcontext():
            found = uvloop.run(answers(port, [request], plan, (URGENT,)))
        served = [each for each in found if each.status == 200]
        self.after_ms.append([each.after_ms for each in served])
        self.once_sent_ms.append([each.after_ms - each.sent_ms for each in served])

    def beside(self, alone: Urgent) -> list[str]:
        """Returns lines that compare the p99 with that of urgent requests that were `alone`."""
        lines = []
        for name, mine, others in (
            ("from the planned arrival on", self.after_ms, alone.after_ms),
            ("once sent", self.once_sent_ms, alone.once_sent_ms),
        ):
            middle, low, high = tail_ratio(mine, others)
            says = verdict(low, high, at_most=MOST_TIMES)
            lines.append(
                f"p99 of urgent requests beside a flood, {name}: {told(middle, low, high)} times "
                f"that alone; at most {MOST_TIMES}: {says}"
            )
        return lines


def flat(rounds: Sequence[Sequence[float]]) -> list[float]:
    """Returns the values of all rounds in one list."""
    return [each for values in rounds for each in values]


def lateness_ms(found: Sequence[Answer]) -> list[float]:
    """Returns how many ms after its deadline each missed request was told so."""
    missed = (each for each in found if each.status not in (200, -1))
    late = (each.after_ms - KINDS[each.kind].deadline_ms for each in missed)
    return [each for each in late if each > 0]


def told_by(port: int) -> dict[float, int]:
    """Returns how many errors the server sent, by their upper bounds of lateness in seconds."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    return {float(bound): int(count) for bound, count in _BUCKET.findall(text)}


def within(before: dict[float, int], after: dict[float, int]) -> list[tuple[float, int]]:
    """Returns the counts between two readings, by upper bounds of lateness."""
    return [(bound_s, after[bound_s] - before.get(bound_s, 0)) for bound_s in sorted(after)]


def shares_in_time(by_server: list[tuple[float, int]], idle_ms: Sequence[float]) -> str:
    """Returns a line with the shares of errors, and of an idle loop's timers, that are in time."""
    counts = dict(by_server)
    told, ended, timers = counts[IN_TIME_S], max(counts.values()), len(idle_ms)
    rang = sum(each <= IN_TIME_S * 1000 for each in idle_ms)
    return (
        f"within {IN_TIME_S * 1000:g} ms: {told} of {ended} errors ({told / max(ended, 1):.1%}), "
        f"and {rang} of {timers} timers of the idle loop beside them ({rang / max(timers, 1):.1%})"
    )


class Load:
    """Sends requests of both kinds to one server, and collects their latencies."""

    def __init__(
        self,
        port: int,
        rate_hz: float,
        requests: dict[str, bytes],
        seconds: float,
        *,
        real_time: bool,
    ) -> None:
        self.port, self.rate_hz, self.seconds = port, rate_hz, seconds
        self._requests = requests
        self._real_time = real_time
        self.alone, self.flooded = Urgent(real_time=real_time), Urgent(real_time=real_time)
        self.late_ms: list[float] = []
        self.idle_ms: dict[str, list[float]] = {}

    def urgent(self, seed: int) -> None:
        """Makes a round of urgent requests, first alone and then beside a flood."""
        load = self.port, self._requests[URGENT.name], self.seconds, seed
        with self._idle("alone"):
            self.alone.ask(*load)
        flooding = self._requests[FLOOD.name]
        with (
            self._idle("beside a flood"),
            flood(self.port, flooding, 1.5 * self.rate_hz, self.seconds, seed + 1),
        ):
            self.flooded.ask(*load)

    def too_many(self, seed: int) -> None:
        """Makes a round of more requests than can be served."""
        plan = arrivals(1.5 * self.rate_hz, self.seconds, seed)
        both = [self._requests[kind.name] for kind in KINDS]
        with self._idle("late"):
            over = uvloop.run(answers(self.port, both, plan, patience_s=PATIENCE_S))
        self.late_ms += lateness_ms(over)

    def settle(self) -> None:
        """Sends requests of both kinds until the server has learnt how long its network takes."""
        both = [self._requests[kind.name] for kind in KINDS]
        uvloop.run(answers(self.port, both, arrivals(self.rate_hz / 3, SETTLING_S, 1)))

    @contextlib.contextmanager
    def _idle(self, name: str) -> Iterator[None]:
        with idle_loop(real_time=self._real_time) as idle:
            yield
        self.idle_ms.setdefault(f"{IDLE}, {name}", []).extend(idle.late_ms)
        time.sleep(0.5)

    def figures(self) -> dict[str, list[float]]:
        """Returns what was measured, by the row of the table."""
        return {
            "alone": flat(self.alone.after_ms),
            "beside a flood": flat(self.flooded.after_ms),
            "alone, once sent": flat(self.alone.once_sent_ms),
            "beside a flood, once sent": flat(self.flooded.once_sent_ms),
            "late": self.late_ms,
            **self.idle_ms,
        }


def measured(options: argparse.Namespace, model: Path) -> tuple[Load, list[tuple[float, int]]]:
    """Returns the loads of all rounds, and the server's own counts of late errors."""
    rate_hz, tensor = capacity_hz(model)
    contestant = contestants(model, real_time=options.real_time)["nnasync"]
    kinds = {kind.name: kind for kind in (*KINDS, URGENT, FLOOD)}
    requests = {name: contestant.request(tensor, kind) for name, kind in kinds.items()}
    with tempfile.TemporaryDirectory() as folder:
        first, log = requests[URGENT.name], Path(folder, "log")
        with served(contestant, sys.executable, model, first, log) as port:
            load = Load(port, rate_hz, requests, options.seconds, real_time=options.real_time)
            load.settle()
            before = told_by(port)
            for number in range(options.rounds):
                seed = random.Random(number).randrange(2**30)
                load.urgent(seed)
                if not options.only_urgent:
                    load.too_many(seed)
            return load, within(before, told_by(port))


def main() -> None:
    """Measure and print."""
    parser = arguments(__doc__, rounds=3)
    parser.add_argument("--models", type=Path, help="the folder of the reference models")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each load (%(default)s)")
    parser.add_argument("--real-time", action="store_true", help="serve with --real-time")
    parser.add_argument(
        "--only-urgent", action="store_true", help="not the load with more than can be served"
    )
    options = parser.parse_args()
    load, by_server = measured(options, models_folder(options.models) / MODEL)
    found, rows = load.figures(), []
    for name, values in found.items():
        if values:
            shares = [f"{percentile(values, share):.2f}" for share in (0.5, 0.9, 0.99)]
            rows.append([name, str(len(values)), *shares])
    lines = [table(["ms", "requests", "p50", "p90", "p99"], rows), ""]
    lines += load.flooded.beside(load.alone)
    if not options.only_urgent:
        late = ", ".join(f"{count} within {bound_s * 1000:g} ms" for bound_s, count in by_server)
        lines.append(f"errors by the clock of the server: {late}")
        lines.append(shares_in_time(by_server, found[f"{IDLE}, late"]))
    figures = {**found, "late by the server": by_server}
    publish("Deadlines of a server", "\n".join(lines), figures, options)


if __name__ == "__main__":
    main()
