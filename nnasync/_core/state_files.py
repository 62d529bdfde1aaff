"""The folder where measurements are kept from run to run, and small files in it.

It is $NNASYNC_STATE_DIR, else nnasync below $XDG_STATE_HOME or ~/.local/state, readable by its
owner only. Whatever is in it can be lost or damaged at any time: reading says None then, and
writing gives up with a note in the log. A file is replaced as a whole, never changed.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
import platform
import stat

logger = logging.getLogger(__name__)

_MODE = 0o700


def state_folder() -> str:
    """Returns where the state of this user is kept; the folder need not exist yet."""
    wanted = os.environ.get("NNASYNC_STATE_DIR")
    if wanted:
        return wanted
    home = os.environ.get("XDG_STATE_HOME", "")
    # By its specification a relative path is to be ignored.
    base = home if os.path.isabs(home) else os.path.expanduser("~/.local/state")
    return os.path.join(base, "nnasync")


def socket_folder() -> str:
    """Returns where sockets of this user's programs are; the folder need not exist yet."""
    base = os.environ.get("XDG_RUNTIME_DIR", "")
    if os.path.isabs(base):
        return os.path.join(base, "nnasync")
    return os.path.join(os.path.abspath(state_folder()), "run")


def read_state(path: str | os.PathLike[str], limit: int) -> bytes | None:
    """The content of a regular file of ours with at most `limit` bytes, else None."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError):
        return None
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
            return None
        data = b""
        while len(data) <= limit and (more := os.read(descriptor, limit + 1 - len(data))):
            data += more
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return data if len(data) <= limit else None


def write_state(path: str | os.PathLike[str], data: bytes) -> bool:
    """Replace a file; False if that failed, which is logged and harms nobody."""
    import tempfile

    folder, temporary = os.path.dirname(path), ""
    try:
        os.makedirs(folder, mode=_MODE, exist_ok=True)
        if os.stat(folder).st_uid == os.geteuid():
            os.chmod(folder, _MODE)
        descriptor, temporary = tempfile.mkstemp(prefix=".", dir=folder)
        with open(descriptor, "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except (OSError, ValueError) as error:
        logger.info("%s cannot be written: %s", path, error)
        if temporary:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        return False
    return True


@functools.cache
def machine() -> str:
    """The processor, as far as the speed of engines depends on it, as a short digest."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            lines = file.read().splitlines()
    except OSError:
        lines = []
    kept = {line for line in lines if line.split("\t")[0] in ("model name", "flags", "Features")}
    words = (platform.machine(), f"{os.cpu_count()}", *sorted(kept))
    return hashlib.sha256("\n".join(words).encode()).hexdigest()[:16]
