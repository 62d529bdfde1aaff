"""Connections that hang up: `python -m benchmarks.connections --minutes 10`.

`nnasync serve` has so many connections open at once, from one client on the same machine. Each
asks again and again, for small answers in JSON and large ones in binary; half of the requests are
not waited for: the client hangs up in the middle of the request, or behind it, and connects again.
A minute is an interval; after each one all connections are closed, and what the server is left
with is read: its memory, descriptors and threads, executions that are still there, and whether the
accounts add up. The first minute is to fill what is kept; what the later ones add is a leak. It
ends with 1 where descriptors, executions or requests are left over.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import uvloop

import nnasync as nn
from benchmarks._report import arguments, publish, table

SMALL, LARGE = 16, 50_000
"""Elements of float32."""
STEPS = 24
"""Operations of the large network, which so takes a few milliseconds."""
TIMEOUT_US = 500_000
PAUSE_S = 0.5
"""On average, between two requests of a connection."""
END_S, START_S, QUIET_S = 15.0, 60.0, 20.0
_SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)


class Rest(msgspec.Struct, frozen=True):
    """The resources that the server holds when nobody asks for anything."""

    rss_mib: float
    descriptors: int
    threads: int
    in_flight: int
    executions: int
    submitted: int
    outcomes: dict[str, int]

    @property
    def adds_up(self) -> bool:
        """Returns whether each request has had exactly one end."""
        return self.in_flight == 0 and self.submitted == sum(self.outcomes.values())


def network(name: str, elements: int, steps: int) -> nn.Model:
    """Returns a network of some operations in a row."""
    builder = nn.ModelBuilder(name)
    x = builder.input("x", (1, elements))
    for _ in range(steps):
        x = builder.tanh(x)
    builder.output("y", x)
    return builder.build()


def request(name: str, elements: int, *, binary: bool) -> bytes:
    """Returns a whole request as bytes."""
    values = np.linspace(-1, 1, elements, dtype=np.float32)
    tensor: dict[str, object] = {"name": "x", "shape": [1, elements], "datatype": "FP32"}
    parameters = {"binary_data_output": binary, "timeout": TIMEOUT_US}
    told = {"inputs": [tensor], "parameters": parameters}
    raw, field = b"", ""
    if binary:
        tensor["parameters"] = {"binary_data_size": values.nbytes}
        raw = values.tobytes()
        field = f"inference-header-content-length: {len(json.dumps(told))}\r\n"
    else:
        tensor["data"] = values.tolist()
    text = json.dumps(told).encode()
    head = (
        f"POST /v2/models/{name}/infer HTTP/1.1\r\nhost: x\r\n{field}"
        f"content-length: {len(text) + len(raw)}\r\n\r\n"
    )
    return head.encode() + text + raw


class Client:
    """Holds so many connections, each with one request after the other."""

    def __init__(self, port: int, count: int, seed: int) -> None:
        self.found: Counter[str] = Counter()
        self._port, self._count = port, count
        self._chance = random.Random(seed)
        self._requests = (
            request("small", SMALL, binary=False),
            request("large", LARGE, binary=True),
        )

    async def ask_for(self, seconds: float) -> None:
        """Asks for so long, then closes all connections."""
        end_s = asyncio.get_running_loop().time() + seconds
        async with asyncio.TaskGroup() as tasks:
            for _ in range(self._count):
                tasks.create_task(self._connection(end_s))

    async def _connection(self, end_s: float) -> None:
        loop, pause_s = asyncio.get_running_loop(), self._chance.expovariate
        while loop.time() < end_s:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
            except OSError:
                self.found["not connected"] += 1
                await asyncio.sleep(PAUSE_S)
                continue
            try:
                is_open = True
                while is_open and loop.time() < end_s:
                    await asyncio.sleep(min(pause_s(1 / PAUSE_S), end_s - loop.time() + 0.01))
                    is_open = await self._exchange(reader, writer)
            except (OSError, ValueError, asyncio.IncompleteReadError):
                self.found["broken"] += 1
            finally:
                writer.transport.abort()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Asks once; returns whether the connection is still open."""
        asked, way = self._chance.choice(self._requests), self._chance.random()
        if way < 0.25:
            self.found["hung up in a request"] += 1
            writer.write(asked[: self._chance.randrange(1, len(asked))])
            await writer.drain()
            await asyncio.sleep(self._chance.random() * 0.05)
            return False
        writer.write(asked)
        await writer.drain()
        if way < 0.5:
            self.found["hung up behind a request"] += 1
            await asyncio.sleep(self._chance.random() * 0.02)
            return False
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        fields = dict(line.split(b": ", 1) for line in head.split(b"\r\n")[1:-2])
        await reader.readexactly(int(fields[b"content-length"]))
        self.found[f"status {head.split()[1].decode()}"] += 1
        return fields.get(b"connection") != b"close"


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[tuple[int, int]]:
    """Runs a server of both networks while the block runs; yields its process id and port."""
    for name, elements, steps in (("small", SMALL, 1), ("large", LARGE, STEPS)):
        nn.save(network(name, elements, steps), folder / f"{name}.nnm")
    models = [str(folder / f"{name}.nnm") for name in ("small", "large")]
    command = [sys.executable, "-m", "nnasync", "serve", *models, "--port", "0", "--no-grpc"]
    log = folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
        try:
            yield process.pid, port_in(process, log)
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def port_in(process: subprocess.Popen[bytes], log: Path) -> int:
    """Returns the port that a server has logged; raises RuntimeError if it does not."""
    end_s = time.monotonic() + START_S
    while time.monotonic() < end_s and process.poll() is None:
        if found := re.search(r"serving at http://127\.0\.0\.1:(\d+)", log.read_text()):
            return int(found[1])
        time.sleep(0.1)
    raise RuntimeError(f"the server does not start:\n{log.read_text()}")


