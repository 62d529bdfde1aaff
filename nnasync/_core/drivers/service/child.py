"""Where a service is: behind the path of a socket, or in a process that is started for it."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping

import msgspec

from nnasync._core.kin import KIN
from nnasync._core.wire.connection import Connection, Transport, close_all, peer_pid, peer_uid
from nnasync._core.wire.model_transfer import Offer
from nnasync.errors import DeviceUnavailable
from nnasync.hal import Model

_GRACE_S = 2.0
"""A process ends when its connection ends; one that takes longer than this is killed."""
_MOST_STARTS = 8
_PERIOD_S = 10.0


class Peer:
    """The service at the other end of a socket, in a process that somebody else runs."""

    death_fds: tuple[int, ...] = ()
    """Each is readable once the process has ended, or is about to; none where nobody tells."""

    def __init__(self, sock: socket.socket) -> None:
        """Takes the socket over."""
        self.socket = sock

    def connection(self, who: str, on_blocked: Callable[[], object]) -> Transport:
        """Returns what carries messages.

        `who` names it in errors, `on_blocked` asks for a `flush`.
        """
        return Connection(self.socket, who, on_blocked)

    def offer(self, model: Model) -> Offer:
        """A model in the form in which it is sent there; may block."""
        return Offer(model)

    @property
    def pid(self) -> int:
        """Returns the id of the process while it lives; 0 where that is not known."""
        return peer_pid(self.socket)

    @property
    def has_ended(self) -> bool:
        """Returns whether the process has ended, as far as is known yet."""
        return False

    @property
    def was_killed(self) -> bool:
        """Returns whether a signal ended the process, as far as is known yet."""
        return False

    def exit_reason(self, patience_s: float) -> str:
        """The reason why it ended, as text; waits for that up to the limit."""
        return "ended the connection"

    def kill(self) -> bool:
        """Kill it; False if the process is not ours."""
        return False

    def reap(self) -> str:
        """Called after the end of the connection, may block briefly; returns `exit_reason`."""
        return self.exit_reason(0)


class Address:
    """The socket of a service that somebody else runs."""

    restarts = False
    """Whether a service that died is there again at once."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)

    def open(self) -> Peer:
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
        return Peer(sock)

    def __str__(self) -> str:
        return self.path


class Child:
    """A service in a process of our own, which serves one connection and ends with it."""

    restarts = True

    def __init__(self, device: str, settings: str) -> None:
        """`settings` are the options of its runtime, as JSON."""
        self._device = device
        self._settings = settings
        self._starts: deque[float] = deque(maxlen=_MOST_STARTS)
        self._lock = threading.Lock()

    def open(self) -> Peer:
        """Start a process; raises DeviceUnavailable where that fails.

        That is also so for one that was started several times within seconds.
        """
        self._count_start()
        limit = msgspec.json.decode(self._settings, type=_Early).isolated_limit_bytes
        return start_process(
            self._device,
            "nnasync._core.service",
            self._settings,
            *("--device", self._device),
            remark="" if limit is None else f" with isolated_limit_bytes={limit}",
        )

    def _count_start(self) -> None:
        now_s = time.monotonic()
        with self._lock:
            starts = self._starts
            if len(starts) == _MOST_STARTS and now_s - starts[0] < _PERIOD_S:
                raise DeviceUnavailable(
                    f"the service of {self._device} ended {_MOST_STARTS} times within "
                    f"{_PERIOD_S:g} s; it is started again later"
                )
            starts.append(now_s)

    def __str__(self) -> str:
        return f"a process for {self._device}"


