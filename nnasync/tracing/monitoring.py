"""Runtimes that other programs of the same user may look at, as `nnasync top` does.

    async with nn.open_runtime() as rt, monitored(rt):
        ...

While the block runs there is a socket, named after the process, in a folder that only its user can
enter: `nnasync` in $XDG_RUNTIME_DIR, else `run` in the state folder. Who connects is answered as by
`serve_metrics`. A process that was killed leaves its socket behind; whoever looks next removes it.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import stat
from pathlib import Path

from nnasync._core.state_files import socket_folder
from nnasync.errors import InvalidArgument
from nnasync.hal import Struct
from nnasync.tracing.endpoint import Endpoint
from nnasync.tracing.exposition import Measured
from nnasync.tracing.families import Collector

_NAME = re.compile(r"(\d+)-\d+\.monitor")
_numbers = itertools.count()


class Monitor(Struct, frozen=True):
    """A runtime that may be looked at: its socket and its process."""

    socket: str
    pid: int


def monitored(source: Measured, *, collectors: tuple[Collector, ...] = ()) -> Endpoint:
    """Returns an endpoint on a socket of this user, for use with `async with`.

    It shows what `serve_metrics` does. Raises InvalidArgument where the folder of sockets belongs
    to somebody else, or others may enter it; entering raises OSError where no socket can be made.
    """
    folder = _folder()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise InvalidArgument(f"{folder} must be a folder of this user that nobody else may enter")
    socket = folder / f"{os.getpid()}-{next(_numbers)}.monitor"
    return Endpoint(source, 0, collectors, socket=socket)


def monitors() -> list[Monitor]:
    """Returns the runtimes of this user that are monitored now, in the order of their processes.

    Sockets of processes that are no more are removed.
    """
    found = []
    with contextlib.suppress(OSError):
        for path in sorted(_folder().iterdir()):
            named = _NAME.fullmatch(path.name)
            if named is not None and _is_alive(int(named[1])):
                found.append(Monitor(str(path), int(named[1])))
            elif named is not None:
                path.unlink(missing_ok=True)
    return sorted(found, key=lambda each: each.pid)


def _folder() -> Path:
    return Path(socket_folder())


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True
