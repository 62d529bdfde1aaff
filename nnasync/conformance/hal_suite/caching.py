"""Group "caching": what is loaded from a compilation cache is what was compiled, or is refused.

The client holds the cache files and is not to be trusted: it hands over files of the wrong number
or mode, damaged ones, those of other models, and replaces them while the device works. A device
without a compilation cache says so, compiles all the same, and loads nothing.
"""

from __future__ import annotations

import os
import random
import tempfile
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path

from nnasync.conformance.cases import Case
from nnasync.conformance.hal_suite.cache_files import (
    Handles,
    SuiteCacheFiles,
    append,
    flip,
    truncate,
)
from nnasync.conformance.hal_suite.check import Check, Skipped, refused
from nnasync.conformance.hal_suite.fixture import Bench
from nnasync.conformance.hal_suite.quality import DEADLINES, deadline_of
from nnasync.conformance.hal_suite.subjects import chain
from nnasync.conformance.trial import Fault
from nnasync.device import PreparedModel, PrepareModelConfig
from nnasync.errors import GeneralFailure, InvalidArgument, MissedDeadline, NNError
from nnasync.hal import BYTE_SIZE_OF_CACHE_TOKEN, OperationType

GROUP = "caching"
SEEDS = 10
CHAIN_LENGTH = 100
_TOKEN = bytes(range(BYTE_SIZE_OF_CACHE_TOKEN))
_OTHER_TOKEN = _TOKEN[::-1]

Act = Callable[["Desk", Case], Awaitable[None]]


def caching(bench: Bench) -> Iterator[Check]:
    """The checks of the group."""
    subjects = bench.legal_subjects
    yield _check(bench, "no caching", subjects[0], _unsupported, needs_caching=False)
    for case in subjects:
        yield _check(bench, "saved and loaded", case, _saved_and_loaded)
    for name, act in _ACTS.items():
        for case in subjects[: min(_THOROUGH, bench.rounds)]:
            yield _check(bench, name, case, act)
    for name, race in (("while saving", _race_saving), ("while loading", _race_loading)):
        yield _check(bench, f"replaced {name}", chain(OperationType.ADD, CHAIN_LENGTH), race)


_THOROUGH = 3
"""How many subjects are tried with everything: the cache files of others have the same form."""


class Desk:
    """A client with a folder for cache files."""

    def __init__(self, bench: Bench, folder: Path, numbers: tuple[int, int]) -> None:
        self.bench = bench
        self.device = bench.device
        self.numbers = numbers
        self.seeds = min(SEEDS, bench.rounds)
        self._folder = folder
        self._made = 0

    def files(self, like: SuiteCacheFiles | None = None) -> SuiteCacheFiles:
        """New files in a folder of their own, empty or with the contents of others."""
        self._made += 1
        folder = self._folder / str(self._made)
        folder.mkdir()
        return SuiteCacheFiles(folder, self.numbers) if like is None else like.copy(folder)

    async def save(self, case: Case, handles: Handles, token: bytes = _TOKEN) -> None:
        """Compile with cache files; the compilation itself must work whatever they are."""
        prepared = await self.device.prepare_model(
            case.model,
            PrepareModelConfig(model_cache=handles[0], data_cache=handles[1], token=token),
        )
        await self.bench.check_serves(case, prepared)

    async def saved(self, case: Case, token: bytes = _TOKEN) -> SuiteCacheFiles:
        """The cache files of a compilation."""
        files = self.files()
        with files.opened() as handles:
            await self.save(case, handles, token)
        return files

    async def load(self, handles: Handles, token: bytes = _TOKEN) -> PreparedModel:
        """Load from cache files."""
        return await self.device.prepare_model_from_cache(
            PrepareModelConfig(model_cache=handles[0], data_cache=handles[1], token=token)
        )

    async def load_files(self, files: SuiteCacheFiles, token: bytes = _TOKEN) -> PreparedModel:
        """Load from cache files that are as they should be opened."""
        with files.opened() as handles:
            return await self.load(handles, token)

    async def check_not_loaded(self, files: SuiteCacheFiles, token: bytes = _TOKEN) -> None:
        """Raise Fault where files are loaded, or refused for another reason than they should."""
        await refused(self.load_files(files, token), GeneralFailure)

    async def check_survives(self, files: SuiteCacheFiles) -> None:
        """Load what may be loaded or not, and run what is."""
        try:
            prepared = await self.load_files(files)
        except NNError:
            return
        await prepared.close()


