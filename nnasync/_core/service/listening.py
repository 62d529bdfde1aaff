"""The socket that a service listens on, in a folder that its user alone can enter."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

from nnasync.errors import DeviceUnavailable, InvalidArgument

_LONGEST_PATH = 107
_BACKLOG = 32


@contextlib.contextmanager
def listening(path: Path) -> Iterator[socket.socket]:
    """Opens a listening socket at a path; removes it in the end, and makes its folder.

    Raises InvalidArgument for a path that cannot be one, a folder that others may enter, and
    something else that is there; DeviceUnavailable where another service listens.
    """
    try:
        if len(os.fsencode(path)) > _LONGEST_PATH:
            raise InvalidArgument(f"{path}: the path of a socket has at most {_LONGEST_PATH} bytes")
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check_folder(path.parent)
        _remove_stale(path)
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"{str(path)!r}: no socket can be made: {error}") from error
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(str(path))
        made = os.lstat(path).st_ino
        path.chmod(0o600)
        sock.listen(_BACKLOG)
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        raise InvalidArgument(f"{path}: no socket can be made: {error}") from error
    try:
        yield sock
    finally:
        sock.close()
        with contextlib.suppress(OSError):
            if os.lstat(path).st_ino == made:
                path.unlink()


def _check_folder(folder: Path) -> None:
    found = folder.stat()
    if found.st_uid != os.geteuid():
        raise InvalidArgument(f"{folder} belongs to user {found.st_uid}, not to this one")
    if stat.S_IMODE(found.st_mode) & 0o077:
        raise InvalidArgument(
            f"{folder} is open to others (mode {stat.S_IMODE(found.st_mode):o}); a service listens "
            "in a folder of mode 700"
        )


def _remove_stale(path: Path) -> None:
    """Removes a socket that nobody listens on."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode) or found.st_uid != os.geteuid():
        raise InvalidArgument(f"{path} is there already, and is no socket of this user")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
        except BlockingIOError:
            pass
    raise DeviceUnavailable(f"{path}: a service listens there already")
