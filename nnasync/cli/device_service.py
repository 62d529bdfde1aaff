"""`nnasync device-service`: a device for other processes, behind a Unix socket."""

from __future__ import annotations

import argparse
import functools
import os
from pathlib import Path
from typing import Any

import anyio

from nnasync import Options, Priority, open_runtime, run, serve
from nnasync.cli.argument_types import positive
from nnasync.cli.interruption import interruptible
from nnasync.cli.text import HelpFormatter
from nnasync.devices import state_folder

_EXAMPLES = """examples:
  nnasync device-service --device litert-cpu
  nnasync device-service --device nnasync-reference --socket ~/run/reference.socket --cores 1

In another process of the same user:
  device = await nn.connect(path)
  async with nn.open_runtime(devices=[device, "nnasync-reference"]) as rt: ...
"""


def add_parser(commands: Any) -> None:
    """Add this command to the command line."""
    parser = commands.add_parser(
        "device-service",
        help="serve a device to other processes",
        description="Run a device in this process for clients of the same user, which connect to "
        "a Unix socket. Its folder is made, and must be open to this user alone. Ends with Ctrl-C "
        "or SIGTERM.",
        epilog=_EXAMPLES,
        formatter_class=HelpFormatter,
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
    parser.add_argument(
        "--max-priority",
        choices=[priority.name.lower() for priority in Priority],
        default="high",
        help="the highest priority that executions of a client get, whatever it asks for (high)",
    )
    parser.set_defaults(command=_command)


def _command(arguments: argparse.Namespace) -> int:
    return run(_serve, arguments)


async def _serve(arguments: argparse.Namespace) -> int:
    # LOW work that is alone runs at the lowest OS priority: here it stalls no application's loop.
    options = Options(low_os_priority="alone")
    if arguments.cores is not None:
        options = Options(low_os_priority="alone", cores=arguments.cores)
    async with (
        interruptible(),
        open_runtime(devices=[arguments.device], options=options) as runtime,
        anyio.create_task_group() as tasks,
    ):
        device, path = runtime.device(arguments.device), _path(arguments)
        highest = Priority[arguments.max_priority.upper()]
        await tasks.start(functools.partial(serve, device, path, max_priority=highest))
        print(f"{device.name} listens at {path}", flush=True)
    return 0


def _path(arguments: argparse.Namespace) -> Path:
    if arguments.socket is not None:
        return Path(arguments.socket).expanduser().absolute()
    folder = os.environ.get("XDG_RUNTIME_DIR", "")
    own = os.path.join(folder, "nnasync")
    base = Path(own if os.path.isabs(folder) else os.path.join(state_folder(), "run"))
    return base.absolute() / f"{arguments.device}.socket"
