"""Where a service is: behind the path of a socket, or in a process that is started for it."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections import deque

from nnasync.drivers.service.connection import peer_uid
from nnasync.errors import DeviceUnavailable

__all__ = ["Address", "Child"]

_GRACE_S = 3.0
_MOST_STARTS = 8
_PERIOD_S = 10.0


class Address:
    """The socket of a service that somebody else runs."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)

    def open(self) -> socket.socket:
        """Connect; raises DeviceUnavailable where no service of this user listens."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.connect(self.path)
            uid = peer_uid(sock)
            if uid != os.geteuid():
                raise DeviceUnavailable(f"{self.path}: the service is of user {uid}, not of ours")
        except (OSError, ValueError) as error:
            sock.close()
            raise DeviceUnavailable(f"{self.path}: no driver service: {error}") from error
        except DeviceUnavailable:
            sock.close()
            raise
        return sock

    def ended(self) -> None:
        """Nothing to give back."""

    def __str__(self) -> str:
        return self.path


class Child:
    """A service in a process of our own, which serves one connection and ends with it."""

    def __init__(self, device: str, settings: str) -> None:
        """`settings` are the options of its runtime, as JSON."""
        self._device = device
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None
        self._starts: deque[float] = deque(maxlen=_MOST_STARTS)

    @property
    def pid(self) -> int:
        """Of the process; 0 if there is none."""
        return self._process.pid if self._process is not None else 0

    def open(self) -> socket.socket:
        """Start a process and return our end; raises DeviceUnavailable where that fails.

        That is also so for one that ended several times within seconds.
        """
        now_s = time.monotonic()
        starts = self._starts
        if len(starts) == _MOST_STARTS and now_s - starts[0] < _PERIOD_S:
            raise DeviceUnavailable(
                f"the service of {self._device} ended {_MOST_STARTS} times within "
                f"{_PERIOD_S:g} s; it is started again later"
            )
        starts.append(now_s)
        if not sys.executable:
            raise DeviceUnavailable("no Python interpreter is known to start a service with")
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._process = subprocess.Popen(
                self._command(theirs.fileno()),
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        except OSError as error:
            ours.close()
            raise DeviceUnavailable(f"no process for {self._device}: {error}") from error
        finally:
            theirs.close()
        return ours

    def ended(self) -> None:
        """See the process off: it ends by itself when its connection does, or is killed."""
        process, self._process = self._process, None
        if process is None:
            return
        try:
            process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            process.wait()

    def _command(self, fd: int) -> list[str]:
        return [
            sys.executable,
            "-m",
            "nnasync",
            "serve",
            "--device",
            self._device,
            "--connected",
            str(fd),
            "--settings",
            self._settings,
        ]

    def __str__(self) -> str:
        return f"a process for {self._device}"
