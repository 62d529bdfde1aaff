"""`nnasync serve`: models over the network, for clients of Triton, KServe and plain HTTP."""

from __future__ import annotations

import argparse
import importlib.util
import logging
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from nnasync import Options, open_runtime, run
from nnasync.cli import certificate
from nnasync.cli.argument_types import number, port, positive
from nnasync.cli.interruption import interruptible
from nnasync.cli.text import HelpFormatter
from nnasync.devices import installed
from nnasync.errors import InvalidArgument
from nnasync.serving import ModelServer, ServeOptions

if TYPE_CHECKING:
    from nnasync.serving.http_server import Place

_EXAMPLES = """examples:
  nnasync serve mobilenet.tflite words.onnx
  nnasync serve --models ~/models --port 8000 --cache ~/.cache/nnasync
  nnasync serve --models ~/models --host 0.0.0.0 --api-keys keys.toml --certificate server.pem

A client:
  tritonclient.http.InferenceServerClient("localhost:8000").infer("mobilenet", inputs)

A folder has .tflite, .onnx and .nnm files, each perhaps with settings beside it in NAME.toml.
--api-keys names a TOML file of lines such as: ann = "her secret".
"""
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_PACKAGES = ("starlette", "uvicorn", "httptools")
_FOR_GRPC = ("grpc", "google.protobuf")
_MOST_KEYS_BYTES = 1 << 20


def add_parser(commands: Any) -> None:
    """Add this command to the command line."""
    parser = commands.add_parser(
        "serve",
        help="serve models over the network",
        description="Serve models over HTTP and gRPC with the Open Inference Protocol and the "
        "extensions of Triton, with deadlines and priorities that hold. Ends with Ctrl-C or "
        "SIGTERM: it is ready no more, answers what is in flight, and closes.",
        epilog=_EXAMPLES,
        formatter_class=HelpFormatter,
    )
    parser.add_argument("model", nargs="*", type=Path, metavar="MODEL", help="a file of a model")
    parser.add_argument("--models", type=Path, metavar="DIR", help="a folder of models")
    parser.add_argument(
        "--host", default="127.0.0.1", help="the address to listen at (127.0.0.1: this machine)"
    )
    parser.add_argument("--port", type=port, default=8000, help="the port for HTTP (8000; 0: any)")
    parser.add_argument(
        "--grpc-port", type=port, default=8001, metavar="PORT", help="the port for gRPC (8001)"
    )
    parser.add_argument("--no-grpc", action="store_true", help="serve over HTTP alone")
    _add_security(parser)
    _add_operation(parser)
    parser.add_argument("--device", help=argparse.SUPPRESS)
    parser.add_argument("--socket", help=argparse.SUPPRESS)
    parser.add_argument("--max-priority", help=argparse.SUPPRESS)
    parser.set_defaults(command=_command)


def _add_security(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--api-keys", type=Path, metavar="FILE", help="keys of clients; others are refused"
    )
    parser.add_argument(
        "--certificate", type=Path, metavar="FILE", help="serve over TLS, with this PEM file"
    )
    parser.add_argument(
        "--key", type=Path, metavar="FILE", help="the private key, where that file has not got it"
    )
    parser.add_argument(
        "--allow-load",
        action="store_true",
        help="let clients load and unload models of the folder; devices run in processes of their "
        "own then",
    )
    parser.add_argument(
        "--allow-settings", action="store_true", help="let clients change how much is logged"
    )
    parser.add_argument(
        "--shared-memory",
        action="store_true",
        help="let clients register shared memory, although --host lets in other machines",
    )


def _add_operation(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--drain",
        type=_seconds,
        default=10.0,
        metavar="SECONDS",
        help="how long what is in flight may take at the end (10)",
    )
    parser.add_argument(
        "--poll",
        type=_seconds,
        default=2.0,
        metavar="SECONDS",
        help="how often the folder is looked at for new and changed models (2; 0 is never)",
    )
    parser.add_argument("--cache", type=Path, metavar="DIR", help="keep compiled models there")
    parser.add_argument(
        "--cores", type=positive, metavar="N", help="executions that run at once (all cores)"
    )
    parser.add_argument(
        "--real-time",
        action="store_true",
        help="run the threads that talk to clients and wait for deadlines ahead of all other work, "
        "that of other programs too; takes root, CAP_SYS_NICE or a limit RLIMIT_RTPRIO of 3",
    )


def _seconds(text: str) -> float:
    seconds = number(text)
    if not 0 <= seconds < 1e6:
        raise argparse.ArgumentTypeError(f"{text} is not a number of seconds below a million")
    return seconds


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # not even the package that it would be in
        return False


