"""How long each engine takes until it is ready on this machine, kept from run to run.

That is the import of its package and its first plan. Of several times the shortest counts: other
work, and files that are read for the first time, only make it longer. Drivers state an estimate,
which counts until there is a time.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import msgspec

from nnasync._core.state_files import read_state, write_state
from nnasync.hal import Struct
from nnasync.machine.kept import digest

_NAME = "loading-1.msgpack"
_MOST_BYTES = 8192
_MOST_ENGINES = 64
_LONGEST_MS = 600_000.0


class _Kept(Struct, frozen=True):
    """The content of the file: milliseconds by engine and version, and where they were measured."""

    digest: str
    loading_ms: dict[str, float]


def kept_loading_ms(folder: str | os.PathLike[str]) -> dict[str, float]:
    """Milliseconds by name and version of an engine, of those that were ever loaded here."""
    data = read_state(os.path.join(folder, _NAME), _MOST_BYTES)
    if data is None:
        return {}
    try:
        kept = msgspec.msgpack.decode(data, type=_Kept)
    except msgspec.MsgspecError:
        return {}
    found = kept.loading_ms
    is_ours = kept.digest == digest() and all(0 < ms <= _LONGEST_MS for ms in found.values())
    return found if is_ours else {}


def learn_loading_ms(folder: str | os.PathLike[str], found: Mapping[str, float]) -> None:
    """Keep what engines took just now, by name and version, where that is news."""
    known = kept_loading_ms(folder)
    shorter = {name: ms for name, ms in found.items() if 0 < ms < known.get(name, _LONGEST_MS)}
    if shorter:
        newest = dict([*{**known, **shorter}.items()][-_MOST_ENGINES:])
        data = msgspec.msgpack.encode(_Kept(digest(), newest))
        write_state(os.path.join(folder, _NAME), data)
