"""Verdicts of earlier contests, one small file each, so that no model is measured twice.

A verdict is kept under the digest of everything it depends on: the model, the machine, the
devices with their versions, the preference. The files are read as if a stranger had written
them: what is not a verdict on this very question is ignored, and measured anew. There are at most
a thousand, the least recently used go first.

A verdict says under which circumstances its contest was held. One of a time
when other work kept the cores busy does not replace one that was held in quiet.

A program often compiles while a machine starts or something is being installed. Runs on one thread
then take longer than the processor time they need, which a contest sees; such a verdict is used,
but is provisional: the next compilation that finds the machine quiet holds another contest. Where
three in a row were disturbed although the machine had seemed quiet, that is how this machine is,
and the verdict stays.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
from collections.abc import Sequence

import msgspec

from nnasync._core.compilation.choice import Choice, is_sound
from nnasync._core.compilation.report import Candidate, Fate
from nnasync._core.state_files import machine, read_state, write_state
from nnasync.hal import Struct
from nnasync.hal.decoders import json_decoder

_FORMAT = 7
MAX_BYTES = 1 << 18
DIGEST_DIGITS = 16
"""How much of a model's digest stands for it."""
_MAX_ENTRIES = 1000
_LATEST = 50
_MAX_CANDIDATES = 256
_LONGEST_NAME = 200
_MARK = ".forgotten"
_MARK_BYTES = 20
_DISTURBED = 1.15
_MOST_CONTESTS = 3


class Circumstances(Struct, frozen=True):
    """States when a contest was held, and how much other work the machine had then.

    held_at_s: seconds since 1970. crowding: time per processor time of runs on one thread, 1 where
    nobody else wanted the cores. disturbed: how many contests in a row other work disturbed, this
    one included.
    """

    held_at_s: int = 0
    crowding: float = 1.0
    disturbed: int = 0

    @property
    def is_provisional(self) -> bool:
        """Whether another contest should be held when the machine is quiet."""
        return 0 < self.disturbed < _MOST_CONTESTS

    @classmethod
    def of(cls, held_at_s: float, crowding: float, before: Circumstances | None) -> Circumstances:
        """Returns the circumstances of a contest.

        `before` are those of the contest before it, if there was one.
        """
        if crowding <= _DISTURBED:
            return cls(int(held_at_s), crowding)
        earlier = 0 if before is None else before.disturbed
        return cls(int(held_at_s), crowding, earlier + 1)

    def outlasting(self, contest: Circumstances) -> Circumstances:
        """Returns the circumstances of a verdict that stays after another contest.

        That contest counts as held.
        """
        if not self.disturbed:
            return self
        return Circumstances(contest.held_at_s, self.crowding, contest.disturbed)


QUIET = Circumstances()
"""Those of a contest that nothing is known about."""


def succeeds(new: Circumstances, before: Circumstances | None) -> bool:
    """Returns whether the outcome of a contest replaces an earlier one.

    It does not if it was disturbed more.
    """
    return before is None or not new.disturbed or new.crowding < before.crowding


def is_quiet() -> bool:
    """Returns whether at most half of the processors were busy during the last minute."""
    try:
        return os.getloadavg()[0] <= (os.cpu_count() or 1) / 2
    except OSError:
        return True


class Question(msgspec.Struct, frozen=True):
    """States all that a verdict depends on except the machine; `model` is a digest.

    It can be asked before any device is asked about the model. `devices` have their versions, and
    `library` is the version of nnasync: both decide who competes. `code` has the fingerprints of
    the drivers of third parties, by device. `has_whole`: the file as it is may compete, too.
    """

    model: str
    devices: tuple[tuple[str, str], ...]
    judge: str
    preference: int
    precision: str | None
    cores: int
    code: dict[str, str] = {}
    library: str = ""
    has_whole: bool = False


class Verdict(msgspec.Struct, frozen=True):
    """States what was chosen for a model, and how all contenders did.

    `untried` are those that did not compete yet, since the processor time of a contest in the
    background was used up: they do so when the model is compiled the next time. `kind` is that of
    the model, see `promise`.
    """

    question: Question
    machine: str
    chosen: Choice
    candidates: tuple[Candidate, ...]
    circumstances: Circumstances = QUIET
    untried: tuple[Choice, ...] = ()
    name: str = ""
    format: int = _FORMAT
    kind: str = ""

    @property
    def is_provisional(self) -> bool:
        """Whether another contest should be held when the machine is quiet."""
        return bool(self.untried) or self.circumstances.is_provisional

    def after(self, contest: Circumstances) -> Verdict:
        """Returns this verdict as it is after another contest, which was disturbed more."""
        return msgspec.structs.replace(self, circumstances=self.circumstances.outlasting(contest))


