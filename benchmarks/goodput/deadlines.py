"""Deadlines and priorities of `nnasync serve` under load: `python -m benchmarks.goodput.deadlines`.

The server and the network are those of the goodput benchmark. First there are urgent requests
(priority 1) alone, some every second, and then beside more of priority 3 than the machine can do,
which another process sends: by how much do the urgent ones become slower? At the end there are 1.5
times as many requests as can be done, of both kinds, from clients that do not hang up: how late are
the answers of those that are not served by their deadlines? The client tells it from the planned
arrival on, which has in it what the client itself and the sending of the request take; the server
tells in its metrics how late it was by its own clock, from when it had read the header. Beside each
load runs a loop that does nothing but sleep (`idle_loop`): that late is on this machine whoever
waits for a timer. With
`--real-time` the server has that option.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path

import uvloop

from benchmarks._report import arguments, models_folder, percentile, publish, table
from benchmarks.goodput.__main__ import MODEL, SETTLING_S, capacity_hz
from benchmarks.goodput.clients import KINDS, Answer, Kind, answers, arrivals
from benchmarks.goodput.flood import FLOOD, flood
from benchmarks.goodput.idle_loop import idle_loop
from benchmarks.goodput.servers import contestants, served

ALONE_HZ = 25.0
URGENT = Kind("urgent", 1.0, 1000, 1)
"""They have time: it is their latency that is asked."""
PATIENCE_S = 1.0
IDLE = "timers of an idle loop"
_BUCKET = re.compile(r'^nnasync_serving_late_seconds_bucket\{.*le="(.+)"\} (\d+)$', re.MULTILINE)


def urgent_ms(port: int, request: bytes, duration_s: float, seed: int) -> list[float]:
    """How long urgent requests took that were served, some every second."""
    plan = arrivals(ALONE_HZ, duration_s, seed, (URGENT,))
    found = uvloop.run(answers(port, [request], plan, (URGENT,)))
    return [each.after_ms for each in found if each.status == 200]


def lateness_ms(found: Sequence[Answer]) -> list[float]:
    """How long after its deadline each request was told that it had been missed."""
    missed = (each for each in found if each.status not in (200, -1))
    late = (each.after_ms - KINDS[each.kind].deadline_ms for each in missed)
    return [each for each in late if each > 0]


def told_by(port: int) -> dict[float, int]:
    """How many errors the server made so long after their deadlines at most, in seconds."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    return {float(bound): int(count) for bound, count in _BUCKET.findall(text)}


def within(before: dict[float, int], after: dict[float, int]) -> list[tuple[float, int]]:
    """How many there were meanwhile, by how late they were at most."""
    return [(bound_s, after[bound_s] - before.get(bound_s, 0)) for bound_s in sorted(after)]


def measured(
    options: argparse.Namespace, model: Path
) -> tuple[dict[str, list[float]], list[tuple[float, int]]]:
    """The figures of all rounds, by the row of the table, and what the server says of errors."""
    rate_hz, tensor = capacity_hz(model)
    contestant = contestants(model, real_time=options.real_time)["nnasync"]
    urgent, flooding = (contestant.request(tensor, kind) for kind in (URGENT, FLOOD))
    both = [contestant.request(tensor, kind) for kind in KINDS]
    found: dict[str, list[float]] = {"alone": [], "beside a flood": [], "late": []}
    for name in tuple(found):
        found[f"{IDLE}, {name}"] = []
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log")
        with served(contestant, sys.executable, model, urgent, log) as port:
            uvloop.run(answers(port, both, arrivals(rate_hz / 3, SETTLING_S, 1)))
            before = told_by(port)
            for number in range(options.rounds):
                seed = random.Random(number).randrange(2**30)
                load = urgent, options.seconds, seed
                with idle_loop() as idle:
                    found["alone"] += urgent_ms(port, *load)
                found[f"{IDLE}, alone"] += idle.late_ms
                time.sleep(0.5)
                with (
                    idle_loop() as idle,
                    flood(port, flooding, 1.5 * rate_hz, options.seconds, seed + 1),
                ):
                    found["beside a flood"] += urgent_ms(port, *load)
                found[f"{IDLE}, beside a flood"] += idle.late_ms
                time.sleep(0.5)
                plan = arrivals(1.5 * rate_hz, options.seconds, seed)
                with idle_loop() as idle:
                    over = uvloop.run(answers(port, both, plan, patience_s=PATIENCE_S))
                found["late"] += lateness_ms(over)
                found[f"{IDLE}, late"] += idle.late_ms
                time.sleep(0.5)
            told = within(before, told_by(port))
    return found, told


def main() -> None:
    """Measure and print."""
    parser = arguments(__doc__, rounds=3)
    parser.add_argument("--models", type=Path, help="the folder of the reference models")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each load (%(default)s)")
    parser.add_argument("--real-time", action="store_true", help="serve with --real-time")
    options = parser.parse_args()
    found, told = measured(options, models_folder(options.models) / MODEL)
    rows = []
    for name, values in found.items():
        shares = [f"{percentile(values, share):.2f}" for share in (0.5, 0.9, 0.99)]
        rows.append([name, str(len(values)), *shares])
    alone, flooded = (percentile(found[name], 0.99) for name in ("alone", "beside a flood"))
    text = table(["ms", "requests", "p50", "p90", "p99"], rows)
    ratio = f"p99 of urgent requests beside a flood: {flooded / alone:.2f} times that alone"
    late = ", ".join(f"{count} within {bound_s * 1000:g} ms" for bound_s, count in told)
    said = f"{text}\n\n{ratio}\nerrors by the clock of the server: {late}"
    figures = {**found, "late by the server": told}
    publish("Deadlines of a server", said, figures, options.json, keep=options.keep)


if __name__ == "__main__":
    main()
