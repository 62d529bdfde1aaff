"""Clients: processes that share one service, and what a hostile one among them can do.

Each well-behaved client awaits one execution after the other, every other client through a burst,
half of them HIGH and half MEDIUM, and compares each result with its own. First all clients behave;
then one is hostile: it floods the control socket and two bursts with requests, garbage and
descriptors that do not belong there, asks for huge things, names what is not its own, and comes
back whenever it is cut off. Shares are executions of a client, divided by the mean of a client when
all behave.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import numpy as np

import nnasync as nn
from benchmarks._report import BEST, arguments, median, publish, table
from nnasync import connect
from nnasync._core.engine_device.caching import library_version
from nnasync._core.message_queue import QueueReader, QueueWriter
from nnasync._core.wire import messages
from nnasync._core.wire.connection import Connection, close_all
from nnasync._core.wire.messages import MAGIC, PROTOCOL, Hello, PoolForm, encode
from nnasync._core.wire.model_transfer import Offer
from nnasync.burst import BurstArguments, BurstRequest
from nnasync.errors import NNError
from nnasync.hal import DataLocation, ExecutionConfig, Priority, RequestArgument
from nnasync.memory import Pool

ROWS, WIDTH = 16, 512
DEVICE = "nnasync-reference"
GRACE_S = 60
MOST_LAUNCHED = 200
WISH = (nn.Preference.FAST_SINGLE_ANSWER, Priority.HIGH)


def network() -> nn.Model:
    """Returns a network of four products of 16 rows with 512 x 512 matrices.

    About a millisecond.
    """
    rng = np.random.default_rng(0)
    builder = nn.ModelBuilder("client")
    value = builder.input("x", (ROWS, WIDTH))
    for _ in range(4):
        weights = rng.normal(0, 0.05, (WIDTH, WIDTH)).astype(np.float32)
        value = builder.fully_connected(value, weights, np.zeros(WIDTH, np.float32))
    builder.output("y", value)
    return builder.build()


# -- a client that behaves


async def behave(path: str, number: int, seconds: float) -> None:
    """Count executions, wrong results and refusals until the time is over."""
    rng = np.random.default_rng(number)
    inputs = [rng.normal(0, 1, (ROWS, WIDTH)).astype(np.float32) for _ in range(4)]
    async with nn.open_runtime(devices=[DEVICE]) as here:
        own = await here.compile(network())
        expected = [await own(x) for x in inputs]
    device = await connect(path)
    counts = {"runs": 0, "wrong": 0, "refused": 0}
    async with nn.open_runtime(devices=[device]) as rt, contextlib.AsyncExitStack() as stack:
        priority = Priority.HIGH if number % 4 < 2 else Priority.MEDIUM
        net = await rt.compile(network(), priority=priority, options=BEST)
        call: Any = net if number % 2 else await stack.enter_async_context(net.burst())
        await call(inputs[0])
        say("ready")
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            at = counts["runs"] % len(inputs)
            try:
                y = await call(inputs[at])
            except nn.NNError:
                counts["refused"] += 1
                continue
            counts["runs"] += 1
            counts["wrong"] += not np.allclose(y, expected[at], rtol=1e-4, atol=1e-4)
    say(json.dumps(counts))


def say(text: str) -> None:
    """Tell the parent, and after "ready" wait until it says go."""
    print(text, flush=True)
    if text == "ready":
        sys.stdin.readline()


# -- a client that does not


class Hostile:
    """A client that makes one connection at a time, and abuses it."""

    def __init__(self, path: str, seconds: float) -> None:
        self._path = path
        self._until = time.monotonic() + seconds
        self._random = random.Random(1)
        self._pool = Pool.allocate(2 * ROWS * WIDTH * 4)
        self._offer = Offer(network())
        self._cut = threading.Event()
        self._launched: deque[int] = deque()
        self.counts = {"sent": 0, "packets": 0, "cut_off": 0}

    @property
    def goes_on(self) -> bool:
        return time.monotonic() < self._until and not self._cut.is_set()

    def run(self) -> None:
        """Reconnects whenever the service has ended the connection."""
        while time.monotonic() < self._until:
            self._cut.clear()
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            with contextlib.suppress(NNError, OSError):
                sock.connect(self._path)
                self._attack(Connection(sock, "the service"))
            self.counts["cut_off"] += 1
            self._cut.set()
            sock.close()

    def _attack(self, connection: Connection) -> None:
        m = messages
        self._send(connection, Hello(MAGIC, PROTOCOL, library_version(), 9))
        self._answered(connection, 9)
        offer, fds = self._offer.message(10, 1), self._offer.fds
        self._send(connection, offer, fds)
        self._answered(connection, 10)
        self._send(connection, m.Prepare(11, 1, 2, *WISH, 2**62, 0, 0, b""))
        self._answered(connection, 11)
        memory = PoolForm("ashmem", self._pool.size, 0, True)
        self._send(connection, m.OfferMemory(3, memory), [self._pool.fd])
        threads = [self._flooding(connection, 20 + each) for each in range(2)]
        try:
            while self.goes_on:
                self._harass(connection)
                self._drain(connection)
        finally:
            self._cut.set()
            for thread in threads:
                thread.join()
            connection.close()

    def _harass(self, connection: Connection) -> None:
        """Does one of many bad things on the control socket."""
        m, random_ = messages, self._random
        number = random_.randrange(1000, 2**31)
        form = encode(BurstArguments(*self._arguments(), (3,)))
        match random_.randrange(40):
            case 0:
                self._send(
                    connection, m.Launch(number, 1, 2, b"\x91" * (3 << 20), ExecutionConfig(), 0)
                )
            case 1:
                memory = PoolForm("ashmem", 2**40, 0, True)
                self._send(connection, m.OfferMemory(number, memory), [self._pool.fd])
            case 2:
                fds = [os.open("/dev/null", os.O_RDWR), *os.pipe()]
                self._send(connection, m.GetStatus(number), fds)
                close_all(fds)
            case 3:
                stale = encode(BurstArguments(*self._arguments(), (-random_.getrandbits(62),)))
                self._send(connection, m.Launch(number, 1, 2, stale, ExecutionConfig(), 0))
            case 4:
                self._send(connection, m.Prepare(number, 1, number, *WISH, 2**62, 0, 0, b""))
            case 5 if random_.random() < 0.05:
                connection.socket.send(random_.randbytes(64))
            case each if each < 25:
                launch = m.Launch(number, number, 2, form, ExecutionConfig(), 0)
                self._send(connection, launch)
                self._launched.append(number)
                if len(self._launched) > MOST_LAUNCHED:
                    self._send(connection, m.ForgetLaunch(self._launched.popleft()))
            case _:
                self._send(connection, m.GetStatus(number))

    def _arguments(self) -> tuple[Any, Any]:
        size = ROWS * WIDTH * 4
        return (
            (RequestArgument(location=DataLocation(0, 0, size)),),
            (RequestArgument(location=DataLocation(0, size, size)),),
        )

    def _flooding(self, connection: Connection, number: int) -> threading.Thread:
        """Open a burst and fill its queue as fast as it is emptied."""
        writer, requests = QueueWriter.create(1 << 16)
        reader, results = QueueReader.create(1 << 16)
        fds = [*requests.descriptors, *results.descriptors]
        self._send(connection, messages.OpenBurst(number, number, 2), fds)
        requests.close()
        results.close()
        arguments = encode(BurstArguments(*self._arguments(), (3,)))
        random_ = random.Random(number)

        def flood() -> None:
            with writer, reader, contextlib.suppress(NNError):
                serial = 0
                while self.goes_on:
                    serial += 1
                    packet = encode(BurstRequest(serial, arguments))
                    if random_.random() < 0.5:
                        packet = random_.choice([packet[:-3], b"garbage", b"\x91" * 4000])
                    if not writer.try_write(packet):
                        time.sleep(0.001)
                        continue
                    self.counts["packets"] += 1
                    while reader.try_read() is not None:
                        pass

        thread = threading.Thread(target=flood)
        thread.start()
        return thread

    def _send(self, connection: Connection, message: Any, fds: Any = ()) -> None:
        self.counts["sent"] += 1
        connection.send(encode(message), fds)
        while self.goes_on and not connection.flush():
            time.sleep(0.001)
            self._drain(connection)

    def _drain(self, connection: Connection) -> list[Any]:
        frames = connection.receive()
        if frames is None:
            raise nn.NNError("cut off")
        for frame in frames:
            frame.close()
        return [messages.decode(frame.message, messages.FromService) for frame in frames]

    def _answered(self, connection: Connection, call: int) -> None:
        while self.goes_on:
            if any(getattr(each, "call", 0) == call for each in self._drain(connection)):
                return
            time.sleep(0.001)


# -- the parent


@contextlib.contextmanager
def service(folder: Path) -> Iterator[tuple[Path, int]]:
    """Runs a service in a process while the block runs; yields its socket and process id."""
    path = folder / "s" / "clients.socket"
    command = [
        sys.executable,
        "-m",
        "nnasync",
        "device-service",
        "--device",
        DEVICE,
        "--socket",
        str(path),
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        if "listens" not in line_of(process):
            sys.exit("the service did not start")
        yield path, process.pid
    finally:
        process.terminate()
        process.communicate()


def line_of(process: subprocess.Popen[str]) -> str:
    """Returns the next line that a process prints; empty once it has ended."""
    return "" if process.stdout is None else process.stdout.readline()


def resident_bytes(pid: int) -> int:
    """Returns the resident memory of a process in bytes; 0 if it has gone."""
    with contextlib.suppress(OSError):
        pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    return 0


def processor_ns(pid: int) -> int:
    """Returns the processor time of a process so far; 0 if it has gone."""
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) * (10**9 // os.sysconf("SC_CLK_TCK"))
    return 0


def crowd(
    roles: list[str], seconds: float, folder: Path
) -> tuple[list[dict[str, int]], dict[str, int]]:
    """Runs clients of these roles side by side; returns what each counted and the service used."""
    with service(folder) as (path, pid), contextlib.ExitStack() as stack:
        clients = []
        for number, role in enumerate(roles):
            options = ["--role", role, "--path", str(path), "--number", str(number)]
            process = subprocess.Popen(
                [sys.executable, __file__, *options, "--seconds", str(seconds)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            stack.callback(process.kill)
            clients.append(process)
        for process in clients:
            if line_of(process).strip() != "ready":
                sys.exit("a client did not start")
        used = {"before": resident_bytes(pid), "most": 0, "processor_ns": -processor_ns(pid)}
        for process in clients:
            if process.stdin is not None:
                process.stdin.write("go\n")
                process.stdin.flush()
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            used["most"] = max(used["most"], resident_bytes(pid))
            time.sleep(0.2)
        found = [json.loads(process.communicate(timeout=GRACE_S)[0]) for process in clients]
        used["processor_ns"] += processor_ns(pid)
        if not resident_bytes(pid):
            sys.exit("the service died")
    return found, used


def play(role: str, path: str, number: int, seconds: float) -> None:
    """Runs this process as one client."""
    if role == "good":
        anyio.run(behave, path, number, seconds)
        return
    say("ready")
    hostile = Hostile(path, seconds)
    hostile.run()
    say(json.dumps(hostile.counts))


def measure(clients: int, seconds: float, rounds: int) -> dict[str, Any]:
    """Returns the share of each well-behaved client, without and with a hostile one, in percent.

    One round runs both crowds, since machines have slow seconds.
    """
    figures: dict[str, Any] = {"wrong": 0, "refused": 0}
    usual_runs, hostile_runs = [0] * clients, [0] * (clients - 1)
    figures |= {"runs": 0, "hostile": {}, "memory_mib": [], "processor_us": []}
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            usual, before = crowd(["good"] * clients, seconds, Path(folder))
        with tempfile.TemporaryDirectory() as folder:
            roles = ["hostile", *["good"] * (clients - 1)]
            (hostile, *others), after = crowd(roles, seconds, Path(folder))
        for counted, found in ((usual_runs, usual), (hostile_runs, others)):
            for at, each in enumerate(found):
                counted[at] += each["runs"]
        for name in ("wrong", "refused", "runs"):
            figures[name] += sum(each[name] for each in (*usual, *others))
        figures["hostile"] = hostile
        figures["memory_mib"].append([after["before"] / 2**20, after["most"] / 2**20])
        figures["processor_us"].append(
            [
                used["processor_ns"] / 1e3 / max(1, sum(each["runs"] for each in found))
                for used, found in ((before, usual), (after, others))
            ]
        )
    fair = sum(usual_runs) / clients
    figures["all_behave"] = [100 * each / fair for each in usual_runs]
    figures["one_hostile"] = [100 * each / fair for each in hostile_runs]
    return figures


def main() -> None:
    """Measure and print, or be one of the clients."""
    parser = arguments(__doc__, rounds=5)
    parser.add_argument("--clients", type=int, default=16, help="of the service (%(default)s)")
    parser.add_argument("--seconds", type=float, default=6.0, help="of each crowd (%(default)s)")
    for name, kind in (("role", str), ("path", str), ("number", int)):
        parser.add_argument(f"--{name}", type=kind, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.role is not None:
        play(options.role, options.path, options.number, options.seconds)
        return
    figures = measure(options.clients, options.seconds, options.rounds)
    rows = []
    for name in ("all_behave", "one_hostile"):
        shares = figures[name]
        spread = (min(shares), median(shares), sum(shares) / len(shares), max(shares))
        rows.append([name.replace("_", " "), *(f"{share:.1f}" for share in spread)])
    text = table(["% of the fair share", "least", "median", "mean", "most"], rows)
    before, most = max(figures["memory_mib"], key=lambda pair: pair[1])
    usual, beside = (median(values) for values in zip(*figures["processor_us"], strict=True))
    text += f"\n\nprocessor time of the service for an execution of those that behave: {usual:.0f} "
    text += f"microseconds, beside the hostile client {beside:.0f} ({100 * usual / beside:.1f} %)"
    text += f"\n{figures['runs']:,} executions, {figures['wrong']} wrong results, "
    text += f"{figures['refused']} refused; the service took {before:.0f} MiB at the start and "
    text += f"{most:.0f} MiB at most; the hostile client: {figures['hostile']}"
    publish(f"{options.clients} clients of one service", text, figures, options)


if __name__ == "__main__":
    main()
