"""`python -m nnasync._core.service`: the process that a runtime starts for an isolated device.

It imports no command line, for it has to be there soon after the last one died. It ends with its
connection, or with SIGTERM.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import socket

from nnasync._core.kin import KIN
from nnasync._core.runtime import open_runtime, run
from nnasync._core.service import lifeline
from nnasync._core.service.acceptor import serve_connected
from nnasync._core.service.apology import apologize
from nnasync._core.service.limits import Limits
from nnasync._core.service.process_resources import for_service, limit_memory, options_of
from nnasync.errors import NNError


def main() -> str | None:
    """Serves one device to the process at the other end of a socket; returns an error in words."""
    parser = argparse.ArgumentParser(
        prog="python -m nnasync._core.service", description=main.__doc__
    )
    parser.add_argument("--device", metavar="NAME", required=True)
    parser.add_argument("--connected", metavar="FD", type=int, required=True)
    parser.add_argument("--lifeline", metavar="FD", type=int, required=True)
    parser.add_argument("--settings", metavar="JSON", default="{}")
    arguments = parser.parse_args()
    lifeline.hold(arguments.lifeline)
    KIN.joins(os.getppid())
    try:
        run(_serve, arguments.device, arguments.connected, arguments.settings)
    except NNError as error:
        return f"nnasync service of {arguments.device}: {error}"
    return None


async def _serve(name: str, fd: int, settings: str) -> None:
    with socket.socket(fileno=fd) as sock:
        options = for_service(options_of(settings))
        limit_memory(options.isolated_limit_bytes)
        async with contextlib.AsyncExitStack() as stack:
            try:
                opening = open_runtime(devices=[name], options=options)
                runtime = await stack.enter_async_context(opening)
            except NNError as error:
                apologize(sock, error)
                raise
            await serve_connected(runtime.devices[0], sock, Limits())


if __name__ == "__main__":
    raise SystemExit(main())
