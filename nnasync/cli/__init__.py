"""The command line: one module a command, each with `add_parser`.

A command returns its exit code: 0, 1 after an error (told in one line on stderr), 2 for wrong
arguments, 130 and 143 when it was ended by Ctrl-C or SIGTERM. NNASYNC_DEBUG=1 in the environment
shows the traceback of an error.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

from nnasync import __version__
from nnasync.cli import (
    bench,
    calibrate,
    conformance,
    demo,
    device_service,
    devices,
    doctor,
    dump,
    experiment,
    fuzz,
    live,
    randomgraph,
    run,
    serve,
    suite,
    top,
    trace,
    verdicts,
)
from nnasync.errors import NNError

__all__ = ["main"]

_COMMANDS = (
    devices,
    doctor,
    run,
    trace,
    bench,
    calibrate,
    dump,
    conformance,
    randomgraph,
    suite,
    fuzz,
    serve,
    device_service,
    demo,
    live,
    top,
    experiment,
    verdicts,
)
_INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    arguments = _parser().parse_args(words, argparse.Namespace(words=words))
    at_sigterm = signal.getsignal(signal.SIGTERM)
    try:
        code: int = arguments.command(arguments)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (NNError, OSError, BaseExceptionGroup) as error:
        known = _known(error)
        if known is None or os.environ.get("NNASYNC_DEBUG"):
            raise
        print(f"nnasync: error: {_one_line(known)}", file=sys.stderr)
        return 1
    finally:
        if signal.getsignal(signal.SIGTERM) is not at_sigterm:
            signal.signal(signal.SIGTERM, at_sigterm)
    return code


class _Parser(argparse.ArgumentParser):
    """A parser that names options which it does not know, and suggests similar ones."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            options = [word.partition("=")[0] for word in unknown if word.startswith("-")]
            like = [
                near
                for option in options
                for near in get_close_matches(option, self._option_string_actions, 1)
            ]
            hint = f" (did you mean {', '.join(like)}?)" if like else ""
            self.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
        return found, unknown


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="nnasync",
        description="Neural networks on live streams, with priorities and deadlines.",
        epilog="`nnasync COMMAND --help` has the options and examples of a command.",
    )
    parser.add_argument("--version", action="version", version=f"nnasync {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for module in _COMMANDS:
        module.add_parser(commands)
    return parser


def _known(error: BaseException) -> BaseException | None:
    """The first expected error, which may sit in groups; None if there is none."""
    if isinstance(error, BaseExceptionGroup):
        found = (_known(inner) for inner in error.exceptions)
        return next((inner for inner in found if inner is not None), None)
    return error if isinstance(error, (NNError, OSError)) else None


def _one_line(error: BaseException) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return " ".join(str(error).split()) or type(error).__name__
