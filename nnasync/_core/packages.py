"""Installed packages: their versions and entry points, by the names of files where those tell.

`importlib.metadata` takes 35 ms to import, more than all else that opening a runtime needs, and
several to find anything. Nearly every installation is plain folders on the path, in which folders
such as `numpy-2.1.0.dist-info` say who is there in which version. Whatever is not so plain
(archives, eggs, finders of others, a name that is there twice, an escaped version) is left to
the library.
"""

from __future__ import annotations

import functools
import os
import sys
import time
from collections.abc import Iterator
from importlib.machinery import PathFinder

from nnasync.hal import Struct

VERSION = "0.1.0"
"""Of nnasync itself, installed or not."""

_DIST_INFO, _EGG_INFO = ".dist-info", ".egg-info"
_TICK_NS = 2_000_000_000


class EntryPoint(Struct, frozen=True):
    """What a distribution offers under a name: an object as "module:attribute"."""

    name: str
    target: str
    distribution: str


def version_of(distribution: str) -> str | None:
    """Version of an installed distribution, None if it is not there."""
    wanted = _normal(distribution)
    if not _has_other_finders():
        for place in _places():
            folders = _info_folders(place)
            if folders is None:
                break
            found = [each for each in folders if _is_called(each, wanted)]
            if len(found) > 1 or any(not _is_plain(each) for each in found):
                break
            if found:
                return _version_in(found[0])
        else:
            return None
    from importlib import metadata

    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def is_importable(module: str) -> bool:
    """Returns whether there is a module of this name at the top level; it is not imported."""
    if module in sys.modules:
        return sys.modules[module] is not None
    return any(finder.find_spec(module, None) is not None for finder in sys.meta_path)


def entry_points(group: str) -> tuple[EntryPoint, ...]:
    """The entry points of a group, sorted by name, then distribution with its version.

    Raises whatever the library does where the metadata of an installation is damaged.
    """
    if not _has_other_finders() and not any(_may_offer(place, group) for place in _places()):
        return ()
    from importlib import metadata

    found = [
        EntryPoint(point.name, point.value, _distribution_text(point.dist))
        for point in metadata.entry_points(group=group)
    ]
    return tuple(sorted(found, key=lambda point: (point.name, point.distribution)))


def _distribution_text(distribution: object) -> str:
    name, version = getattr(distribution, "name", ""), getattr(distribution, "version", "")
    return f"{name} {version}".strip() or "an unknown distribution"


def _has_other_finders() -> bool:
    return any(
        hasattr(finder, "find_distributions") and finder is not PathFinder
        for finder in sys.meta_path
    )


def _places() -> Iterator[str]:
    return iter(dict.fromkeys(sys.path))


def _may_offer(place: str, group: str) -> bool:
    folders = _info_folders(place)
    return folders is None or any(group.encode() in text for text in _texts(place, folders))


def _texts(place: str, folders: tuple[str, ...]) -> Iterator[bytes]:
    for folder in folders:
        try:
            with open(os.path.join(place, folder, "entry_points.txt"), "rb") as file:
                yield file.read()
        except OSError:
            continue


def _info_folders(place: str) -> tuple[str, ...] | None:
    """Names of the metadata in a place of the path; None if only the library can tell."""
    if place.endswith(".egg"):
        return None
    place = place or "."
    try:
        changed_ns = os.stat(place).st_mtime_ns
        # A folder may change again within one tick of the clock that its time is taken from.
        is_settled = time.time_ns() - changed_ns > _TICK_NS
        return _listed(place, changed_ns) if is_settled else _listed.__wrapped__(place, changed_ns)
    except NotADirectoryError:
        return None
    except OSError:
        return ()


@functools.lru_cache(maxsize=64)
def _listed(place: str, mtime_ns: int) -> tuple[str, ...]:
    names = os.listdir(place)
    return tuple(name for name in names if name.lower().endswith((_DIST_INFO, _EGG_INFO)))


def _name_of(folder: str) -> str:
    return folder.rpartition(".")[0].partition("-")[0]


def _is_called(folder: str, wanted: str) -> bool:
    # Comparing first words first spares nearly all of the normalization.
    return (
        folder.lower().startswith(wanted.partition("-")[0]) and _normal(_name_of(folder)) == wanted
    )


def _is_plain(folder: str) -> bool:
    return folder.endswith(_DIST_INFO) and folder.count("-") == 2 and "_" not in _version_in(folder)


def _version_in(folder: str) -> str:
    return folder.removesuffix(_DIST_INFO).rpartition("-")[2]


def _normal(name: str) -> str:
    name = name.lower().replace("_", "-").replace(".", "-")
    while "--" in name:
        name = name.replace("--", "-")
    return name
