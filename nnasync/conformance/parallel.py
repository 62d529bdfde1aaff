"""A conformance run spread over processes, each with its own device.

Workers read the case files themselves and send results as JSON. One that dies costs the case it was
at; another goes on behind it.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable

import anyio
import anyio.abc
import msgspec
from anyio.streams.buffered import BufferedByteReceiveStream

from nnasync.conformance.plan import Plan, run_plan
from nnasync.conformance.progress_lines import Begun, CaseDone, Ended, Message, Stopped
from nnasync.conformance.results import CaseOutcome, CaseResult, Run, Variant
from nnasync.errors import DeviceDied, GeneralFailure

MAX_MESSAGE_BYTES = 1 << 20
WORKER = ("-m", "nnasync.conformance.worker")
"""What the interpreter runs as a worker."""

_messages: msgspec.json.Decoder[Message] = msgspec.json.Decoder(Message)
_END = -1


async def run_parallel(plan: Plan, jobs: int, done: Callable[[CaseResult], object]) -> None:
    """Run the cases of a plan in that many processes, in this one if it is 1.

    `done` gets each result, in no particular order. Raises GeneralFailure with what stops a worker,
    DeviceDied for one that dies before its first case.
    """
    if jobs == 1:
        await run_plan(plan, done)
        return
    async with anyio.create_task_group() as tasks:
        part, parts = plan.selection.part, plan.selection.parts
        for job in range(jobs):
            selection = msgspec.structs.replace(
                plan.selection, part=part + parts * job, parts=parts * jobs
            )
            share = msgspec.structs.replace(plan, selection=selection)
            tasks.start_soon(_run_share, share, done)


async def _run_share(plan: Plan, done: Callable[[CaseResult], object]) -> None:
    finished = 0
    while finished != _END:
        rest = msgspec.structs.replace(plan, skip=plan.skip + finished)
        count = await _run_worker(rest, done)
        finished = _END if count == _END else finished + count


async def _run_worker(plan: Plan, done: Callable[[CaseResult], object]) -> int:
    """Run a plan in one process; returns how many cases were run before it died, -1 if it ended."""
    command = [sys.executable, *WORKER]
    process = await anyio.open_process(command, stdout=subprocess.PIPE, stderr=None)
    conversation = _Conversation(done)
    try:
        await _hand_over(process, plan)
        ended = await conversation.follow(process)
        code = await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
        with anyio.CancelScope(shield=True):
            await process.aclose()
    if ended:
        return _END
    return conversation.mourn(code)


async def _hand_over(process: anyio.abc.Process, plan: Plan) -> None:
    channel = process.stdin
    if channel is None:
        raise GeneralFailure("a conformance worker has no standard input")
    try:
        await channel.send(msgspec.json.encode(plan))
        await channel.aclose()
    except (anyio.BrokenResourceError, anyio.ClosedResourceError):
        return  # It has died; its exit code will tell.


class _Conversation:
    """What one worker has said so far."""

    def __init__(self, done: Callable[[CaseResult], object]) -> None:
        self._done = done
        self._count = 0
        self._begun: Begun | None = None

    async def follow(self, process: anyio.abc.Process) -> bool:
        """Pass results on until the worker says that it has ended (True), or says no more."""
        if process.stdout is None:
            raise GeneralFailure("a conformance worker has no standard output")
        lines = BufferedByteReceiveStream(process.stdout)
        while True:
            try:
                line = await lines.receive_until(b"\n", MAX_MESSAGE_BYTES)
            except (anyio.IncompleteRead, anyio.EndOfStream):
                return False
            except anyio.DelimiterNotFound:
                raise GeneralFailure(
                    f"a conformance worker said something too long: over {MAX_MESSAGE_BYTES} bytes"
                ) from None
            if self._hear(line):
                return True

    def mourn(self, code: int) -> int:
        """Count the case at which the worker died as failed; returns how many are over."""
        died = f"the process of the device died: {ending(code)}"
        begun = self._begun
        if begun is None:
            raise DeviceDied(f"{died}, between two cases")
        run = Run(Variant.AS_GIVEN, CaseOutcome.FAILED, reason=died)
        self._finish(
            CaseResult(
                begun.name,
                begun.spec,
                begun.source,
                begun.operations,
                CaseOutcome.FAILED,
                0,
                (run,),
            )
        )
        return self._count

    def _hear(self, line: bytes) -> bool:
        try:
            message = _messages.decode(line)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            raise GeneralFailure(f"a conformance worker said what is no message: {error}") from None
        if isinstance(message, Begun):
            self._begun = message
        elif isinstance(message, CaseDone):
            self._finish(message.result)
        elif isinstance(message, Stopped):
            raise GeneralFailure(message.reason)
        return isinstance(message, Ended)

    def _finish(self, result: CaseResult) -> None:
        self._begun = None
        self._count += 1
        self._done(result)


def ending(code: int) -> str:
    """How a process ended, in words."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
