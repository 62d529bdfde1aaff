"""Several calls in flight: nnasync beside the best of the peers' ways, in one process.

For each network and each number of clients every contestant has a short turn per round, and the
order turns from round to round. What is asked of the throughput and of the median latency is held
against the ratio to the best peer of that network, with an interval of 95 % over the rounds: it
holds, it does not, or the rounds cannot tell. Processor time of a call, of all threads of the
process, says what each takes where other work has a part of the cores.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import nnasync as nn
from benchmarks._report import BEST, arguments, models_folder, publish, table
from benchmarks._verdicts import ratios, told, verdict
from benchmarks.peers.asyncio_use import USES
from benchmarks.peers.awaited import Infer, drive
from benchmarks.peers.catalog import Entry, input_arrays
from benchmarks.peers.engines import reason

MODELS = (
    "micro_speech_quantized",
    "mobilenet_v1_0.25_128",
    "mobilenet_v1_0.5_160_quant",
    "mobilenet_v2_1.0_224_quant",
)
CLIENTS = (2, 4, 8, 32)
OURS = "nnasync"
STALL_LIMIT_MS = 1.5

Turns = dict[str, list[dict[str, float]]]


async def contestants(runtime: nn.Runtime, entry: Entry, peers: list[str]) -> dict[str, Infer]:
    """Returns nnasync and the peers that take the network."""
    model = nn.load(entry.path)
    arrays = input_arrays(model)
    net = await runtime.compile(model, options=BEST)
    await net.optimized()
    found: dict[str, Infer] = {OURS: lambda: net(*arrays)}
    for name, make in USES.items():
        if not any(each in name for each in peers):
            continue
        try:
            use = make(entry)
            await use.infer()
        except Exception as error:
            print(f"{entry.name}: {name}: {reason(error)}")
        else:
            found[name] = use.infer
    return found


async def turns_of(ways: dict[str, Infer], clients: int, rounds: int, seconds: float) -> Turns:
    """Returns the turns of each contestant with so many clients, in the order of the rounds."""
    turns: Turns = {name: [] for name in ways}
    names = list(ways)
    for number in range(rounds):
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            before_s = time.process_time()
            found = await drive(ways[name], clients, seconds)
            # Its warm-up, which is a fifth as long, is among it on both sides.
            calls = found["per_second"] * seconds * 1.2
            found["processor_us"] = (time.process_time() - before_s) / calls * 1e6
            turns[name].append(found)
    return turns


def row_of(name: str, clients: int, turns: Turns) -> list[str]:
    """Returns the table row of one network with so many clients."""
    means = {who: sum(each["per_second"] for each in of) / len(of) for who, of in turns.items()}
    peers = [who for who in turns if who != OURS]
    best = max(peers, key=means.__getitem__)

    def compared(key: str) -> tuple[float, float, float]:
        mine, other = ([each[key] for each in turns[who]] for who in (OURS, best))
        return ratios(mine, other)

    rate, wait, spent = compared("per_second"), compared("p50_us"), compared("processor_us")
    stalls = sorted(each["stall_p99_ms"] for each in turns[OURS])
    stall_ms = stalls[len(stalls) // 2]
    return [
        f"{name}, {clients}",
        best,
        f"{means[OURS]:.0f} : {means[best]:.0f}",
        told(*rate),
        verdict(rate[1], rate[2], at_least=1.0),
        told(*wait),
        verdict(wait[1], wait[2], at_most=1.0),
        f"{spent[0]:.2f}",
        f"{stall_ms:.2f}",
        "yes" if stall_ms < STALL_LIMIT_MS else "no",
    ]


async def measure(options: Any) -> None:
    """Measures each network, and prints a table."""
    folder, rows, found = models_folder(options.models), list[list[str]](), dict[str, Any]()
    async with nn.open_runtime() as runtime:
        for name in options.only or MODELS:
            entry = Entry(name, str(folder / f"{name}.tflite"))
            ways = await contestants(runtime, entry, options.peers)
            if len(ways) < 2:
                continue
            for clients in options.clients:
                turns = await turns_of(ways, clients, options.rounds, options.seconds)
                found[f"{name}, {clients}"] = turns
                rows.append(row_of(name, clients, turns))
    heads = ["network, in flight", "best peer", "per second", "ratio", "at least 1"]
    heads += ["p50, ratio", "at most 1", "processor time", "stall p99 ms", f"< {STALL_LIMIT_MS}"]
    publish("In flight", table(heads, rows), found, options)


def main() -> None:
    """Measure and print."""
    parser = arguments(__doc__, rounds=9)
    parser.add_argument("--models", type=Path, metavar="FOLDER", help="the reference models")
    parser.add_argument("--only", nargs="*", metavar="NAME", help="these networks (all four)")
    parser.add_argument("--clients", nargs="*", type=int, default=CLIENTS, help="%(default)s")
    parser.add_argument(
        "--peers",
        nargs="*",
        default=["executor", "Queue"],
        help="words of their names (%(default)s)",
    )
    parser.add_argument("--seconds", type=float, default=0.2, help="of each turn (%(default)s)")
    nn.run(measure, parser.parse_args())


if __name__ == "__main__":
    main()