class Verdicts:
    """Finds and keeps verdicts in a folder; all methods read or write files."""

    def __init__(self, folder: str | os.PathLike[str], *, max_entries: int = _MAX_ENTRIES) -> None:
        self._folder = folder
        self._max_entries = max_entries

    def know(self, model: str) -> bool:
        """Returns whether there may be a verdict on the model of this digest."""
        try:
            return any(name.startswith(f"{model}-") for name in os.listdir(self._folder))
        except OSError:
            return False

    def find(self, question: Question) -> Verdict | None:
        """Returns the verdict on this question, None if there is none that makes sense."""
        path = self._path(question)
        data = read_state(path, MAX_BYTES)
        if data is None:
            return None
        verdict = decoded(data)
        if isinstance(verdict, str) or not _answers(verdict, question):
            return None
        with contextlib.suppress(OSError):
            os.utime(path)
        return verdict

    def latest(self) -> list[Verdict]:
        """Returns the verdicts of this machine that were used last; there may be many more."""
        with contextlib.suppress(OSError):
            found = [
                (entry.stat(follow_symlinks=False).st_mtime_ns, entry.path)
                for entry in os.scandir(self._folder)
                if entry.name.endswith(".json")
            ]
            paths = [path for _, path in sorted(found, reverse=True)[:_LATEST]]
            verdicts = [decoded(read_state(path, MAX_BYTES) or b"") for path in paths]
            here = machine()
            return [v for v in verdicts if isinstance(v, Verdict) and v.machine == here]
        return []

    def keep(
        self,
        question: Question,
        chosen: Choice,
        candidates: Sequence[Candidate],
        circumstances: Circumstances = QUIET,
        before: Verdict | None = None,
        untried: Sequence[Choice] = (),
        name: str = "",
        kind: str = "",
    ) -> Verdict:
        """Returns the verdict that holds after a contest: a new one, or the one `before` it.

        It is remembered, with the name and the kind of the model; where that fails the model is
        measured again next time.
        """
        verdict = Verdict(
            question, machine(), chosen, tuple(candidates), circumstances, tuple(untried)
        )
        if before is not None and not succeeds(circumstances, before.circumstances):
            verdict = before.after(circumstances)
        name = name[:_LONGEST_NAME] or verdict.name
        verdict = msgspec.structs.replace(verdict, name=name, kind=kind or verdict.kind)
        data = msgspec.json.encode(verdict)
        if len(data) <= MAX_BYTES and write_state(self._path(question), data):
            self._drop_oldest()
        return verdict

    def mark_forgotten(self, model: str, at_s: float) -> None:
        """Note that verdicts on a model, or on "all", were forgotten, for compilation caches.

        Raises OSError where that cannot be noted.
        """
        path = os.path.join(self._folder, f"{model}{_MARK}")
        if not write_state(path, str(int(at_s)).encode()):
            raise OSError(errno.EIO, "cannot be written", path)
        self._drop_oldest()

    def forgot(self, model: str, held_at_s: int) -> bool:
        """Returns whether the verdict of a contest that was held then has been forgotten since."""
        return held_at_s > 0 and held_at_s <= max(self._mark(model), self._mark("all"))

    def _mark(self, model: str) -> int:
        data = read_state(os.path.join(self._folder, f"{model}{_MARK}"), _MARK_BYTES)
        try:
            return int(data or b"0")
        except ValueError:
            return 0

    def _path(self, question: Question) -> str:
        words = msgspec.json.encode((_FORMAT, machine(), question))
        name = f"{question.model}-{hashlib.sha256(words).hexdigest()}.json"
        return os.path.join(self._folder, name)

    def _drop_oldest(self) -> None:
        with contextlib.suppress(OSError):
            found = [
                (entry.stat(follow_symlinks=False).st_mtime_ns, entry.path)
                for entry in os.scandir(self._folder)
            ]
            for ending in (".json", _MARK):
                entries = sorted(each for each in found if each[1].endswith(ending))
                for _, path in entries[: max(0, len(entries) - self._max_entries)]:
                    with contextlib.suppress(OSError):
                        os.unlink(path)


def decoded(data: bytes) -> Verdict | str:
    """Returns the verdict in a file, or a text that says why it is none."""
    try:
        verdict: Verdict = json_decoder(Verdict).decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return "it is no verdict of this version of nnasync"
    if verdict.format != _FORMAT:
        return "it is a verdict of another version of nnasync"
    return verdict


def chosen_ns(candidates: Sequence[Candidate]) -> float | None:
    """Returns how long a run of the chosen candidate took, None if it was not measured."""
    for candidate in candidates:
        if candidate.fate is Fate.CHOSEN and candidate.median_us is not None:
            return candidate.median_us * 1000
    return None


def _answers(verdict: Verdict, question: Question) -> bool:
    return (
        verdict.format == _FORMAT
        and verdict.question == question
        and verdict.machine == machine()
        and is_sound(verdict.chosen)
        and all((part.device, part.version) in question.devices for part in verdict.chosen.parts)
        and max(len(verdict.candidates), len(verdict.untried)) <= _MAX_CANDIDATES
    )
