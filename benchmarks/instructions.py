"""Instructions: what a call of a tiny network costs, counted instead of timed.

Each contestant runs in a process of its own under `valgrind --tool=callgrind`, with few calls and
with more; the difference of the two counts is free of start-up, and hardly differs from one machine
to the next. Only the thread of the loop is counted: how long others look for work depends on what
else the machine does. Where workers have a part in each call theirs is counted, too: such calls
are made several at once, so that workers are at work most of the time. Upkeep that happens to come
along only adds to a count, so the least of all
rounds counts. A further run without valgrind counts calls of Python and of C functions. The bare
plan, run in a plain loop, is taken off all the others. With `--tree` other checkouts are counted
beside this one, so that a change can be compared with what was there before it.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import importlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np

import nnasync as nn
from benchmarks._report import arguments, models_folder, publish, table
from nnasync.fences import Fence

MODEL = "hello_world_float.tflite"
CHAIN = 8
AT_ONCE = 4
FEW, MORE = 100, 1_100
"""Calls of the two runs; what is done once in a while is spread over their difference."""
SLOWED_DOWN = nn.Options(cores=1, inline_budget_us=1e6, stall_budget_us=1e6)
"""Under valgrind a call takes so long that it would be weighed, or put off; here it is as short."""
ON_WORKERS = nn.Options(cores=2, inline_budget_us=0)
"""The thread of the loop must not run any call."""
BARE, AWAIT, BURST, LAUNCH = "bare plan", "await net(x)", "burst(x)", "launch and await"
FREE, GATED = f"chain of {CHAIN} launches", f"chain of {CHAIN} launches behind a gate"
WORKERS = f"{AT_ONCE} calls at once, on workers"
CONTESTANTS = (BARE, AWAIT, BURST, LAUNCH, FREE, GATED, WORKERS)
PLANS = {FREE: CHAIN, GATED: CHAIN, WORKERS: AT_ONCE}
"""How many runs a call of a contestant consists of, if several."""
TIMEOUT_S = 600

Call = Callable[[], Awaitable[object]]


def bare(path: Path) -> Call:
    """Returns the reference plan of the model, bound to arrays of its own, as a function."""
    from nnasync.engine import StopFlag
    from nnasync.hal import ExecutionPreference, dtype_of

    model = nn.load(path)
    inputs, outputs = (
        [
            np.zeros(model.main.operands[i].dimensions, dtype_of(model.main.operands[i].type))
            for i in each
        ]
        for each in (model.main.input_indexes, model.main.output_indexes)
    )
    plan = reference().compile(model, ExecutionPreference.FAST_SINGLE_ANSWER)
    call, stop = plan.bind(inputs, outputs), StopFlag()

    async def run() -> object:
        return call.run(stop)

    return run


def reference() -> Any:
    """Imports the reference engine from where this or an older checkout has it."""
    try:
        module = importlib.import_module("nnasync.devices")
    except ModuleNotFoundError:
        module = importlib.import_module("nnasync.drivers.cpu")
    return module.ReferenceEngine()


async def chain(net: Any, x: Any) -> object:
    """Launch a chain, each link fed by the one before, and await its end."""
    execution = await net.launch(x)
    for _ in range(CHAIN - 1):
        execution = await net.launch(execution.outputs, wait_for=[execution.fence])
    await execution.fence
    return execution


async def gated_chain(net: Any, x: Any) -> object:
    """Launch a chain behind a fence, signal it, and await the end; all links run on workers."""
    gate = Fence()
    execution = await net.launch(x, wait_for=[gate])
    for _ in range(CHAIN - 1):
        execution = await net.launch(execution.outputs, wait_for=[execution.fence])
    gate.signal()
    await execution.fence
    return execution


class Counter:
    """Counts calls of functions on the threads that have it as their profiler, while it is on."""

    def __init__(self) -> None:
        self.is_on = False
        self.calls = 0

    def __call__(self, _frame: object, event: str, _argument: object) -> None:
        if self.is_on and event in ("call", "c_call"):
            self.calls += 1


async def repeat(call: Call, count: int, counter: Counter | None) -> int:
    """Call so often after a warm-up; returns how many functions were called meanwhile."""
    for _ in range(FEW):
        await call()
    gc.disable()
    if counter is None:
        for _ in range(count):
            await call()
        return 0
    sys.setprofile(counter)
    counter.is_on = True
    try:
        for _ in range(count):
            await call()
    finally:
        counter.is_on = False
        sys.setprofile(None)
    return counter.calls


async def run_one(path: Path, contestant: str, count: int, profiled: bool) -> None:
    """Runs one contestant so many times, as a child process."""
    counter = Counter() if profiled else None
    if contestant == WORKERS:
        threading.setprofile(counter)
    options = ON_WORKERS if contestant == WORKERS else SLOWED_DOWN
    async with nn.open_runtime(options=options) as rt:
        net = await rt.compile(nn.load(path), devices=["nnasync-reference"])
        x = np.full(net.inputs[0].shape, 0.5, net.inputs[0].dtype)
        async with net.burst() as burst:

            async def launched() -> object:
                execution = await net.launch(x)
                await execution.fence
                return execution

            calls: dict[str, Call] = {
                BARE: bare(path),
                AWAIT: lambda: net(x),
                BURST: lambda: burst(x),
                LAUNCH: launched,
                FREE: lambda: chain(net, x),
                GATED: lambda: gated_chain(net, x),
                WORKERS: lambda: asyncio.gather(*(net(x) for _ in range(AT_ONCE))),
            }
            print(await repeat(calls[contestant], count, counter))


def child(
    tree: Path, path: Path, contestant: str, count: int, *before: str, profiled: bool = False
) -> str:
    """Run a child with the package of a tree; returns what it wrote, errors included."""
    script = [sys.executable, str(Path(__file__).resolve()), "--models", str(path.parent)]
    command = [*before, *script, "--child", contestant, "--calls", str(count)]
    command += ["--profiled"] if profiled else []
    with tempfile.TemporaryDirectory() as state:
        environment = os.environ | {
            "PYTHONPATH": f"{tree}{os.pathsep}{Path(__file__).resolve().parent.parent}",
            "PYTHONHASHSEED": "0",
            "PYTHONDONTWRITEBYTECODE": "1",
            "NNASYNC_STATE_DIR": state,
        }
        ran = subprocess.run(
            command, capture_output=True, text=True, env=environment, timeout=TIMEOUT_S, check=False
        )
    if ran.returncode:
        sys.exit(f"{contestant} of {tree} failed:\n{ran.stderr[-2000:]}")
    return ran.stdout + ran.stderr


def instructions(tree: Path, path: Path, contestant: str, rounds: int) -> float:
    """Returns the instructions of one call."""
    few, more = (
        min(counted(tree, path, contestant, calls) for _ in range(rounds)) for calls in (FEW, MORE)
    )
    return (more - few) / (MORE - FEW)


def counted(tree: Path, path: Path, contestant: str, calls: int) -> int:
    """Counts the instructions of the loop's thread in a process that makes so many calls."""
    with tempfile.TemporaryDirectory() as folder:
        out = f"--callgrind-out-file={folder}/out"
        valgrind = ["valgrind", "--tool=callgrind", "--separate-threads=yes", out]
        told = child(tree, path, contestant, calls, *valgrind)
        files = Path(folder).glob("out-*" if contestant == WORKERS else "out-01")
        texts = [file.read_text(encoding="utf-8") for file in files]
    found = [re.search(r"^(?:summary|totals): (\d+)", text, re.MULTILINE) for text in texts]
    if not found:
        sys.exit(f"valgrind gave no count:\n{told[-2000:]}")
    return sum(int(each[1]) for each in found if each is not None)