def rest(pid: int, port: int) -> Rest:
    """Returns the server's resources once it has noticed all ends, or after a while."""
    end_s = time.monotonic() + QUIET_S
    before = looked(pid, port)
    while True:
        time.sleep(0.2)
        found = looked(pid, port)
        is_over = found.adds_up and not found.executions
        if (is_over and found.descriptors >= before.descriptors) or time.monotonic() > end_s:
            return found
        before = found


def looked(pid: int, port: int) -> Rest:
    """Returns the server's resources now, by the system and by its metrics."""
    descriptors = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        samples = _SAMPLE.findall(answer.read().decode())
    outcomes: Counter[str] = Counter()
    sums: Counter[str] = Counter()
    for name, labels, value in samples:
        sums[name] += int(float(value))
        if name == "nnasync_serving_request_outcomes_total":
            outcomes[re.findall(r'outcome="(\w+)"', labels)[0]] += int(value)
    status = dict(re.findall(r"(\w+):\s+(\d+)", Path(f"/proc/{pid}/status").read_text()))
    return Rest(
        int(status["VmRSS"]) / 1024,
        descriptors,
        int(status["Threads"]),
        sums["nnasync_serving_requests_in_flight"],
        sums["nnasync_workers_live"],
        sums["nnasync_serving_requests_total"],
        dict(outcomes),
    )


def measured(connections: int, minutes: int, interval_s: float) -> tuple[list[Rest], Counter[str]]:
    """Returns the server's resources before and after each interval, and the client's counts."""
    told: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder)) as (pid, port):
        found = [rest(pid, port)]
        for number in range(minutes):
            client = Client(port, connections, number)
            uvloop.run(client.ask_for(interval_s))
            told += client.found
            found.append(rest(pid, port))
    return found, told


def main() -> int:
    """Measure and print."""
    parser = arguments(__doc__, rounds=1)
    parser.add_argument("--connections", type=int, default=1000, help="open at once (%(default)s)")
    parser.add_argument("--minutes", type=int, default=3, help="(%(default)s)")
    parser.add_argument("--interval", type=float, default=60.0, help="seconds of one (%(default)s)")
    options = parser.parse_args()
    found, told = measured(options.connections, options.minutes, options.interval)
    rows = [
        [str(number), f"{each.rss_mib:.1f}", str(each.descriptors), str(each.threads),
         str(each.in_flight), str(each.executions), str(each.submitted),
         "yes" if each.adds_up else "no"]
        for number, each in enumerate(found)
    ]  # fmt: skip
    heads = ["after", "MiB", "descriptors", "threads", "in flight", "executions", "requests",
             "add up"]  # fmt: skip
    ends = ", ".join(f"{count} {name}" for name, count in sorted(found[-1].outcomes.items()))
    seen = ", ".join(f"{count} {name}" for name, count in sorted(told.items()))
    said = f"{table(heads, rows)}\n\nthe server: {ends}\nthe client: {seen}"
    figures = {"rests": [msgspec.to_builtins(each) for each in found], "client": dict(told)}
    publish("Connections that hang up", said, figures, options)
    last = found[-1]
    answered = sum(told[name] for name in told if name == "status 200")
    is_clean = last.adds_up and not last.executions and last.descriptors <= found[1].descriptors
    return 0 if is_clean and answered <= last.outcomes.get("completed", 0) else 1


if __name__ == "__main__":
    sys.exit(main())
