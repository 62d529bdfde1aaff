"""Serving: processor time of the server for a small request, beside an empty ASGI application.

Both servers run in processes of their own, on uvicorn with httptools, uvloop and the same options:
one with an application that answers at once and does nothing, one with `nnasync.serving` and a
network of one small operation, on the reference. One connection that is kept alive sends requests
one after the other, in JSON and in binary, to each in turn. Processor time is that of all threads
of the server's process, from /proc/PID/task/*/schedstat; ratios are medians of those of rounds in
one run. A third server is the one that does nothing but call the network: the last column is
without what that takes.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import socket
from collections.abc import Iterator
from typing import Any

import numpy as np
import uvicorn

import nnasync as nn
from benchmarks._report import arguments, median, publish, spread, table
from benchmarks._served import cpu_us, server_process
from nnasync.serving import ModelServer, ModelSettings, ServeOptions
from nnasync.serving.http_server import Place, listening
from nnasync.serving.process_memory import keep_memory

EMPTY, JSON_REQUEST, BINARY_REQUEST = "empty application", "inference, JSON", "inference, binary"
LARGE_EMPTY, LARGE = "empty application, 600 kB", "inference, 600 kB binary"
NETWORK = "empty application, and the network"
SMALL_SHAPE, LARGE_SHAPE = (1, 4), (1, 150_000)
DEVICES = ["nnasync-reference"]
_MANY_BYTES = bytes(4 * LARGE_SHAPE[1])


def model(name: str, shape: tuple[int, ...]) -> nn.Model:
    """Returns a model of one operation on an input of this shape."""
    builder = nn.ModelBuilder(name)
    builder.output("y", builder.relu(builder.input("x", shape)))
    return builder.build()


async def serve(kind: str) -> None:
    """Serves until the process is ended, and prints the port."""
    keep_memory()
    if kind == "empty":
        await _serve_app(empty)
        return
    if kind == "network":
        async with nn.open_runtime(devices=DEVICES) as runtime:
            await _serve_app(calling(await runtime.compile(model("small", SMALL_SHAPE))))
        return
    async with (
        nn.open_runtime(devices=DEVICES) as runtime,
        ModelServer(runtime, options=ServeOptions(poll_s=0)) as server,
        listening(server, Place(port=0)) as address,
    ):
        for name, shape in (("small", SMALL_SHAPE), ("large", LARGE_SHAPE)):
            net = await runtime.compile(model(name, shape))
            await server.add(net, ModelSettings(name=name))
        print(address.rpartition(":")[2], flush=True)
        await asyncio.Event().wait()


async def _serve_app(app: Any) -> None:
    """Serve an application, with the options of uvicorn that the server has."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        config = uvicorn.Config(
            app,
            http="httptools",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
        )
        await uvicorn.Server(config).serve(sockets=[listener])


async def empty(scope: Any, receive: Any, send: Any) -> None:
    """An application that answers at once, or gives as many bytes as a large request has."""
    body = b"{}"
    if scope["path"] == "/v2/models/large/infer":
        while (await receive()).get("more_body"):
            pass
        body = _MANY_BYTES
    head = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": head})
    await send({"type": "http.response.body", "body": body})


def calling(net: Any) -> Any:
    """Returns an application that calls a network, and then answers as `empty`."""
    x = np.zeros(SMALL_SHAPE, np.float32)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await net(x)
        await empty(scope, receive, send)

    return app


class Served:
    """A server in a process of its own, and a connection to it."""

    def __init__(self, pid: int, port: int) -> None:
        self._pid = pid
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, request: bytes) -> bytes:
        """Returns the answer to one request."""
        self._socket.sendall(request)
        received = b""
        while b"\r\n\r\n" not in received:
            received += self._more()
        head, _, body = received.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        parts = [body]
        count = len(body)
        while count < length:
            parts.append(self._more())
            count += len(parts[-1])
        if b" 200 " not in head:
            raise RuntimeError(b"".join(parts).decode())
        return b"".join(parts)

    def _more(self) -> bytes:
        part = self._socket.recv(1 << 20)
        if not part:
            raise RuntimeError("the server closed the connection")
        return part

    def cpu_us(self, request: bytes, times: int) -> float:
        """Returns the microseconds of processor time of one request."""
        return cpu_us(self._pid, self.ask, request, times)


