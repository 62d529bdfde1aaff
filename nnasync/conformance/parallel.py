"""A conformance run spread over processes, each with its own device.

Workers read the case files themselves and send results as JSON. One that dies costs the case it was
at; another goes on behind it.
"""

from __future__ import annotations

from collections.abc import Callable

import anyio
import msgspec

from nnasync._core.child_process import ChildProcess, child_process, ending
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
    conversation = _Conversation(done)
    async with child_process(WORKER, leads=False) as worker:
        await worker.say(msgspec.json.encode(plan))
        if await conversation.follow(worker):
            return _END
        return conversation.mourn(await worker.ended())


class _Conversation:
    """What one worker has said so far."""

    def __init__(self, done: Callable[[CaseResult], object]) -> None:
        self._done = done
        self._count = 0
        self._begun: Begun | None = None

    async def follow(self, worker: ChildProcess) -> bool:
        """Pass results on until the worker says that it has ended (True), or says no more."""
        while True:
            line = await worker.line(MAX_MESSAGE_BYTES)
            if line is None:
                return False
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
