"""How far campaigns came, as a file: another run goes on there, and adds to what was tried."""

from __future__ import annotations

import os
import secrets
from collections import Counter
from pathlib import Path

import msgspec

from nnasync.errors import InvalidArgument
from nnasync.suites.fuzz.conversation import Setting
from nnasync.suites.fuzz.inputs import FuzzKind
from nnasync.suites.fuzz.verdicts import Ending

__all__ = ["CampaignProgress", "KindProgress", "read_progress", "write_progress"]

FORMAT = 1


class KindProgress(msgspec.Struct, frozen=True):
    """What was tried of a kind, in all runs: numbers below `next`, so many inputs."""

    next: int = 0
    inputs: int = 0
    found: int = 0
    lost: int = 0
    endings: dict[Ending, int] = {}

    def after(
        self, next: int, endings: Counter[Ending], *, found: int, is_lost: bool
    ) -> KindProgress:
        """With the inputs up to `next` besides: how they ended, and how many broke a promise."""
        return KindProgress(
            next,
            self.inputs + endings.total() + found,
            self.found + found,
            self.lost + is_lost,
            dict(Counter(self.endings) + endings),
        )


class CampaignProgress(msgspec.Struct, frozen=True):
    """What was tried with a seed on a device, by kind."""

    device: str
    isolate: bool
    seed: int
    kinds: dict[FuzzKind, KindProgress] = {}

    @property
    def inputs(self) -> int:
        """Returns how many inputs were tried in all."""
        return sum(each.inputs for each in self.kinds.values())


class _File(msgspec.Struct, frozen=True):
    campaigns: tuple[CampaignProgress, ...] = ()
    format: int = FORMAT


def read_progress(path: Path, setting: Setting, seed: int) -> CampaignProgress:
    """Returns how far a campaign came: nothing was tried where there is no file yet.

    Raises InvalidArgument for a file that is something else, OSError where it cannot be read.
    """
    for each in _read(path).campaigns:
        if (each.device, each.isolate, each.seed) == (setting.device, setting.isolate, seed):
            return each
    return CampaignProgress(setting.device, setting.isolate, seed)


def write_progress(path: Path, progress: CampaignProgress) -> None:
    """Put a campaign in the place of its old state; the file is whole or as it was. Raises OSError.

    One process at a time may write a file.
    """
    key = (progress.device, progress.isolate, progress.seed)
    others = tuple(
        each for each in _read(path).campaigns if (each.device, each.isolate, each.seed) != key
    )
    temporary = path.parent / f".{path.name}.{secrets.token_hex(8)}"
    try:
        temporary.write_bytes(msgspec.json.encode(_File((*others, progress))) + b"\n")
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _read(path: Path) -> _File:
    try:
        file = msgspec.json.decode(path.read_bytes(), type=_File)
    except FileNotFoundError:
        return _File()
    except msgspec.MsgspecError as error:
        raise InvalidArgument(f"{path} does not say how far fuzzing came: {error}") from error
    if file.format != FORMAT:
        raise InvalidArgument(f"{path} has format {file.format}; this version reads {FORMAT}")
    return file