@contextlib.contextmanager
def served(kind: str) -> Iterator[Served]:
    """Runs a server while the block runs."""
    with server_process(__file__, kind) as (pid, port):
        yield Served(pid, port)


def post(name: str, shape: tuple[int, ...], *, binary: bool) -> bytes:
    """Returns a whole request as bytes."""
    array = np.arange(np.prod(shape), dtype=np.float32)
    tensor: dict[str, Any] = {"name": "x", "shape": shape, "datatype": "FP32"}
    told: dict[str, Any] = {"inputs": [tensor]}
    extra, raw = "", b""
    if binary:
        tensor["parameters"] = {"binary_data_size": array.nbytes}
        told["parameters"] = {"binary_data_output": True}
        raw = array.tobytes()
        extra = f"Inference-Header-Content-Length: {len(json.dumps(told))}\r\n"
    else:
        tensor["data"] = array.tolist()
    text = json.dumps(told).encode()
    head = (
        f"POST /v2/models/{name}/infer HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\n"
        f"User-Agent: benchmark\r\n{extra}Content-Length: {len(text) + len(raw)}\r\n\r\n"
    )
    return head.encode() + text + raw


def compared(
    found: dict[str, list[float]], empty: str, network: str, others: dict[str, str]
) -> str:
    """Returns a table with ratios to `empty`, or to what `others` names for a row.

    The last column is without what the network takes, which is `network` less `empty`.
    """
    nets = [two - one for one, two in zip(found[empty], found[network], strict=True)]
    rows = []
    for name, values in found.items():
        base = found[others.get(name, empty)]
        cells = [f"{median([a / b for a, b in zip(values, base, strict=True)]):.2f}", ""]
        if name not in others and name != empty:
            rest = zip(values, nets, base, strict=True)
            cells[1] = f"{median([(value - net) / b for value, net, b in rest]):.2f}"
        rows.append([name, spread(values), *cells])
    heads = ["request", "CPU us (quartiles)", "to empty", "without the network"]
    return table(heads, rows)


def measured(rounds: int, requests: int) -> dict[str, list[float]]:
    """Returns the processor time of a request in microseconds, in each round."""
    small = {is_binary: post("small", SMALL_SHAPE, binary=is_binary) for is_binary in (False, True)}
    large = post("large", LARGE_SHAPE, binary=True)
    with served("empty") as nothing, served("network") as network, served("models") as models:
        turns = {
            EMPTY: (nothing, small[False], requests),
            NETWORK: (network, small[False], requests),
            JSON_REQUEST: (models, small[False], requests),
            BINARY_REQUEST: (models, small[True], requests),
            LARGE_EMPTY: (nothing, large, max(1, requests // 20)),
            LARGE: (models, large, max(1, requests // 20)),
        }
        for server, request, times in turns.values():
            server.cpu_us(request, max(1, times // 4))
        found: dict[str, list[float]] = {name: [] for name in turns}
        for _ in range(rounds):
            for name, (server, request, times) in turns.items():
                found[name].append(server.cpu_us(request, times))
    return found


def main() -> None:
    """Measure and print."""
    parser = arguments(__doc__, rounds=9)
    parser.add_argument("--requests", type=int, default=1000, help="in a round (%(default)s)")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        nn.run(serve, options.serve)
        return
    found = measured(options.rounds, options.requests)
    large = (LARGE, LARGE_EMPTY)
    publish(
        "Serving over HTTP",
        compared(found, EMPTY, NETWORK, dict.fromkeys(large, LARGE_EMPTY)),
        {"cpu_us": found},
        options,
    )


if __name__ == "__main__":
    main()
