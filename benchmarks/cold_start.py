"""From the start of a process to the first output: nnasync with a warm cache, beside its peers.

Each contestant is a script in a fresh process, timed from before it is spawned until its output is
there; the same scripts in turns, medians. Files are in the page cache, compilation caches are warm.
"LiteRT, in uvloop" is the script of a LiteRT user who runs it in an event loop with anyio and
msgspec. A last row says how long after the start nnasync runs the plan that is fastest, where it
answered with a quicker one before.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from benchmarks._report import arguments, interleave, median, models_folder, publish, spread, table

MODEL = "mobilenet_v2_1.0_224_quant.tflite"
WARM_UPS = 5
LIMITS = {"of LiteRT": 1.7, "ms above LiteRT, in uvloop": 40.0}

_HEAD = """
import json, sys, time
model, cache, began = sys.argv[1], sys.argv[2], float(sys.argv[3])
def tell(**more):
    print(json.dumps(dict(first=(time.monotonic() - began) * 1e3, **more)), flush=True)
"""

LITERT = """
import numpy as np
from ai_edge_litert.interpreter import Interpreter
def infer():
    it = Interpreter(model, num_threads=2)
    it.allocate_tensors()
    d, o = it.get_input_details()[0], it.get_output_details()[0]["index"]
    it.set_tensor(d["index"], np.zeros(d["shape"], d["dtype"]))
    it.invoke()
    return it.get_tensor(o)
"""

LOOP = """
import anyio, msgspec, uvloop
async def main():
    infer()
    tell()
uvloop.run(main())
"""

NNASYNC = """
import nnasync as nn, numpy as np
async def main():
    async with nn.open_runtime() as rt:
        net = await rt.compile({source}, cache_dir=cache, options=nn.CompileOptions(wait="best"))
        first, = net.inputs
        x = np.zeros(first.shape, first.dtype)
        await net(x)
        report = net.report()
        tell(hit=report.cache_hit, why=report.cache_reason)
        {rest}
nn.run(main)
"""

SWAP = """
        while "follows" in report.cache_reason and net.report() is report:
            await net(x)
        tell(hit=report.cache_hit, why=report.cache_reason)
"""

SCRIPTS = {
    "python": "tell()",
    "import numpy": "import numpy\ntell()",
    "LiteRT": LITERT + "infer()\ntell()",
    "LiteRT, in uvloop": LITERT + LOOP,
    "nnasync, path": NNASYNC.format(source="model", rest=""),
    "nnasync, nn.load": NNASYNC.format(source="nn.load(model)", rest=""),
    "nnasync, path, fastest plan": NNASYNC.format(source="model", rest=SWAP.strip()),
}


def contestant(script: str, model: Path, cache: str) -> Callable[[], Awaitable[float]]:
    """Returns a contestant: the milliseconds until a fresh process has printed its last line."""

    async def run() -> float:
        return float(run_once(script, model, cache)["first"])

    return run


def run_once(script: str, model: Path, cache: str) -> dict[str, Any]:
    """Returns what a fresh process prints last."""
    command = [sys.executable, "-c", _HEAD + script, str(model), cache, str(time.monotonic())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    told: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return told


def warm_up(script: str, model: Path, cache: str) -> None:
    """Run a script until its compilation is in the cache: what could not be measured is not kept.

    Raises SystemExit where it never is.
    """
    for _ in range(WARM_UPS):
        told = run_once(script, model, cache)
        if told.get("hit", True):
            return
    raise SystemExit(f"the cache is not warm after {WARM_UPS} compilations: {told['why']}")


def main() -> None:
    """Measure and print."""
    parser = arguments(__doc__, rounds=15)
    parser.add_argument("--models", type=Path, metavar="DIR", help="folder of reference models")
    parser.add_argument("--model", default=MODEL, help="file in that folder (%(default)s)")
    options = parser.parse_args()
    model = models_folder(options.models) / options.model
    has_litert = importlib.util.find_spec("ai_edge_litert") is not None
    with tempfile.TemporaryDirectory() as folder:
        os.environ["NNASYNC_STATE_DIR"] = f"{folder}/state"
        # Modules are compiled once, as they are for a user.
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        cache = f"{folder}/cache"
        scripts = {
            name: script for name, script in SCRIPTS.items() if has_litert or "LiteRT" not in name
        }
        for script in scripts.values():
            warm_up(script, model, cache)
        contestants = {name: contestant(text, model, cache) for name, text in scripts.items()}
        results = asyncio.run(interleave(contestants, options.rounds))
    rows = [[name, spread(values)] for name, values in results.items()]
    text = table(["fresh process", "ms to the first output, median (quartiles)"], rows)
    figures = {"milliseconds": results}
    if has_litert:
        own, peer = median(results["nnasync, path"]), median(results["LiteRT"])
        above = own - median(results["LiteRT, in uvloop"])
        text += f"\nnnasync, path: {own / peer:.2f} of LiteRT (limit {LIMITS['of LiteRT']})"
        text += f"\n{above:.0f} ms above LiteRT, in uvloop (limit 40)"
    publish("Cold start", text, figures, options)


if __name__ == "__main__":
    main()
