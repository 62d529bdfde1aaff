"""Requests of little priority that another process sends, more than the machine can do.

Who measures urgent requests is not who sends the flood: a client that is busy with sending
thousands of others sees its own answers late, whatever the server does.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator

import uvloop

from benchmarks.goodput.clients import Kind, answers, arrivals

FLOOD = Kind("flood", 1.0, 250, 3)
"""Clients that hang up after a while."""


@contextlib.contextmanager
def flood(
    port: int, request: bytes, rate_hz: float, duration_s: float, seed: int
) -> Iterator[None]:
    """Sends a request to a local server at this rate, from another process, while the block runs.

    It ends after `duration_s`; the block is left when it has.
    """
    command = [sys.executable, "-m", __spec__.name, str(port), str(rate_hz), str(duration_s)]
    pipe = subprocess.PIPE
    with subprocess.Popen([*command, str(seed)], stdin=pipe, stdout=pipe) as process:
        try:
            if process.stdout is None or process.stdin is None:
                raise RuntimeError("the process has no pipes")
            process.stdout.readline()
            process.stdin.write(request)
            process.stdin.close()
            yield
            process.stdout.read()
        finally:
            process.kill()


def main() -> None:
    """Prints that it is ready, reads the request, and sends it until the time is over."""
    port, rate_hz, duration_s, seed = (float(each) for each in sys.argv[1:])
    plan = arrivals(rate_hz, duration_s, int(seed), (FLOOD,))
    print("ready", flush=True)
    uvloop.run(answers(int(port), [sys.stdin.buffer.read()], plan, (FLOOD,)))


if __name__ == "__main__":
    main()
