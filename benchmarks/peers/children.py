"""Child processes: every measurement runs in one, because an engine may end its process.

The parent calls `measure(section, task)`. The child finds the section's function in `SECTIONS`,
runs it on an event loop, and writes one line of JSON for each thing that it begins and one for the
result to a pipe of its own: engines print on standard output and standard error what they like.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

import nnasync as nn

__all__ = ["Outcome", "Tell", "measure"]

SECTIONS = {
    "compute": "benchmarks.peers.compute",
    "awaited": "benchmarks.peers.awaited",
    "calls": "benchmarks.peers.calls",
    "qos": "benchmarks.peers.qos",
    "idle": "benchmarks.peers.idle",
    "first": "benchmarks.peers.first",
}
ROOT = Path(__file__).resolve().parent.parent.parent
Tell = Callable[[str], None]


class Outcome(msgspec.Struct, frozen=True):
    """The result of a child: its figures, or why there are none and what it was doing."""

    figures: Mapping[str, Any] | None
    failure: str = ""
    during: str = ""


def measure(section: str, task: Mapping[str, Any], *, timeout_s: float, tell: Tell) -> Outcome:
    """Runs one task of a section in a child; never raises for what happens there."""
    readable, writable = os.pipe()
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.peers.children", section, str(writable)],
            stdin=subprocess.PIPE,
            stdout=errors,
            stderr=errors,
            pass_fds=[writable],
            env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"},
            cwd=ROOT,
        )
        os.close(writable)
        try:
            _send(process, task)
            found, during = _listen(readable, timeout_s, tell)
            if found is None and process.poll() is None:
                _end(process)
            process.wait()
        finally:
            os.close(readable)
            _end(process)
        if found is not None:
            return Outcome(found)
        errors.seek(0)
        told = errors.read().decode(errors="replace")
    return Outcome(None, _why(process.returncode, told, timeout_s), during)


def _send(process: subprocess.Popen[bytes], task: Mapping[str, Any]) -> None:
    stdin = process.stdin
    if stdin is not None:
        stdin.write(json.dumps(task).encode())
        stdin.close()


def _listen(pipe: int, timeout_s: float, tell: Tell) -> tuple[dict[str, Any] | None, str]:
    """Returns the result and what was begun last; None if the child ended or took too long."""
    until_s, pending, during = time.monotonic() + timeout_s, b"", ""
    while (left_s := until_s - time.monotonic()) > 0:
        if not select.select([pipe], [], [], left_s)[0]:
            break
        data = os.read(pipe, 1 << 16)
        if not data:
            break
        *lines, pending = (pending + data).split(b"\n")
        for line in lines:
            message = json.loads(line)
            if "result" in message:
                result: dict[str, Any] = message["result"]
                return result, during
            during = message["doing"]
            tell(during)
    return None, during


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.kill()
        process.wait()


def _why(code: int, told: str, timeout_s: float) -> str:
    lines = [line.strip() for line in told.splitlines() if line.strip()]
    last = f" ({lines[-1][:120]})" if lines else ""
    if code == -signal.SIGKILL:
        return f"did not end within {timeout_s:.0f} s"
    if code < 0:
        return f"the process died of {signal.Signals(-code).name}{last}"
    return f"failed{last}"


def _child(section: str, pipe: int) -> None:
    """Runs the tasks that come through the pipe, in the child."""
    task = json.loads(sys.stdin.buffer.read())

    def write(message: Mapping[str, Any]) -> None:
        os.write(pipe, json.dumps(message).encode() + b"\n")

    work = importlib.import_module(SECTIONS[section]).child
    result = nn.run(work, task, lambda doing: write({"doing": doing}))
    write({"result": result})
    # Engines have threads and handlers of their own, which nobody needs any more.
    os._exit(0)


if __name__ == "__main__":
    _child(sys.argv[1], int(sys.argv[2]))
