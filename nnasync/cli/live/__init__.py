"""`nnasync live`: a page in the browser that shows what the networks see and hear."""

from __future__ import annotations

import argparse
import importlib.util
import logging
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nnasync import run
from nnasync.cli.argument_types import port
from nnasync.cli.interruption import interruptible
from nnasync.cli.text import HelpFormatter
from nnasync.errors import InvalidArgument

__all__ = ["add_parser"]

_DESCRIPTION = """Serve a page that shows two live streams on their way through three networks:
digits in pictures at MEDIUM priority, spoken digits at HIGH, and clients of a
larger network as LOW load; with the account of every frame, latencies against
deadlines, and who has which core. On the page priorities and deadlines can be
changed, load added, the network cut, and the process of a driver killed."""

_EXAMPLES = """examples:
  nnasync live                           the camera and microphone of whoever opens the page
  nnasync live --source demo             the demo's clips, for everybody who opens it
  nnasync live --source corridor.mp4     a recording, over and over
  nnasync live --host 0.0.0.0            for others in the network; the address has a token
  nnasync live --host 192.168.1.20 --certificate live.pem --key live.key
                                         and the cameras of phones, which need HTTPS
"""

_PACKAGES = ("aiortc", "av", "httptools", "starlette", "uvicorn", "websockets")


def add_parser(commands: Any) -> None:
    """Add this command to the command line."""
    parser = commands.add_parser(
        "live",
        help="show live streams on a page in the browser",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=HelpFormatter,
    )
    parser.add_argument(
        "--source",
        default="",
        metavar="WHAT",
        help='play this to all pages instead of their cameras: "demo", a file, an address '
        '("rtsp://camera.local/stream"), or a camera by its number or path',
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen at (127.0.0.1)")
    parser.add_argument("--port", type=port, default=8765, help="port (8765; 0 takes a free one)")
    parser.add_argument(
        "--token",
        type=_token,
        default="",
        metavar="TEXT",
        help="what the address of the page must have; made up where others can reach the page",
    )
    parser.add_argument(
        "--certificate",
        type=Path,
        metavar="FILE",
        help="serve over HTTPS, with the certificate in this PEM file",
    )
    parser.add_argument(
        "--key",
        type=Path,
        metavar="FILE",
        help="the private key of the certificate, where that file has not got it",
    )
    parser.add_argument(
        "--low", type=int, choices=range(5), default=0, help="clients of the LOW load at first (0)"
    )
    parser.add_argument(
        "--data", type=Path, metavar="DIR", help="folder of other clips and networks"
    )
    parser.set_defaults(command=_command)


def _token(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9._~-]*", text):
        raise argparse.ArgumentTypeError("a token has letters, digits and . _ ~ - alone")
    return text


def _command(arguments: argparse.Namespace) -> int:
    missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise InvalidArgument(
            f"the live page needs {', '.join(missing)}: pip install 'nnasync[live]'"
        )
    with _one_line_an_error():
        return run(_serve, arguments)


@contextmanager
def _one_line_an_error() -> Iterator[None]:
    """An item that fails is told without its traceback: killing a driver is part of the page."""

    class OneLine(logging.Formatter):
        def formatException(self, ei: object) -> str:  # noqa: N802  # the name is logging's
            return ""

    handler, logger = logging.StreamHandler(), logging.getLogger("nnasync")
    handler.setFormatter(OneLine("%(message)s"))
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


async def _serve(arguments: argparse.Namespace) -> int:
    from nnasync.cli.live.server import LOOPBACK, LiveOptions, serve

    token = arguments.token
    if not token and arguments.host not in LOOPBACK:
        token = secrets.token_urlsafe(16)
    options = LiveOptions(
        source=arguments.source,
        host=arguments.host,
        port=arguments.port,
        token=token,
        certificate=arguments.certificate,
        key=arguments.key,
        low_clients=arguments.low,
        data=arguments.data,
    )
    print("compiling the networks ...", flush=True)
    async with interruptible():
        await serve(options, lambda url: print(f"open {url} in a browser; Ctrl-C ends", flush=True))
    return 0