def _command(arguments: argparse.Namespace) -> int:
    if arguments.device or arguments.socket or arguments.max_priority:
        raise InvalidArgument(
            "`nnasync serve` serves models over the network now; a device for other processes is "
            "served by `nnasync device-service --device NAME`"
        )
    if not arguments.model and arguments.models is None:
        raise InvalidArgument("name models, or a folder of them: --models FOLDER")
    for path in arguments.model:
        if path.is_dir():
            raise InvalidArgument(f"{path} is a folder; --models {path} serves the models in it")
    needed = _PACKAGES if arguments.no_grpc else (*_PACKAGES, *_FOR_GRPC)
    missing = [name for name in needed if not _is_there(name)]
    if missing:
        raise InvalidArgument(f"serving needs {', '.join(missing)}: pip install 'nnasync[serve]'")
    if arguments.cache is not None and arguments.cache.exists() and not arguments.cache.is_dir():
        raise InvalidArgument(f"--cache {arguments.cache} is no folder")
    certificate.check(arguments.certificate, arguments.key)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.WARNING)
    return run(_serve, arguments)


async def _serve(arguments: argparse.Namespace) -> int:
    from nnasync.serving.collecting import collecting_between_requests, keep_looking
    from nnasync.serving.http_server import Place, listening
    from nnasync.serving.process_memory import keep_memory

    keep_memory(shared=not arguments.real_time)
    _check_ports(arguments)
    options = _options(arguments)
    place = Place(
        host=arguments.host,
        port=arguments.port,
        certificate=arguments.certificate,
        key=arguments.key,
    )
    if arguments.host not in _LOOPBACK and not options.api_keys:
        print("nnasync: anybody who reaches this port is served: see --api-keys", file=sys.stderr)
    isolated = [device.name for device in installed() if not device.absence]
    async with (
        open_runtime(
            isolate=isolated if options.allow_load else (),
            options=_runtime_options(arguments),
        ) as runtime,
        ModelServer(runtime, arguments.model, folder=arguments.models, options=options) as server,
        listening(server, place) as address,
        _grpc_listening(server, place, arguments) as grpc_address,
    ):
        for entry in server.index():
            print(f"{entry.name} version {entry.version}: {entry.reason or entry.state.lower()}")
        with collecting_between_requests(server) as collector:
            print(f"serving at {address}{grpc_address}", flush=True)
            async with interruptible():
                await keep_looking(collector, server)
        return 0 if await server.drain() else 1


def _check_ports(arguments: argparse.Namespace) -> None:
    """Raises OSError for an address where nobody can listen, before models are compiled."""
    from nnasync.serving.http_server import listener_at

    ports = [arguments.port] if arguments.no_grpc else [arguments.port, arguments.grpc_port]
    if len(ports) == 2 and ports[0] == ports[1] != 0:
        raise InvalidArgument(f"--port and --grpc-port are both {ports[0]}")
    for wanted in ports:
        with listener_at(arguments.host, wanted):
            pass


@asynccontextmanager
async def _grpc_listening(
    server: ModelServer, place: Place, arguments: argparse.Namespace
) -> AsyncIterator[str]:
    """Serve over gRPC as well, where that is wanted; what to tell of it."""
    if arguments.no_grpc:
        yield ""
        return
    from nnasync.serving.grpc_front import open_grpc_front

    async with open_grpc_front(
        server,
        place.host,
        arguments.grpc_port,
        certificate=place.certificate,
        key=place.key or place.certificate,
    ) as front:
        yield f", and over gRPC at port {front.port}"


def _runtime_options(arguments: argparse.Namespace) -> Options:
    options = Options(real_time=arguments.real_time)
    if arguments.cores is not None:
        options = msgspec.structs.replace(options, cores=arguments.cores)
    return options


def _options(arguments: argparse.Namespace) -> ServeOptions:
    return ServeOptions(
        api_keys={} if arguments.api_keys is None else _keys(arguments.api_keys),
        allow_load=arguments.allow_load,
        allow_settings=arguments.allow_settings,
        drain_s=arguments.drain,
        poll_s=arguments.poll,
        cache_dir=arguments.cache,
        shared_memory=arguments.shared_memory or arguments.host in _LOOPBACK,
    )


def _keys(path: Path) -> dict[str, str]:
    """Clients by their keys, from a file that has it the other way round."""
    with path.open("rb") as file:
        content = file.read(_MOST_KEYS_BYTES)
    try:
        clients = msgspec.toml.decode(content, type=dict[str, str])
    except (msgspec.DecodeError, ValueError) as error:
        raise InvalidArgument(f"{path}: {error}") from error
    keys = {key: client for client, key in clients.items()}
    if len(keys) != len(clients) or not keys:
        raise InvalidArgument(f"{path}: each client has a key, and each key is another one")
    return keys