def _check(bench: Bench, name: str, case: Case, act: Act, *, needs_caching: bool = True) -> Check:
    async def run() -> None:
        numbers = await bench.device.get_number_of_cache_files_needed()
        if needs_caching and numbers == (0, 0):
            raise Skipped("the device has no compilation cache")
        await bench.check_supported(case.model)
        with tempfile.TemporaryDirectory(prefix="nnasync-") as folder:
            await act(Desk(bench, Path(folder), numbers), case)

    return Check(GROUP, f"{name}/{case.name}", run)


async def _unsupported(desk: Desk, case: Case) -> None:
    """A device without caching leaves the files alone, compiles, and loads nothing."""
    if desk.numbers != (0, 0):
        raise Skipped("the device has a compilation cache")
    desk.numbers = (1, 1)
    files = await desk.saved(case)
    await desk.check_not_loaded(files)
    await refused(desk.load(((), ())), GeneralFailure)


async def _saved_and_loaded(desk: Desk, case: Case) -> None:
    """Checks that files are loaded again; a device may keep nothing, and leaves them empty."""
    files = await desk.saved(case)
    if not any(path.stat().st_size for path in (*files.model, *files.data)):
        raise Skipped("the device does not keep this compilation")
    for _ in range(2):
        await desk.bench.check_serves(case, await desk.load_files(files))


async def _offsets(desk: Desk, case: Case) -> None:
    """Descriptors that do not stand at the beginning of their files."""
    files = desk.files()
    with files.opened(offset=11) as handles:
        await desk.save(case, handles)
    with files.opened(offset=7) as handles:
        prepared = await desk.load(handles)
    await desk.bench.check_serves(case, prepared)


async def _wrong_numbers(desk: Desk, case: Case) -> None:
    """Too few and too many files: compiled all the same, but never loaded."""
    good = await desk.saved(case)
    for what, change in _NUMBERS.items():
        files = desk.files()
        with files.opened() as handles:
            wrong = change(handles)
            if tuple(map(len, wrong)) == desk.numbers:
                continue
            await desk.save(case, wrong, _OTHER_TOKEN)
            await refused(desk.load(handles, _OTHER_TOKEN), InvalidArgument, GeneralFailure)
        with good.opened() as handles:
            try:
                await refused(desk.load(change(handles)), InvalidArgument, GeneralFailure)
            except Fault as fault:
                raise Fault(f"{what}: {fault}") from fault
    await desk.bench.check_serves(case, await desk.load_files(good))


_NUMBERS: dict[str, Callable[[Handles], Handles]] = {
    "no files": lambda handles: ((), ()),
    "a model cache file less": lambda handles: (handles[0][:-1], handles[1]),
    "a model cache file more": lambda handles: ((*handles[0], *_one(handles)), handles[1]),
    "a data cache file less": lambda handles: (handles[0], handles[1][:-1]),
    "a data cache file more": lambda handles: (handles[0], (*handles[1], *_one(handles))),
}


def _one(handles: Handles) -> Sequence[int]:
    return [*handles[0], *handles[1]][:1]


async def _read_only(desk: Desk, case: Case) -> None:
    files = desk.files()
    with files.opened(os.O_RDONLY) as handles:
        await desk.save(case, handles)
    await refused(desk.load_files(files), GeneralFailure, InvalidArgument)


async def _write_only(desk: Desk, case: Case) -> None:
    files = await desk.saved(case)
    with files.opened(os.O_WRONLY) as handles:
        await refused(desk.load(handles), GeneralFailure)


async def _no_descriptors(desk: Desk, case: Case) -> None:
    """Numbers that are no descriptors fail no compilation, and load nothing."""
    nothing: Handles = ([-1] * desk.numbers[0], [-1] * desk.numbers[1])
    await desk.save(case, nothing)
    await refused(desk.load(nothing), GeneralFailure, InvalidArgument)


async def _descriptors_stay(desk: Desk, case: Case) -> None:
    """Descriptors belong to the client: the device closes none of them."""
    files = desk.files()
    with files.opened() as handles:
        await desk.save(case, handles)
        prepared = await desk.load(handles)
        for fd in (*handles[0], *handles[1]):
            os.fstat(fd)
    await desk.bench.check_serves(case, prepared)


