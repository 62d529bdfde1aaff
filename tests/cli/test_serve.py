"""`nnasync serve`: models at a port, until it is ended."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import nnasync as nn
from nnasync.cli import main
from tests.rigs import doubler
from tests.serving.rig import INFER, body

pytest.importorskip("httptools", reason="the extra serve is not installed")
pytest.importorskip("grpc", reason="the extra serve is not installed")

WAIT_S = 30


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "doubler.nnm"
    nn.save(doubler(), path)
    return path


@contextmanager
def serving(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The command in a process, and the address that it tells."""
    command = [
        sys.executable,
        "-m",
        "nnasync",
        "serve",
        "--port",
        "0",
        "--grpc-port",
        "0",
        *arguments,
    ]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    ) as process:
        try:
            assert process.stdout is not None
            lines = iter(process.stdout.readline, "")
            told = next(line for line in lines if line.startswith("serving at "))
            assert "over gRPC at port" in told
            yield process, told.removeprefix("serving at ").partition(",")[0]
        finally:
            process.kill()


def posted(address: str, **headers: str) -> dict[str, object]:
    request = urllib.request.Request(
        address + INFER, json.dumps(body()).encode(), headers, method="POST"
    )
    with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
        return dict(json.loads(answer.read()))


def test_it_serves_and_ends_in_order(model: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text('ann = "secret"\n')
    with serving("--models", str(model.parent), "--api-keys", str(keys)) as (process, address):
        answer = posted(address, **{"X-API-Key": "secret"})
        assert answer["outputs"] == [
            {"name": "y", "datatype": "FP32", "shape": [1, 4], "data": [2, 4, 6, 8]}
        ]
        with pytest.raises(urllib.error.HTTPError, match="401") as refused:
            posted(address)
        refused.value.close()
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--device", "nnasync-reference"], "nnasync device-service --device"),
        ([], "name models, or a folder"),
        (["nope.nnm"], "nope.nnm"),
        (["pyproject.toml"], "a model ends in"),
        (["--models", "nowhere"], "nowhere"),
        (["MODEL", "--key", "k.pem"], "--certificate"),
        (["MODEL", "--api-keys", "pyproject.toml"], "pyproject.toml"),
        (["tests"], "tests is a folder; --models tests"),
        (["MODEL", "--cache", "pyproject.toml"], "--cache pyproject.toml is no folder"),
        (["MODEL", "--port", "9", "--grpc-port", "9"], "--port and --grpc-port are both 9"),
    ],
)
def test_what_cannot_be_served(
    model: Path, arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [str(model) if argument == "MODEL" else argument for argument in arguments]
    assert main(["serve", *given]) == 1
    assert text in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--port", "--grpc-port"])
def test_a_port_that_is_taken_is_told_before_models_are_compiled(
    model: Path, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        ports = {"--port": "0", "--grpc-port": "0", option: port}
        given = [word for pair in ports.items() for word in pair]
        assert main(["serve", str(model), *given]) == 1
    assert capsys.readouterr().err == f"nnasync: error: 127.0.0.1:{port}: Address already in use\n"


def test_real_time_that_is_not_permitted_is_told(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("os.sched_setscheduler", refused, raising=False)
    assert main(["serve", str(model), "--port", "0", "--no-grpc", "--real-time"]) == 1
    assert "RLIMIT_RTPRIO" in capsys.readouterr().err