def start_process(what: str, module: str, settings: str, *arguments: str, remark: str = "") -> Peer:
    """Run a module in a process of our own, which is connected to us and ends with that.

    `settings` are the options of its runtime, as JSON; `what` is named in errors, and `remark`
    follows in them how it ended. Raises
    DeviceUnavailable where no process can be started.
    """
    if not sys.executable:
        raise DeviceUnavailable("no Python interpreter is known to start a service with")
    with contextlib.ExitStack() as undo, contextlib.ExitStack() as theirs:
        try:
            ours, socket_of_child = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
            undo.callback(ours.close)
            theirs.callback(socket_of_child.close)
            lifeline, held_fd = os.pipe()
            undo.callback(os.close, lifeline)
            theirs.callback(os.close, held_fd)
            fds = socket_of_child.fileno(), held_fd
            connected = ["--connected", str(fds[0]), "--lifeline", str(fds[1])]
            process = subprocess.Popen(
                [sys.executable, "-m", module, *connected, "--settings", settings, *arguments],
                stdin=subprocess.DEVNULL,
                env=_environment(settings, os.environ),
                pass_fds=fds,
                process_group=0,
            )
        except OSError as error:
            raise DeviceUnavailable(f"no process for {what}: {error}") from error
        undo.pop_all()
    return _ChildPeer(ours, process, lifeline, remark)


class _Early(msgspec.Struct):
    """The options of a runtime that count before its process exists."""

    blas_threads: int | None = 1
    isolated_limit_bytes: int | None = None


def _environment(settings: str, given: Mapping[str, str]) -> dict[str, str]:
    """The environment of a process that computes with one BLAS thread a call, if it is to do so.

    Else OpenBLAS starts a thread for each core when it is imported, and each waits busily for work
    before it sleeps, which takes 30 ms of its core.
    """
    if msgspec.json.decode(settings, type=_Early).blas_threads is None:
        return dict(given)
    return {"OPENBLAS_NUM_THREADS": "1", **given}


class _ChildPeer(Peer):
    """A process that we started, and have to see off."""

    def __init__(
        self, sock: socket.socket, process: subprocess.Popen[bytes], lifeline: int, remark: str
    ) -> None:
        """`lifeline` is the read end of a pipe that the process holds (`service.lifeline`)."""
        super().__init__(sock)
        self._process = process
        KIN.joins(process.pid)
        self._remark = remark
        self._exit_fd = -1
        self.death_fds = (lifeline,)
        # Where the system has no such descriptor, the lifeline alone tells.
        with contextlib.suppress(OSError, AttributeError):
            self._exit_fd = os.pidfd_open(process.pid)
            self.death_fds = (lifeline, self._exit_fd)

    @property
    def pid(self) -> int:
        return self._process.pid if self._process.poll() is None else 0

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    @property
    def was_killed(self) -> bool:
        return (self._process.poll() or 0) < 0

    def exit_reason(self, patience_s: float) -> str:
        self._wait(patience_s)
        status = self._process.poll()
        if status is None:
            return "died" if _is_readable(self.death_fds[0], 0) else super().exit_reason(patience_s)
        if status >= 0:
            return f"exited with status {status}{self._remark}"
        name = ""
        with contextlib.suppress(ValueError):
            name = f" ({signal.Signals(-status).name})"
        return f"was killed by signal {-status}{name}{self._remark}"

    def kill(self) -> bool:
        self._process.kill()
        return True

    def reap(self) -> str:
        exit_reason = self.exit_reason(_GRACE_S)
        is_dying = _is_readable(self.death_fds[0], 0)
        self._process.kill()
        self._process.wait()
        if is_dying:
            exit_reason = self.exit_reason(0)
        KIN.leaves(self._process.pid)
        close_all(self.death_fds)
        self._exit_fd, self.death_fds = -1, ()
        return exit_reason

    def _wait(self, patience_s: float) -> bool:
        """Waits for the process; returns whether it ends in time."""
        if self._exit_fd < 0:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(patience_s)
        else:
            _is_readable(self._exit_fd, patience_s)
        return self._process.poll() is not None


def _is_readable(fd: int, patience_s: float) -> bool:
    """Returns whether a descriptor becomes readable, or its other end is closed, in time."""
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    return bool(poller.poll(patience_s * 1e3))