async def _other_token(desk: Desk, case: Case) -> None:
    """Files are loaded with the token that they were saved with, and with no other."""
    files = await desk.saved(case)
    for seed in range(desk.seeds):
        bit = random.Random(seed).randrange(8 * len(_TOKEN))
        token = bytearray(_TOKEN)
        token[bit // 8] ^= 1 << bit % 8
        await desk.check_not_loaded(files, bytes(token))
    for token_of_wrong_length in (b"", _TOKEN[:-1], _TOKEN + b"\0"):
        with files.opened() as handles:
            call = desk.load(handles, token_of_wrong_length)
            await refused(call, InvalidArgument, GeneralFailure)


async def _replaced(desk: Desk, case: Case) -> None:
    """The model cache of another compilation, with another token, or with the same before."""
    other = chain(OperationType.MUL, 2)
    await desk.bench.check_supported(other.model)
    older = await desk.saved(other)
    files = await desk.saved(case)
    foreign = await desk.saved(other, _OTHER_TOKEN)
    for model_cache in (older, foreign):
        mixed = desk.files(files)
        mixed.replace_model(model_cache)
        await desk.check_not_loaded(mixed)
    await desk.bench.check_serves(case, await desk.load_files(files))


async def _damaged_model(desk: Desk, case: Case) -> None:
    """A model cache file with a bit flipped, with bytes added or cut off is never loaded."""
    files = await desk.saved(case)
    for seed in range(desk.seeds):
        for number in range(len(files.model)):
            for damage in (flip, append, truncate):
                damaged = desk.files(files)
                if damage(damaged.model[number], random.Random(seed)):
                    await desk.check_not_loaded(damaged)
    await desk.bench.check_serves(case, await desk.load_files(files))


async def _damaged_data(desk: Desk, case: Case) -> None:
    """A damaged data cache file is refused or loaded, but never brings the device down."""
    files = await desk.saved(case)
    for seed in range(desk.seeds):
        for number in range(len(files.data)):
            for damage in (flip, append, truncate):
                damaged = desk.files(files)
                if damage(damaged.data[number], random.Random(seed)):
                    await desk.check_survives(damaged)
    await desk.bench.check_serves(case, await desk.load_files(files))


async def _deadlines(desk: Desk, case: Case) -> None:
    """Loading with a deadline gives the model or misses it; without one it misses nothing."""
    files = await desk.saved(case)
    for name in DEADLINES:
        deadline = deadline_of(name)
        with files.opened() as handles:
            try:
                prepared = await desk.device.prepare_model_from_cache(
                    PrepareModelConfig(
                        deadline=deadline,
                        model_cache=handles[0],
                        data_cache=handles[1],
                        token=_TOKEN,
                    )
                )
            except MissedDeadline:
                if deadline is None:
                    raise
                continue
        await desk.bench.check_serves(case, prepared)


_ACTS: dict[str, Act] = {
    "offsets": _offsets,
    "wrong numbers of files": _wrong_numbers,
    "saved read-only": _read_only,
    "loaded write-only": _write_only,
    "no descriptors": _no_descriptors,
    "descriptors stay open": _descriptors_stay,
    "other token": _other_token,
    "replaced": _replaced,
    "model cache damaged": _damaged_model,
    "data cache damaged": _damaged_data,
    "deadlines": _deadlines,
}


async def _race_saving(desk: Desk, case: Case) -> None:
    """Another model's files are copied over those of this one while they are being saved."""
    other = await desk.saved(chain(OperationType.MUL, CHAIN_LENGTH))
    for _ in range(desk.bench.rounds):
        files = desk.files()
        with files.opened() as handles, _Replacing(files, other):
            await desk.save(case, handles)
        await _loads_right_or_not(desk, case, files)


async def _race_loading(desk: Desk, case: Case) -> None:
    """Another model's files are copied over those of this one while they are being loaded."""
    other = await desk.saved(chain(OperationType.MUL, CHAIN_LENGTH))
    saved = await desk.saved(case)
    for _ in range(desk.bench.rounds):
        files = desk.files(saved)
        with _Replacing(files, other):
            await _loads_right_or_not(desk, case, files)


async def _loads_right_or_not(desk: Desk, case: Case, files: SuiteCacheFiles) -> None:
    try:
        prepared = await desk.load_files(files)
    except GeneralFailure:
        return
    await desk.bench.check_serves(case, prepared)


class _Replacing:
    """A thread that copies a model cache over another one, as long as the block lasts."""

    def __init__(self, files: SuiteCacheFiles, other: SuiteCacheFiles) -> None:
        self._files = files
        self._other = other
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="replacing", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        self._thread.join()

    def _work(self) -> None:
        self._files.replace_model(self._other)
        while not self._over.is_set():
            self._files.replace_model(self._other)
