"""The verdicts that are remembered, for people: listed, and forgotten.

What lies in the folder is read as if a stranger had written it. A file that is no verdict is left
where it is, and told; texts out of files have no control characters when they are shown.

Who forgets a verdict wants the devices compared again. So a mark says when that was, and what a
compilation cache keeps of an earlier contest is not loaded any more.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator

import msgspec

from nnasync._core.arguments import told
from nnasync._core.compilation.report import Candidate, Fate
from nnasync._core.compilation.verdicts import DIGEST_DIGITS, MAX_BYTES, Verdict, Verdicts, decoded
from nnasync._core.state_files import machine, read_state, state_folder
from nnasync.errors import InvalidArgument
from nnasync.hal import ExecutionPreference

_LEAST_DIGITS = 6
_DIGEST = re.compile(r"[0-9a-f]{1,64}")
_LONGEST = 120
_AGREEING = (Fate.EQUAL, Fate.SLOWER)


class KnownVerdict(msgspec.Struct, frozen=True):
    """States what an earlier contest decided about a model.

    model: its digest. name: that of the model. device, lowering: who won. median_us: what a run of
    the winner took. runner_up, runner_up_us: the fastest of the others that agree with the
    reference, empty and None without one. held_at_s: when, in seconds since 1970. crowding: time
    per processor time meanwhile, 1.0 on a quiet machine. is_provisional: whether another contest
    follows, when the machine is quiet or for the devices that there was no time for.
    is_of_this_machine: False where it is for another processor, and not used here.
    """

    model: str
    name: str
    device: str
    lowering: str
    median_us: float | None
    runner_up: str
    runner_up_us: float | None
    held_at_s: int
    crowding: float
    is_provisional: bool
    preference: str
    precision: str
    cores: int
    is_of_this_machine: bool

    @property
    def lead(self) -> float | None:
        """Returns how many times as long the runner-up takes; None where that is not known."""
        if not self.median_us or self.runner_up_us is None:
            return None
        return self.runner_up_us / self.median_us


class UnreadableVerdict(msgspec.Struct, frozen=True):
    """Names a file among the verdicts that is none, and says why."""

    file: str
    reason: str


def verdicts(
    state_dir: str | None = None,
) -> tuple[tuple[KnownVerdict, ...], tuple[UnreadableVerdict, ...]]:
    """Returns the verdicts that are remembered, the latest first, and the files that are none.

    `state_dir` is that of `Options`. It reads files.
    """
    found: list[KnownVerdict] = []
    others: list[UnreadableVerdict] = []
    for path, verdict in _read(_folder(state_dir)):
        if isinstance(verdict, str):
            others.append(UnreadableVerdict(_clean(os.path.basename(path)), verdict))
        else:
            found.append(_known(verdict))
    found.sort(key=lambda each: (-each.held_at_s, each.name, each.model))
    return tuple(found), tuple(others)


def forget_verdicts(which: str, state_dir: str | None = None) -> int:
    """Forget verdicts, and what compilation caches keep of those contests; returns how many.

    `which` is "all", the name of a model, its digest, or the first six digits of that or more.
    Files that are no verdicts stay. Raises InvalidArgument for no text or an empty one,
    OSError where a file cannot be removed.
    """
    if not which or not isinstance(which, str):
        raise InvalidArgument(
            f"which is {told(which)}, it must be the name of a model, a digest of six digits or "
            'more, or "all"'
        )
    folder = _folder(state_dir)
    known = Verdicts(folder)
    count, models = 0, set[str]()
    if which == "all":
        known.mark_forgotten("all", time.time())
    elif len(which) == DIGEST_DIGITS and _DIGEST.fullmatch(which):
        models.add(which)
    for path, verdict in _read(folder):
        if isinstance(verdict, str) or not _is_meant(verdict, which):
            continue
        models.add(verdict.question.model)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
            count += 1
    if which != "all":
        for model in models:
            known.mark_forgotten(model, time.time())
    return count


def _folder(state_dir: str | None) -> str:
    return os.path.join(os.path.expanduser(state_dir or state_folder()), "verdicts")


def _read(folder: str) -> Iterator[tuple[str, Verdict | str]]:
    """Yields each file with its verdict, or with a text that says why it is none."""
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return
    for name in names:
        if name.startswith(".") or not name.endswith(".json"):
            continue
        path = os.path.join(folder, name)
        data = read_state(path, MAX_BYTES)
        if data is None:
            yield path, f"no regular file of this user with at most {MAX_BYTES} bytes"
            continue
        verdict = decoded(data)
        if isinstance(verdict, Verdict) and not name.startswith(f"{verdict.question.model}-"):
            yield path, "it is about another model than its name says"
        else:
            yield path, verdict


def _is_meant(verdict: Verdict, which: str) -> bool:
    model = verdict.question.model
    is_digest = len(which) >= _LEAST_DIGITS and _DIGEST.fullmatch(which) is not None
    return which in ("all", verdict.name) or (is_digest and model.startswith(which))


def _known(verdict: Verdict) -> KnownVerdict:
    winner = next((each for each in verdict.candidates if each.fate is Fate.CHOSEN), None)
    others = [
        each for each in verdict.candidates if each.fate in _AGREEING and each.median_us is not None
    ]
    second = min(others, key=lambda each: each.median_us or 0.0, default=None)
    question, held = verdict.question, verdict.circumstances
    preferences = {int(each): each.name.lower() for each in ExecutionPreference}
    return KnownVerdict(
        model=_clean(question.model),
        name=_clean(verdict.name),
        device="" if winner is None else _clean(winner.device),
        lowering="" if winner is None else _clean(winner.lowering),
        median_us=None if winner is None else winner.median_us,
        runner_up="" if second is None else _words(second),
        runner_up_us=None if second is None else second.median_us,
        held_at_s=held.held_at_s,
        crowding=held.crowding,
        is_provisional=verdict.is_provisional,
        preference=preferences.get(question.preference, ""),
        precision=_clean(question.precision or ""),
        cores=question.cores,
        is_of_this_machine=verdict.machine == machine(),
    )


def _words(candidate: Candidate) -> str:
    return _clean(f"{candidate.device}, {candidate.lowering}")


def _clean(text: str) -> str:
    """Returns a text out of a file without what a terminal would not show as it is."""
    return "".join(each if each.isprintable() else "?" for each in text)[:_LONGEST]
