"""`nnasync serve`: a device for other processes, behind a Unix socket."""

from __future__ import annotations

import argparse
import os
import socket
from pathlib import Path
from typing import Any

import msgspec

from nnasync.cli.arguments import positive
from nnasync.cli.interruption import interruptible
from nnasync.compilation import state_folder
from nnasync.errors import InvalidArgument
from nnasync.runtime import Options, open_runtime, run
from nnasync.service import Limits, listening, serve, serve_connected

__all__ = ["add_parser"]

_EXAMPLES = """examples:
  nnasync serve --device litert-cpu
  nnasync serve --device nnasync-reference --socket ~/run/reference.socket --cores 1

In another process of the same user:
  device = await nnasync.drivers.service.connect(path)
  async with nnasync.open_runtime(devices=[device]) as rt: ...
"""


def add_parser(commands: Any) -> None:
    """Add this command to the command line."""
    parser = commands.add_parser(
        "serve",
        help="serve a device to other processes",
        description="Run a device in this process for clients of the same user, which connect to "
        "a Unix socket. Its folder is made, and must be open to this user alone. Ends with Ctrl-C "
        "or SIGTERM.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--device", metavar="NAME", required=True, help="the device to serve")
    parser.add_argument(
        "--socket",
        metavar="PATH",
        help="where to listen (NAME.socket in $XDG_RUNTIME_DIR/nnasync or in the state folder)",
    )
    parser.add_argument(
        "--cores", type=positive, metavar="N", help="executions that run at once (all cores)"
    )
    # How a runtime starts the service of an isolated device.
    parser.add_argument("--connected", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--settings", default="{}", help=argparse.SUPPRESS)
    parser.set_defaults(command=_command)


def _command(arguments: argparse.Namespace) -> int:
    return run(_serve, arguments)


async def _serve(arguments: argparse.Namespace) -> int:
    options = _options(arguments)
    async with (
        interruptible(),
        open_runtime(devices=[arguments.device], options=options) as runtime,
    ):
        device = runtime.device(arguments.device)
        if arguments.connected is not None:
            await serve_connected(device, socket.socket(fileno=arguments.connected), Limits())
        else:
            path = _path(arguments)
            with listening(path) as listener:
                print(f"{device.name} listens at {path}", flush=True)
                await serve(device, listener, Limits())
    return 0


def _options(arguments: argparse.Namespace) -> Options:
    settings = msgspec.json.decode(arguments.settings, type=dict[str, Any])
    if arguments.cores is not None:
        settings["cores"] = arguments.cores
    try:
        return Options(**settings)
    except TypeError as error:
        raise InvalidArgument(f"--settings: {error}") from error


def _path(arguments: argparse.Namespace) -> Path:
    if arguments.socket is not None:
        return Path(arguments.socket).expanduser().absolute()
    folder = os.environ.get("XDG_RUNTIME_DIR", "")
    base = Path(folder) / "nnasync" if os.path.isabs(folder) else state_folder() / "run"
    return base.absolute() / f"{arguments.device}.socket"