def functions(tree: Path, path: Path, contestant: str) -> float:
    """Counts the Python and C functions that one call enters."""
    return int(child(tree, path, contestant, MORE, profiled=True).split()[0]) / MORE


def count_all(trees: list[Path], path: Path, rounds: int) -> dict[str, dict[str, list[float]]]:
    """Returns instructions and function calls of each contestant, in each tree."""
    found: dict[str, dict[str, list[float]]] = {"instructions": {}, "functions": {}}
    for contestant in CONTESTANTS:
        for tree in trees:
            spent = found["instructions"].setdefault(contestant, [])
            spent.append(instructions(tree, path, contestant, rounds))
            called = found["functions"].setdefault(contestant, [])
            called.append(functions(tree, path, contestant))
            print(f"{contestant}: {spent[-1]:,.0f} in {tree}", file=sys.stderr)
    return found


def rows_of(found: dict[str, list[float]]) -> list[list[str]]:
    """Returns a row for each contestant: counts above the bare plan, and the ratio to the first."""
    rows = []
    for contestant, counts in found.items():
        plans = PLANS.get(contestant, 1)
        above = [
            count - plans * base if contestant != BARE else count
            for count, base in zip(counts, found[BARE], strict=True)
        ]
        ratios = [f"{each / above[0]:.2f}" for each in above[1:]]
        rows.append([contestant, *(f"{each:,.0f}" for each in above), *ratios])
    return rows


def report(options: argparse.Namespace) -> None:
    """Count, and print both tables."""
    if shutil.which("valgrind") is None:
        sys.exit("valgrind is not installed (Debian, Ubuntu: apt-get install valgrind)")
    trees = [*options.tree, Path(__file__).resolve().parent.parent]
    found = count_all(trees, models_folder(options.models) / MODEL, options.rounds)
    names = [tree.name for tree in trees]
    texts = []
    for what, counts in found.items():
        heads = [f"{what} above the bare plan", *names, *(f"{n} / {names[0]}" for n in names[1:])]
        texts.append(table(heads, rows_of(counts)))
    publish("Cost of a call, counted", "\n\n".join(texts), found, options)


def main() -> None:
    """Count and print."""
    parser = arguments(__doc__, rounds=3)
    parser.add_argument("--models", type=Path, metavar="FOLDER", help="the reference models")
    parser.add_argument(
        "--tree", type=Path, action="append", default=[], help="a checkout to count beside this one"
    )
    parser.add_argument("--child", choices=CONTESTANTS, help=argparse.SUPPRESS)
    parser.add_argument("--calls", type=int, default=FEW, help=argparse.SUPPRESS)
    parser.add_argument("--profiled", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child is None:
        report(options)
    else:
        path = models_folder(options.models) / MODEL
        nn.run(run_one, path, options.child, options.calls, options.profiled)


if __name__ == "__main__":
    main()
