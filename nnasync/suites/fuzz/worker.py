"""A process in which inputs are tried: `python -m nnasync.suites.fuzz.worker`.

The descriptor of the board comes in as the first line of standard input, the setting as the
second, then one task a line; what is said goes out as lines on what was standard output. Whatever
the device does to this process, the board or the last line says at which input. What a device
prints goes to standard error, and so do the stacks of a crash.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import itertools
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import msgspec
from anyio.from_thread import start_blocking_portal

from nnasync._core.child_process import lines_to_parent
from nnasync._core.runtime import Options, Runtime, open_runtime
from nnasync.device import Device
from nnasync.errors import NNError
from nnasync.suites.fuzz import usage
from nnasync.suites.fuzz.attempts import attempt
from nnasync.suites.fuzz.board import Board
from nnasync.suites.fuzz.conversation import (
    Begun,
    Done,
    Guided,
    Ready,
    Said,
    Setting,
    Single,
    Stretch,
    Task,
    TaskEnded,
    Unfit,
)
from nnasync.suites.fuzz.guided import guide
from nnasync.suites.fuzz.inputs import FuzzInput, made, numbered, numbered_part, recipe_of
from nnasync.suites.fuzz.kept_model import KeptModel
from nnasync.suites.fuzz.seeds import FuzzSeeds
from nnasync.suites.fuzz.verdicts import Broken, BrokenPromise, InputResult

__all__ = ["main"]

LEAK_BYTES = 4 << 20
LEAK_REPEATS = 6
ARENAS_OF_A_CORE = 8
_MORE_ADDRESSES = 1 << 30
"""The address space may grow by twice the memory and so much, as not all of it is used."""


class _Worker:
    """The device and the seeds, and a way to say things."""

    def __init__(
        self,
        setting: Setting,
        device: Device,
        folder: Path,
        board: Board,
        say: Callable[[Said], None],
    ) -> None:
        self._setting = setting
        self._device = device
        self._folder = folder
        self._board = board
        self._kept = KeptModel()
        self.say = say
        self.seeds = FuzzSeeds(Path(setting.corpus) if setting.corpus else None)
        self._most_resident = usage.resident_bytes()

    async def does(self, task: Stretch | Single) -> None:
        """Carry a task out."""
        before = usage.resident_bytes()
        try:
            await self._inputs(task)
        finally:
            with contextlib.suppress(NNError):  # Its device may have died meanwhile.
                await self._kept.close()
        self.say(TaskEnded(usage.resident_bytes() - before))

    async def _inputs(self, task: Stretch | Single) -> None:
        if isinstance(task, Stretch):
            for number in range(task.start, task.stop):
                await self._parts(task, number)
        else:
            await self._single(task)

    async def _parts(self, task: Stretch, number: int) -> None:
        """Try a numbered input and, while its model stays prepared, the further ones of it."""
        self._board.begin(number, 0)
        given = numbered(task.seed, number, task.kind, self.seeds)
        for part in range(task.kind.parts):
            if part:
                self._board.begin(number, part)
                given = numbered_part(given, task.seed, number, part)
            is_followed = part + 1 < task.kind.parts
            result = await self.tried(msgspec.structs.replace(given, is_followed=is_followed))
            self._board.end(result.ending)
            if result.broken is not None:
                self.say(Done(number, result, part))
                return
            if not self._kept.is_of(given.subject):
                return

    async def _single(self, task: Single) -> None:
        recipe = task.recipe
        if recipe is None:
            recipe = recipe_of(task.seed, task.number, task.kind, self.seeds, task.part)
            if not self.seeds.is_own(recipe.seed):
                given = made(recipe, self.seeds)
                recipe = msgspec.structs.replace(recipe, content=given.file)
        given = made(recipe, self.seeds)
        self.say(Begun(task.number, task.part, recipe, given.digest))
        self.say(Done(task.number, await self.tried(given)))

    async def tried(self, given: FuzzInput) -> InputResult:
        """Returns the result of an input, tried several times where it may leak.

        That is where the process has more memory than after any input before, and not only more
        than right before: what C libraries keep and give back goes up and down.
        """
        result = await self._once(given)
        resident = usage.resident_bytes()
        most, self._most_resident = self._most_resident, max(resident, self._most_resident)
        if result.broken is None and resident - most > LEAK_BYTES:
            return await self._watched(given, result)
        return result

    async def _once(self, given: FuzzInput) -> InputResult:
        limit = self._setting.memory_bytes
        before = usage.resident_bytes()
        if usage.peak_bytes() - before > limit // 2:
            usage.forget_peak()
        try:
            ending = await attempt(self._device, given, self._folder, self._kept)
        except BrokenPromise as promise:
            return InputResult(broken=promise.broken, text=str(promise))
        except NNError as error:
            text = f"closing: {type(error).__name__}: {error}"
            return InputResult(broken=Broken.ERROR, text=text)
        taken = usage.peak_bytes() - before
        if taken > limit:
            return InputResult(broken=Broken.MEMORY, text=f"it took {taken >> 20} MiB")
        return InputResult(ending)

    async def _watched(self, given: FuzzInput, result: InputResult) -> InputResult:
        """Returns whether each further time takes more memory, as the first one did.

        Who seems to leak is tried until it takes no more, and more often than the C library has
        arenas, each of which may take its own memory once. There are eight for each core: on a
        large machine so many tries would last longer than an input may.
        """
        given = msgspec.structs.replace(given, is_followed=False)
        await self._once(given)
        if min(await self._growth(given, LEAK_REPEATS)) <= LEAK_BYTES // 4:
            return result
        late: list[int] = []
        for _ in range(LEAK_REPEATS + ARENAS_OF_A_CORE * (os.cpu_count() or 1)):
            late = [*late, *await self._growth(given, 1)][-LEAK_REPEATS:]
            if len(late) == LEAK_REPEATS and statistics.median(late) <= LEAK_BYTES // 4:
                return result
        each = sum(late) // len(late) >> 20
        return InputResult(broken=Broken.LEAK, text=f"each time takes {each} MiB more")

    async def _growth(self, given: FuzzInput, repeats: int) -> list[int]:
        """Returns the bytes by which memory grew in each of so many repeats."""
        sizes = [usage.resident_bytes()]
        for _ in range(repeats):
            await self._once(given)
            gc.collect()
            sizes.append(usage.resident_bytes())
        return [after - before for before, after in itertools.pairwise(sizes)]


def _work(say: Callable[[Said], None]) -> None:
    """Carry out tasks until there are no more; the device lives in the loop of another thread."""
    read = sys.stdin.buffer.readline
    board = Board(int(read()))
    setting = msgspec.json.decode(read(), type=Setting)
    tasks: msgspec.json.Decoder[Task] = msgspec.json.Decoder(Task)
    isolate = [setting.device] if setting.isolate else []
    try:
        with (
            tempfile.TemporaryDirectory(prefix="nnasync-fuzz-", dir=_in_memory()) as folder,
            start_blocking_portal("asyncio", {"use_uvloop": True}) as portal,
            portal.wrap_async_context_manager(
                portal.call(_opened, setting.device, isolate, folder)
            ) as runtime,
        ):
            worker = _Worker(setting, runtime.devices[0], Path(folder), board, say)
            if not setting.is_sanitized:
                usage.limit_address_space(2 * setting.memory_bytes + _MORE_ADDRESSES)
            gc.collect()
            gc.freeze()  # What is there by now stays: looking through it again finds nothing.
            say(Ready(worker.seeds.names("")[0]))
            while line := read():
                task = tasks.decode(line)
                if isinstance(task, Guided):
                    guide(task, worker.seeds, say, partial(portal.call, worker.tried))
                else:
                    portal.call(worker.does, task)
    except (NNError, OSError) as error:
        say(Unfit(f"{error}"))


def _in_memory() -> str | None:
    """A folder whose files are in memory, where the system has one: what is written is synced."""
    shared = "/dev/shm"
    return shared if os.access(shared, os.W_OK | os.X_OK) else None


async def _opened(device: str, isolate: Sequence[str], folder: str) -> Runtime:
    options = Options(cores=1, state_dir=folder)
    return open_runtime(devices=[device], isolate=isolate, options=options)


def main() -> int:
    """Try what standard input says; Ctrl-C and SIGTERM are the parent's to handle."""
    say = lines_to_parent()
    faulthandler.enable()
    try:
        _work(say)
    except BrokenPipeError:
        return 1  # Nobody listens any more.
    return 0


if __name__ == "__main__":
    sys.exit(main())
