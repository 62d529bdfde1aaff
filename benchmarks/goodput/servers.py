"""The servers: how each is started, and how it is asked."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np

from benchmarks.goodput.clients import Kind

__all__ = ["Contestant", "Tensor", "contestants", "random_tensor", "served"]

HOSTS = Path(__file__).parent / "hosts"
START_S = 90.0
END_S = 10.0
_TRIES = 100


class Tensor(msgspec.Struct, frozen=True):
    """The input that is sent: its name and shape, and the bytes of its UINT8 elements."""

    name: str
    shape: tuple[int, ...]
    raw: bytes


class Contestant(msgspec.Struct, frozen=True):
    """A server: the command that runs it, and how a request of a kind is written for it."""

    name: str
    command: Callable[[str, int, Path], list[str]]
    """Makes the command of a Python, a port and a model."""
    request: Callable[[Tensor, Kind], bytes]


def _post(path: str, body: bytes, **fields: object) -> bytes:
    head = {"host": "localhost", "accept": "*/*", "content-length": len(body), **fields}
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in head.items())
    return f"POST {path} HTTP/1.1\r\n{lines}\r\n".encode() + body


def _binary(name: str, tensor_name: str) -> Callable[[Tensor, Kind], bytes]:
    """Returns a function that writes requests with Triton's binary extension of the protocol."""

    def request(tensor: Tensor, kind: Kind) -> bytes:
        stated = {
            "parameters": {
                "priority": kind.priority,
                "timeout": kind.deadline_ms * 1000,
                "binary_data_output": True,
            },
            "inputs": [
                {
                    "name": tensor_name or tensor.name,
                    "shape": tensor.shape,
                    "datatype": "UINT8",
                    "parameters": {"binary_data_size": len(tensor.raw)},
                }
            ],
        }
        text = json.dumps(stated).encode()
        return _post(
            f"/v2/models/{name}/infer",
            text + tensor.raw,
            content_type="application/octet-stream",
            inference_header_content_length=len(text),
        )

    return request


def _text(tensor: Tensor) -> str:
    return base64.b64encode(tensor.raw).decode()


def _json(path: str) -> Callable[[Tensor, Kind], bytes]:
    """Returns a function that writes requests of one JSON text; they state no deadline."""

    def request(tensor: Tensor, kind: Kind) -> bytes:
        body = json.dumps({"x": _text(tensor)}).encode()
        return _post(path, body, content_type="application/json")

    return request


def _oip(tensor: Tensor, kind: Kind) -> bytes:
    stated = {"name": "x", "shape": [1], "datatype": "BYTES", "data": [_text(tensor)]}
    body = json.dumps({"inputs": [stated]}).encode()
    return _post("/v2/models/network/infer", body, content_type="application/json")


def _plain(tensor: Tensor, kind: Kind) -> bytes:
    return _post("/", tensor.raw, content_type="application/octet-stream")


def _ours(more: Sequence[str]) -> Callable[[str, int, Path], list[str]]:
    def command(python: str, port: int, model: Path) -> list[str]:
        serve = [python, "-m", "nnasync", "serve", str(model), "--port", str(port), "--no-grpc"]
        return [*serve, *more]

    return command


def _host(file: str) -> Callable[[str, int, Path], list[str]]:
    return lambda python, port, model: [python, str(HOSTS / file), str(port), str(model)]


def contestants(model: Path, *, real_time: bool = False) -> dict[str, Contestant]:
    """Returns all contestants by the package that they need; `real_time` is an option of ours."""
    ours = _ours(["--real-time"] if real_time else [])
    return {
        "nnasync": Contestant("nnasync serve", ours, _binary(model.stem, "")),
        "pytriton": Contestant("Triton", _host("triton_host.py"), _binary("network", "x")),
        "litserve": Contestant("LitServe", _host("litserve_host.py"), _json("/predict")),
        "mlserver": Contestant("MLServer", _host("mlserver_host.py"), _oip),
        "bentoml": Contestant("BentoML", _host("bentoml_host.py"), _json("/predict")),
        "ray": Contestant("Ray Serve", _host("ray_host.py"), _plain),
    }


def random_tensor(name: str, shape: tuple[int, ...]) -> Tensor:
    """Returns an input with the same random elements each time."""
    values = np.random.default_rng(7).integers(0, 256, shape, dtype=np.uint8)
    return Tensor(name, shape, values.tobytes())


@contextlib.contextmanager
def served(
    contestant: Contestant, python: str, model: Path, request: bytes, log: Path
) -> Iterator[int]:
    """Runs a server while the block runs; yields its port once it has answered a request."""
    port = _free_ports()
    with log.open("wb") as output:
        process = subprocess.Popen(
            contestant.command(python, port, model.absolute()),
            stdout=output,
            stderr=output,
            start_new_session=True,
            cwd=log.parent,
            env={
                **_environment(),
                "PATH": f"{Path(python).parent}{os.pathsep}{os.environ['PATH']}",
            },
        )
        try:
            _await_answer(process, port, request, log)
            yield port
        finally:
            _end(process)


def _free_ports() -> int:
    """Returns the first of three consecutive ports that nobody uses."""
    for _ in range(_TRIES):
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError, OverflowError):
            first = stack.enter_context(socket.create_server(("", 0))).getsockname()[1]
            for port in (first + 1, first + 2):
                stack.enter_context(socket.create_server(("", port)))
            return int(first)
    raise RuntimeError("there are no three free ports in a row")


def _environment() -> Mapping[str, str]:
    return {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "RAY_USAGE_STATS_ENABLED": "0"}


def _await_answer(process: subprocess.Popen[bytes], port: int, request: bytes, log: Path) -> None:
    """Wait until a request is answered with 200; raises RuntimeError where that takes too long."""
    end_s = time.monotonic() + START_S
    status = b"no answer"
    while time.monotonic() < end_s and process.poll() is None:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
                connection.sendall(request)
                status = connection.recv(4096).split(b"\r\n")[0]
        except OSError:
            status = b"no answer"
        if b" 200" in status:
            return
        time.sleep(0.2)
    tail = log.read_text(errors="replace")[-2000:]
    raise RuntimeError(f"it does not serve: {status.decode(errors='replace')}\n{tail}")


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        pass
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
