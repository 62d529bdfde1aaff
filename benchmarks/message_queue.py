"""Message queue: a packet to another process and its echo back, by size and by placement.

Ours with a polling window and parked, beside the bare ping-pong of two eventfds and of two pipes
(nothing travels, nothing is checked) and iceoryx2 where it is installed, polling and with its
waitset. Both processes on one core, on one each, or where the kernel puts them; iceoryx2 polling
needs a core of its own, so it is left out on one.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import importlib
import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks._report import arguments, cores, interleave, median, percentile, publish, table
from nnasync._core.message_queue import Handover, QueueReader, QueueWriter
from nnasync.errors import DeviceDied

SIZES = (16, 256, 4096)
CAPACITY = 1 << 14
WINDOW_NS = 50_000
WARM_UP = 100

Echo = Callable[[bytes], bytes]
"""A round trip."""


class Contestant(NamedTuple):
    """How a client echoes through a server that it starts, and how that server serves."""

    client: Callable[[Start], contextlib.AbstractContextManager[Echo]]
    serve: Callable[[Sequence[str]], None]
    needs_a_core: bool = False


Start = Callable[[Sequence[int], Sequence[str]], None]
"""Starts the server, with descriptors that it inherits and arguments."""


# -- ours


def queues(polling_ns: int) -> Contestant:
    """Returns a contestant of two message queues between a client's and a server's thread."""

    @contextlib.contextmanager
    def client(start: Start) -> Iterator[Echo]:
        requests, requests_there = QueueWriter.create(CAPACITY)
        answers, answers_there = QueueReader.create(CAPACITY)
        answers.polling_ns = polling_ns
        with requests, answers, requests_there, answers_there:
            fds = (*requests_there.descriptors, *answers_there.descriptors)
            start(fds, (str(polling_ns), *map(str, fds)))
            requests_there.close()
            answers_there.close()

            def echo(message: bytes) -> bytes:
                requests.try_write(message)
                return answers.read_blocking() or b""

            yield echo

    return Contestant(client, serve_queues)


def serve_queues(given: Sequence[str]) -> None:
    polling_ns, *fds = map(int, given)
    requests = QueueReader.attach(Handover(fds[:2]))
    requests.polling_ns = polling_ns
    answers = QueueWriter.attach(Handover(fds[2:]))
    with contextlib.suppress(DeviceDied):
        while (message := requests.read_blocking()) is not None:
            answers.try_write(message)


# -- bare wake-ups


@contextlib.contextmanager
def eventfds(start: Start) -> Iterator[Echo]:
    there, back = os.eventfd(0, os.EFD_CLOEXEC), os.eventfd(0, os.EFD_CLOEXEC)
    start((there, back), (str(there), str(back)))

    def echo(message: bytes) -> bytes:
        os.eventfd_write(there, 1)
        os.eventfd_read(back)
        return message

    yield echo
    os.close(there)
    os.close(back)


def serve_eventfds(given: Sequence[str]) -> None:
    there, back = map(int, given)
    while True:
        os.eventfd_read(there)
        os.eventfd_write(back, 1)


@contextlib.contextmanager
def pipes(start: Start) -> Iterator[Echo]:
    (heard_there, rung), (heard, rung_there) = os.pipe(), os.pipe()
    start((heard_there, rung_there), (str(heard_there), str(rung_there)))

    def echo(message: bytes) -> bytes:
        os.write(rung, b"\1")
        os.read(heard, 64)
        return message

    yield echo
    for fd in (heard_there, rung, heard, rung_there):
        os.close(fd)


def serve_pipes(given: Sequence[str]) -> None:
    heard, rung = map(int, given)
    while os.read(heard, 64):
        os.write(rung, b"\1")


# -- iceoryx2: a request-response service for each size, an event service for each direction


class Iceoryx:
    """One end of the iceoryx2 services below a name."""

    def __init__(self, folder: str, *, waits: bool, serves: bool) -> None:
        iox = importlib.import_module("iceoryx2")
        iox.set_log_level(iox.LogLevel.Error)
        config = iox.config.default()
        config.global_cfg.root_path = iox.Path.new(folder)
        config.global_cfg.prefix = iox.FileName.new(os.path.basename(folder) + "_")
        self.node = iox.NodeBuilder.new().config(config).create(iox.ServiceType.Ipc)
        self.kinds = {size: echo_type(size) for size in SIZES}
        self.services = {
            size: self.service(iox, f"echo/{size}").request_response(kind, kind).open_or_create()
            for size, kind in self.kinds.items()
        }
        events = [self.service(iox, name).event().open_or_create() for name in ("there", "back")]
        mine, theirs = events if serves else reversed(events)
        self.listener = mine.listener_builder().create()
        self.notifier = theirs.notifier_builder().create()
        self.waits = waits
        if waits:
            self.waitset = iox.WaitSetBuilder.new().create(iox.ServiceType.Ipc)
            self.guard = self.waitset.attach_notification(self.listener)

    def service(self, iox: Any, name: str) -> Any:
        return self.node.service_builder(iox.ServiceName.new(name))

    def wake(self) -> None:
        if self.waits:
            self.notifier.notify()

    def wait(self) -> None:
        if self.waits:
            self.waitset.wait_and_process()
            self.listener.try_wait()


def echo_type(size: int) -> type[ctypes.Structure]:
    fields = {"_fields_": [("data", ctypes.c_uint8 * size)]}
    return type(f"Echo{size}", (ctypes.Structure,), fields)


def iceoryx(*, waits: bool) -> Contestant:
    """Returns the contestant of requests and responses through iceoryx2."""

    @contextlib.contextmanager
    def client(start: Start) -> Iterator[Echo]:
        with tempfile.TemporaryDirectory(prefix="nnasync_bench") as folder:
            side = Iceoryx(folder, waits=waits, serves=False)
            clients = {size: s.client_builder().create() for size, s in side.services.items()}
            start((), (folder, str(int(waits))))
            while any(s.dynamic_config.number_of_servers < 1 for s in side.services.values()):
                time.sleep(0.01)
            time.sleep(0.1)

            def echo(message: bytes) -> bytes:
                size = len(message)
                pending = clients[size].send_copy(side.kinds[size].from_buffer_copy(message))
                side.wake()
                while (response := pending.receive()) is None:
                    side.wait()
                answer = bytes(response.payload().contents)
                response.delete()
                pending.delete()
                return answer

            yield echo
        for left in Path("/dev/shm").glob(f"{os.path.basename(folder)}_*"):
            left.unlink()

    return Contestant(client, serve_iceoryx, needs_a_core=not waits)


def serve_iceoryx(given: Sequence[str]) -> None:
    folder, waits = given
    side = Iceoryx(folder, waits=waits == "1", serves=True)
    servers = [(side.kinds[n], s.server_builder().create()) for n, s in side.services.items()]
    while True:
        side.wait()
        for kind, server in servers:
            while (request := server.receive()) is not None:
                request.send_copy(kind.from_buffer_copy(request.payload().contents))
                side.wake()
                request.delete()


CONTESTANTS = {
    "eventfd, bare": Contestant(eventfds, serve_eventfds),
    "pipe, bare": Contestant(pipes, serve_pipes),
    "nnasync, parked": queues(0),
    "nnasync, polling": queues(WINDOW_NS),
    "iceoryx2, waitset": iceoryx(waits=True),
    "iceoryx2, polling": iceoryx(waits=False),
}


# -- measuring


def timed(echo: Echo, message: bytes, seconds: float) -> list[float]:
    """Returns the microseconds of each round trip."""
    clock = time.perf_counter_ns
    times: list[float] = []
    until = clock() + int(seconds * 1e9)
    while (started := clock()) < until:
        answer = echo(message)
        times.append((clock() - started) / 1e3)
        if answer != message:
            sys.exit("an answer is not what was sent")
    return times


@contextlib.contextmanager
def on_core(core: int | None) -> Iterator[None]:
    """Keeps this process on one core while the block runs."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, before if core is None else {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def round_trips(
    name: str, here: int | None, there: int | None, seconds: float
) -> list[list[float]]:
    """Returns times by message size, with a server of its own."""
    contestant = CONTESTANTS[name]
    servers: list[subprocess.Popen[bytes]] = []

    def start(fds: Sequence[int], given: Sequence[str]) -> None:
        core = "-" if there is None else str(there)
        command = [sys.executable, __file__, "--serve", name, core, *given]
        servers.append(subprocess.Popen(command, pass_fds=fds))

    found = []
    try:
        with contestant.client(start) as echo, on_core(here):
            for size in SIZES:
                message = os.urandom(size)
                for part in (WARM_UP / 1e4, seconds):
                    times = timed(echo, message, part)
                found.append(times)
    finally:
        for server in servers:
            server.kill()
            server.wait()
    return found


