"""HIGH beside LOW against HIGH alone, in short rounds of one process, with an interval.

HIGH is released every 10 ms by a timer of the system and counts from its expiry, as in `peers
--only qos`. In each round it runs for a second alone, for a second beside four LOW clients in the
same runtime, and, with `--service`, beside as many whose device is isolated; the order turns from
round to round. All networks are prepared the whole time, so nothing but the load differs. What is
asked of the difference of the hits and of the ratio of the p99 is held against an interval of 95 %
over the rounds: it holds, it does not, or the rounds cannot tell. Disturbed rounds count: both
sides of a pair had the same machine.

Beside it stands how often the thread of the loop gave its core up for each HIGH call, for the lock
of the interpreter or for work, and how often it lost it.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import nnasync as nn
from benchmarks._report import BEST, arguments, models_folder, publish, table
from benchmarks._verdicts import differences, ratios, told, verdict
from benchmarks.peers.catalog import Entry, input_arrays
from benchmarks.peers.qos import HIGH, LOW, LOW_CLIENTS, Drive

ALONE, BESIDE, SERVICE = "HIGH alone", "beside LOW", "beside LOW in a service"
POINTS, P99_RATIO = -1.0, 1.5
WITHIN = ("within_2ms", "within_10ms")
LOW_DEVICE = "litert-cpu"


class Pair:
    """The two networks that a `Drive` calls."""

    def __init__(self, high: Any, low: Any) -> None:
        self.high, self.low = high, low


async def prepared(runtime: nn.Runtime, entry: Entry, priority: nn.Priority, **more: Any) -> Any:
    """Returns a function that calls a network."""
    model = nn.load(entry.path)
    arrays = input_arrays(model)
    preference = nn.Preference.SUSTAINED_SPEED
    net = await runtime.compile(
        model, priority=priority, preference=preference, options=BEST, **more
    )
    await net(*arrays)
    return lambda: net(*arrays)


async def turn(pair: Pair, seconds: float) -> dict[str, float]:
    """Runs one contestant for one round, and returns its figures."""
    before = resource.getrusage(resource.RUSAGE_THREAD)
    found: dict[str, float] = await Drive(pair).run(seconds)
    after = resource.getrusage(resource.RUSAGE_THREAD)
    calls = seconds * 100
    found["gave_up"] = (after.ru_nvcsw - before.ru_nvcsw) / calls
    found["lost"] = (after.ru_nivcsw - before.ru_nivcsw) / calls
    return found


async def measure(options: Any) -> dict[str, list[dict[str, float]]]:
    """Returns the turns of each contestant, in the order of the rounds."""
    folder = models_folder(options.models)
    high, low = (Entry(name, str(folder / f"{name}.tflite")) for name in (HIGH, LOW))
    settings = nn.Options(low_os_priority=_os_priority(options.low_os_priority))
    async with AsyncExitStack() as stack:
        here = await stack.enter_async_context(nn.open_runtime(options=settings))
        urgent = await prepared(here, high, nn.Priority.HIGH)
        pairs = {
            ALONE: Pair(urgent, None),
            BESIDE: Pair(urgent, await prepared(here, low, nn.Priority.LOW)),
        }
        if options.service:
            opening = nn.open_runtime(devices=[LOW_DEVICE], isolate=[LOW_DEVICE])
            apart = await stack.enter_async_context(opening)
            there = await prepared(apart, low, nn.Priority.LOW, devices=[LOW_DEVICE])
            pairs[SERVICE] = Pair(urgent, there)
        turns: dict[str, list[dict[str, float]]] = {name: [] for name in pairs}
        names, end = list(pairs), time.monotonic() + options.at_most
        for number in range(options.rounds):
            shift = number % len(names)
            for name in names[shift:] + names[:shift]:
                turns[name].append(await turn(pairs[name], options.seconds))
            if time.monotonic() > end:
                break
    return turns


def _os_priority(text: str) -> Any:
    return {"true": True, "false": False}.get(text, text)


def column(turns: Sequence[dict[str, float]], key: str) -> list[float]:
    return [each[key] for each in turns]


def verdicts(turns: dict[str, list[dict[str, float]]]) -> list[list[str]]:
    """Returns a row for each question of the comparison."""
    rows = []
    for name in list(turns)[1:]:
        for key in WITHIN:
            found = differences(column(turns[name], key), column(turns[ALONE], key))
            span = f"{found.mean:+.2f} ({found.low:+.2f} to {found.high:+.2f})"
            kept = verdict(found.low, found.high, at_least=POINTS)
            rows.append([f"{name}: {key[7:]}, points", span, f"at least {POINTS:g}", kept])
        middle, low, high = ratios(column(turns[name], "p99_ms"), column(turns[ALONE], "p99_ms"))
        kept = verdict(low, high, at_most=P99_RATIO)
        rows.append(
            [f"{name}: p99, ratio", told(middle, low, high), f"at most {P99_RATIO:g}", kept]
        )
    if SERVICE in turns:
        found = differences(column(turns[SERVICE], WITHIN[0]), column(turns[BESIDE], WITHIN[0]))
        span = f"{found.mean:+.2f} ({found.low:+.2f} to {found.high:+.2f})"
        kept = verdict(found.low, found.high, at_least=0.0)
        rows.append(["a service instead of here: 2ms, points", span, "at least 0", kept])
        middle, low, high = ratios(
            column(turns[SERVICE], "low_per_s"), column(turns[BESIDE], "low_per_s")
        )
        span = told(middle, low, high)
        rows.append(["a service instead of here: LOW, ratio", span, "", ""])
    return rows


def report(turns: dict[str, list[dict[str, float]]], options: Any) -> None:
    """Prints means, and the verdicts on them."""
    keys = (*WITHIN, "p50_ms", "p99_ms", "worst_ms", "low_per_s", "gave_up", "lost")
    rows = []
    for name, each in turns.items():
        means = (sum(column(each, key)) / len(each) for key in keys)
        rows.append([name, *(f"{mean:.2f}" for mean in means)])
    heads = ["mean of the rounds", "% in 2 ms", "% in 10 ms", "p50 ms", "p99 ms", "worst ms"]
    heads += ["LOW per s", "gave up", "lost"]
    text = table(heads, rows)
    asked = [f"{len(turns[ALONE])} rounds of {options.seconds:g} s", "found", "asked", ""]
    text += f"\n\n{LOW_CLIENTS} LOW clients\n\n{table(asked, verdicts(turns))}"
    publish("HIGH beside LOW, in pairs", text, turns, options)


def main() -> None:
    """Measure and print."""
    parser = arguments(__doc__, rounds=30)
    parser.add_argument("--models", type=Path, metavar="FOLDER", help="the reference models")
    parser.add_argument("--seconds", type=float, default=1.0, help="of each turn (%(default)s)")
    parser.add_argument(
        "--at-most", type=float, default=600, help="begin no round after so many seconds"
    )
    parser.add_argument(
        "--low-os-priority",
        default="auto",
        choices=["auto", "quiet", "alone", "true", "false"],
        help="of the runtime (%(default)s)",
    )
    parser.add_argument("--service", action="store_true", help="also LOW in an isolated device")
    options = parser.parse_args()
    report(nn.run(measure, options), options)


if __name__ == "__main__":
    main()
