"""`python -m nnasync._core.service.contests`: the process in which a runtime holds its contests.

It makes the devices anew for each contest, by their names and with the options of the runtime, and
runs at a lower priority than the application. It ends with its connection, and by itself where
nothing is asked for a while.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import select
import socket
import threading
import time
from collections.abc import Iterator

from nnasync._core import model as models
from nnasync._core.clock import Deadline, now_ns
from nnasync._core.compilation import REFERENCE, CompileSpec, fingerprints
from nnasync._core.compilation.compiler import hold
from nnasync._core.compilation.contest_messages import Ask, Talk, Trying, Unheld, read_ask
from nnasync._core.engine_device import EngineDevice
from nnasync._core.os_threads import demote
from nnasync._core.runtime import Options, open_runtime, run
from nnasync._core.service import lifeline
from nnasync._core.service.process_resources import for_contests, options_of
from nnasync._core.state_files import state_folder
from nnasync._core.wire.connection import Frame
from nnasync.errors import NNError
from nnasync.hal import ExecutionPreference, Model
from nnasync.machine.kept import costs_here
from nnasync.machine.loading import kept_loading_ms, learn_loading_ms

_IDLE_S = 30.0
_NICENESS = 5
_ENDING_NS = 40_000_000
"""The processor time that letting go of plans and ending the process takes after a contest."""


def main() -> None:
    """Holds contests for the process at the other end of a socket."""
    parser = argparse.ArgumentParser(prog=f"python -m {__spec__.name}", description=main.__doc__)
    parser.add_argument("--connected", metavar="FD", type=int, required=True)
    parser.add_argument("--lifeline", metavar="FD", type=int, required=True)
    parser.add_argument("--settings", metavar="JSON", default="{}")
    arguments = parser.parse_args()
    lifeline.hold(arguments.lifeline)
    with contextlib.suppress(OSError):
        os.nice(_NICENESS)
    options = for_contests(options_of(arguments.settings))
    sock = socket.socket(fileno=arguments.connected)
    with contextlib.suppress(OSError, RuntimeError):
        # Before anything lowers the priority of this process for good: the next runtime wants it.
        costs_here(options.state_dir or state_folder())
    talk = Talk(sock, "the application")
    counted_ns = 0
    with contextlib.suppress(TimeoutError, NNError):
        while frame := talk.receive(_IDLE_S):
            with _ending_with(sock):
                _serve(frame, options, talk, counted_ns)
            counted_ns = time.process_time_ns()
    # Engines may take long to be let go of, and nobody needs that.
    os._exit(0)


def _serve(frame: Frame, options: Options, talk: Talk, counted_ns: int) -> None:
    """Answers one message; errors are answers, too.

    Of the processor time of this process, `counted_ns` were for earlier contests; the first one's
    includes the start.
    """
    try:
        ask = read_ask(frame.message)
        fds = frame.take(1 + ask.has_whole)
        try:
            given = [models.load_nnm(f"/dev/fd/{fd}") for fd in fds]
        finally:
            for fd in fds:
                os.close(fd)
        run(_hold, ask, given, options, talk, counted_ns)
    except Exception as error:
        talk.send(Unheld(f"{type(error).__name__}: {error}"))
    finally:
        frame.close()


async def _hold(
    ask: Ask, given: list[Model], options: Options, talk: Talk, counted_ns: int
) -> None:
    if ask.cpu_ns:
        demote(0)
    last = ""

    def trying(device: str) -> None:
        nonlocal last
        if device != last:
            last = device
            talk.send(Trying(device))

    others = [] if REFERENCE in ask.devices else [REFERENCE]
    async with open_runtime(devices=[*ask.devices, *others], options=options) as runtime:
        devices = runtime.devices[: len(ask.devices)]
        question, remaining_ns = ask.question, ask.remaining_ns
        spec = CompileSpec(
            source=given[0],
            whole=(lambda: given[1]) if ask.has_whole else None,
            fingerprint=bytes.fromhex(question.model),
            devices=devices,
            preference=ExecutionPreference(question.preference),
            priority=ask.priority,
            precision=question.precision,
            deadline=None if remaining_ns is None else Deadline(now_ns() + remaining_ns),
            reference=runtime.device(REFERENCE),
            budget_ns=ask.budget_ns,
            patience_s=ask.patience_s,
            code=fingerprints(devices),
            trying=trying,
            loading_ms=functools.partial(kept_loading_ms, options.state_dir or state_folder()),
            in_background=ask.cpu_ns > 0,
            background_ns=max(1, ask.cpu_ns - _ENDING_NS),
            cpu_began_ns=counted_ns,
        )
        await hold(ask, spec, talk.send)
        engines = [each for each in devices if isinstance(each, EngineDevice)]
        took_ms = {f"{each.name} {each.version}": each.loaded_in_ms for each in engines}
        learn_loading_ms(
            options.state_dir or state_folder(),
            {name: ms for name, ms in took_ms.items() if ms is not None},
        )


@contextlib.contextmanager
def _ending_with(sock: socket.socket) -> Iterator[None]:
    """Ends this process, whatever it does, when the other end of the connection is closed."""
    over, stop = socket.socketpair()

    def watch() -> None:
        poller = select.poll()
        poller.register(sock, 0)
        poller.register(over, select.POLLIN)
        if any(fd == sock.fileno() for fd, _ in poller.poll()):
            os._exit(0)

    watching = threading.Thread(target=watch, name="nnasync-contests-watch", daemon=True)
    watching.start()
    try:
        yield
    finally:
        stop.close()
        watching.join()
        over.close()


if __name__ == "__main__":
    main()