def placements() -> dict[str, tuple[int | None, int | None]]:
    mine = cores()
    pinned = {"one core": (mine[0], mine[0])}
    if len(mine) > 1:
        pinned["two cores"] = (mine[0], mine[1])
    return {**pinned, "kernel's choice": (None, None)}


async def measure(rounds: int, seconds: float, only: str) -> dict[str, list[list[list[float]]]]:
    """Returns times by contestant and placement, then round, then size."""
    found: dict[str, list[list[list[float]]]] = {}

    def slice_of(key: str, name: str, here: int | None, there: int | None) -> Any:
        async def run() -> float:
            found.setdefault(key, []).append(
                await asyncio.to_thread(round_trips, name, here, there, seconds)
            )
            return 0.0

        return run

    slices = {}
    for placement, (here, there) in placements().items():
        for name, contestant in CONTESTANTS.items():
            missing = "iceoryx2" in name and importlib.util.find_spec("iceoryx2") is None
            alone = placement == "one core" and contestant.needs_a_core
            key = f"{placement}: {name}"
            if only in key and not (missing or alone):
                slices[key] = slice_of(key, name, here, there)
    await interleave(slices, rounds)
    return found


def report(found: dict[str, list[list[list[float]]]], options: argparse.Namespace) -> None:
    """Print the medians over rounds of each round's percentiles."""
    rows, figures = [], {}
    for key, by_round in sorted(found.items()):
        cells = []
        for index, size in enumerate(SIZES):
            for label, share in (("p50", 0.5), ("p99", 0.99)):
                value = median([percentile(sizes[index], share) for sizes in by_round])
                figures[f"{key}, {size} B, {label}"] = value
                cells.append(f"{value:.1f}")
        rows.append([key, *cells])
    heads = [f"{size} B {label}" for size in SIZES for label in ("p50", "p99")]
    text = table(["microseconds, there and back", *heads], rows)
    publish("Message queue", text, {"microseconds": figures}, options)


def main() -> None:
    """Measure and print, or serve."""
    if sys.argv[1:2] == ["--serve"]:
        name, core, *given = sys.argv[2:]
        if core != "-":
            os.sched_setaffinity(0, {int(core)})
        CONTESTANTS[name].serve(given)
        return
    parser = arguments(__doc__, rounds=5)
    parser.add_argument(
        "--seconds", type=float, default=0.1, help="for a size in a round (%(default)s)"
    )
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="what has this in its line, like 'two cores'"
    )
    options = parser.parse_args()
    report(asyncio.run(measure(options.rounds, options.seconds, options.only)), options)


if __name__ == "__main__":
    main()
