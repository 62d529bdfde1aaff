"""`nnasync device-service`: a device for other processes, behind a Unix socket or over TCP."""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
from pathlib import Path
from typing import Any

import anyio

from nnasync import Options, Priority, open_runtime, run, serve
from nnasync.cli import certificate
from nnasync.cli.argument_types import device, positive
from nnasync.cli.interruption import interruptible
from nnasync.cli.text import HelpFormatter
from nnasync.devices import state_folder
from nnasync.errors import InvalidArgument
from nnasync.tracing import monitored

_EXAMPLES = """examples:
  nnasync device-service --device litert-cpu
  nnasync device-service --device litert-cpu --monitor          nnasync top shows its clients
  nnasync device-service --device nnasync-reference --socket ~/run/reference.socket --cores 1
  nnasync device-service --device litert-cpu --listen 0.0.0.0:7007 --key-file device.key \\
      --certificate server.pem --private-key server.key

In another process of the same user:
  device = await nn.connect(path)
On another machine, with a copy of the key:
  device = await nn.connect("tcp://10.0.0.5:7007", key="device.key", ca="server.pem")
Then:
  async with nn.open_runtime(devices=[device, "nnasync-reference"]) as rt: ...
"""


def add_parser(commands: Any) -> None:
    """Add this command to the command line."""
    parser = commands.add_parser(
        "device-service",
        help="serve a device to other processes",
        description="Run a device in this process for clients of the same user, which connect to "
        "a Unix socket. Its folder is made, and must be open to this user alone. With --listen for "
        "clients on other machines, which have the same key. Ends with Ctrl-C or SIGTERM.",
        epilog=_EXAMPLES,
        formatter_class=HelpFormatter,
    )
    parser.add_argument(
        "--device",
        metavar="NAME",
        type=device,
        required=True,
        help="the device to serve: its name, or module:factory of one that is not installed",
    )
    parser.add_argument(
        "--socket",
        metavar="PATH",
        help="where to listen (NAME.socket in $XDG_RUNTIME_DIR/nnasync or in the state folder)",
    )
    _add_listening(parser)
    parser.add_argument(
        "--cores", type=positive, metavar="N", help="executions that run at once (all cores)"
    )
    parser.add_argument(
        "--max-priority",
        choices=[priority.name.lower() for priority in Priority],
        default="high",
        help="the highest priority that executions of a client get, whatever it asks for (high)",
    )
    parser.add_argument(
        "--monitor",
        action="store_true",
        help="let `nnasync top` of this user show what clients do",
    )
    parser.set_defaults(command=_command)


def _add_listening(parser: argparse.ArgumentParser) -> None:
    """Add the arguments for clients on other machines."""
    parser.add_argument(
        "--listen",
        metavar="HOST:PORT",
        help="listen there instead, for other machines; port 0 is a free one",
    )
    parser.add_argument(
        "--key-file",
        metavar="FILE",
        help="the key that clients of --listen need too, at least 16 bytes in a file of mode 600, "
        "as `openssl rand -hex 32` writes; only 127.0.0.1 and ::1 do without",
    )
    parser.add_argument(
        "--certificate",
        type=Path,
        metavar="FILE",
        help="encrypt what clients of --listen say: the certificate of this machine, in PEM format",
    )
    parser.add_argument(
        "--private-key",
        type=Path,
        metavar="FILE",
        help="its key, where the certificate has none beside it",
    )


def _command(arguments: argparse.Namespace) -> int:
    return run(_serve, arguments)


async def _serve(arguments: argparse.Namespace) -> int:
    security = _security(arguments)
    # LOW work that is alone runs at the lowest OS priority: here it stalls no application's loop.
    options = Options(low_os_priority="alone")
    if arguments.cores is not None:
        options = Options(low_os_priority="alone", cores=arguments.cores)
    async with (
        interruptible(),
        open_runtime(devices=[arguments.device], options=options) as runtime,
        monitored(runtime) if arguments.monitor else contextlib.nullcontext(),
        anyio.create_task_group() as tasks,
    ):
        (served,) = runtime.devices
        highest = Priority[arguments.max_priority.upper()]
        place = _place(arguments, served.name)
        serving = functools.partial(serve, served, place, max_priority=highest, **security)
        print(f"{served.name} listens at {await tasks.start(serving)}", flush=True)
    return 0


def _security(arguments: argparse.Namespace) -> dict[str, Any]:
    """Returns the files that secure clients on other machines; none for a Unix socket."""
    security: dict[str, Any] = {
        "key": arguments.key_file,
        "certificate": arguments.certificate,
        "private_key": arguments.private_key,
    }
    if arguments.listen is not None and arguments.socket is not None:
        raise InvalidArgument("--listen and --socket are two places: one service has one")
    if arguments.listen is None and any(security.values()):
        raise InvalidArgument("--key-file, --certificate and --private-key need --listen")
    certificate.check(arguments.certificate, arguments.private_key, option="--private-key")
    return security if arguments.listen is not None else {}


def _place(arguments: argparse.Namespace, name: str) -> Path | str:
    """Returns where to listen; `name` is that of the device."""
    if arguments.listen is not None:
        return f"tcp://{arguments.listen.removeprefix('tcp://')}"
    if arguments.socket is not None:
        return Path(arguments.socket).expanduser().absolute()
    folder = os.environ.get("XDG_RUNTIME_DIR", "")
    own = os.path.join(folder, "nnasync")
    base = Path(own if os.path.isabs(folder) else os.path.join(state_folder(), "run"))
    return base.absolute() / f"{name}.socket"
