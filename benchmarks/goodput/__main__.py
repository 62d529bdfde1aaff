"""Goodput: answers within their deadlines under overload, beside the servers that people use.

A server with one LiteRT network on all cores is sent requests at random, of urgent clients (50 ms)
and patient ones (250 ms); see `clients`. A load of 1 is as many as LiteRT alone runs on all cores
in one thread each. Each server is as its own documentation writes it (`hosts`), with as many
workers as cores. Those that have priorities and time-outs of requests are told them (nnasync,
Triton). The client runs on the same cores, and clients that wait no more hang up.

Packages of such servers contradict each other, so each may have a Python of its own:
`python -m benchmarks.goodput --python litserve=/path/to/bin/python ...`.
"""

from __future__ import annotations

import argparse
import importlib
import random
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from benchmarks._report import arguments, cores, models_folder, publish, table
from benchmarks.goodput.clients import KINDS, Tally, arrivals, offered
from benchmarks.goodput.servers import Contestant, Tensor, contestants, random_tensor, served

MODEL = "mobilenet_v2_1.0_224_quant.tflite"
CAPACITY_S = 2.0
"""How long the capacity of the machine is measured."""
LOADS = (0.5, 0.8, 1.0, 1.2, 1.5, 2.0)
WARM_UP_S, SETTLING_S = 1.0, 6.0
"""Before each load; and before the first, while nnasync still measures which engine is fastest."""


def capacity_hz(model: Path) -> tuple[float, Tensor]:
    """Returns how often a second LiteRT runs the network on all cores, and the network's input."""
    engine = importlib.import_module("ai_edge_litert.interpreter")

    def runs(interpreter: Any) -> int:
        count, end_s = 0, time.perf_counter() + CAPACITY_S
        while time.perf_counter() < end_s:
            interpreter.invoke()
            count += 1
        return count

    interpreters = [engine.Interpreter(str(model), num_threads=1) for _ in cores()]
    for each in interpreters:
        each.allocate_tensors()
    taken = interpreters[0].get_input_details()[0]
    with ThreadPoolExecutor(len(interpreters)) as pool:
        rate_hz = sum(pool.map(runs, interpreters)) / CAPACITY_S
    return rate_hz, random_tensor(taken["name"], tuple(int(n) for n in taken["shape"]))


def measured(
    contestant: Contestant, python: str, model: Path, tensor: Tensor, options: argparse.Namespace
) -> dict[float, list[Tally]]:
    """Returns the tallies of requests at each load; a load of 1 is `options.rate_hz`."""
    requests = [contestant.request(tensor, kind) for kind in KINDS]
    found: dict[float, list[Tally]] = {}
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log")
        with served(contestant, python, model, requests[-1], log) as port:
            settling = arrivals(options.rate_hz / 3, SETTLING_S, options.seed)
            uvloop.run(offered(port, requests, settling))
            for load in options.loads:
                rate_hz = load * options.rate_hz
                warm_up = arrivals(rate_hz, WARM_UP_S, options.seed + 1)
                plan = arrivals(rate_hz, options.seconds, options.seed)
                uvloop.run(offered(port, requests, warm_up))
                found[load] = uvloop.run(offered(port, requests, plan))
                time.sleep(max(kind.deadline_ms for kind in KINDS) / 1000)
    return found


def row(name: str, load: float, tallies: list[Tally], seconds: float) -> list[str]:
    """Returns one line of the table."""
    shares = [f"{100 * each.good / max(1, each.submitted):.1f}" for each in tallies]
    total = [sum(getattr(each, what) for each in tallies) for what in ("late", "refused", "failed")]
    good = sum(each.good for each in tallies)
    return [name, f"{load:g}", f"{good / seconds:.0f}", *shares, *(str(each) for each in total)]


def main() -> None:
    """Measure and print."""
    parser = arguments(__doc__, rounds=1)
    parser.add_argument("--model", type=Path, help=f"a .tflite file of UINT8 ({MODEL})")
    parser.add_argument("--models", type=Path, help="the folder of the reference models")
    parser.add_argument("--python", action="append", default=[], metavar="NAME=PATH")
    parser.add_argument("--only", action="append", help="servers (all that are there)")
    parser.add_argument("--loads", type=float, nargs="+", default=LOADS)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each load (%(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--real-time", action="store_true", help="`nnasync serve --real-time`")
    options = parser.parse_args()
    model = options.model or models_folder(options.models) / MODEL
    pythons = dict(each.split("=", 1) for each in options.python)
    options.rate_hz, tensor = capacity_hz(model)
    names = options.only or ["nnasync", *pythons]
    everyone = contestants(model, real_time=options.real_time)
    rows, figures = [], {}
    for name in random.Random(options.seed).sample(names, len(names)):
        contestant = everyone[name]
        try:
            found = measured(contestant, pythons.get(name, sys.executable), model, tensor, options)
        except RuntimeError as error:
            print(f"{contestant.name} is left out: {error}", file=sys.stderr)
            continue
        rows += [row(contestant.name, load, each, options.seconds) for load, each in found.items()]
        figures[name] = {str(load): msgspec.to_builtins(each) for load, each in found.items()}
    rows.sort(key=lambda each: (float(each[1]), -float(each[2])))
    heads = ["server", "load", "good a second", *(f"% of {kind.name}" for kind in KINDS)]
    text = table([*heads, "late", "refused", "failed"], rows)
    said = f"a load of 1 is {options.rate_hz:.0f} requests a second\n\n{text}"
    publish("Goodput of servers", said, figures, options)


if __name__ == "__main__":
    main()
