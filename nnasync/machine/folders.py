"""A folder that the runtime keeps files in: who owns it, what it holds, whether it takes more."""

from __future__ import annotations

import os
import stat
import tempfile

from nnasync.hal import Struct

_MOST_FILES = 100_000
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class FolderFacts(Struct, frozen=True):
    """A folder as it is found.

    problem: why no file can be made in it, or, where it does not exist, why it could not be made;
    empty where all is well. is_ours: it belongs to this user, and nobody else may write it; true of
    a folder that does not exist. size_bytes and files: what it holds, with folders in it.
    free_bytes: what its file system has left for this user, None where that is not told.
    """

    purpose: str
    path: str
    exists: bool
    problem: str = ""
    is_ours: bool = True
    size_bytes: int = 0
    files: int = 0
    free_bytes: int | None = None


def examine_folder(purpose: str, path: str) -> FolderFacts:
    """Examines a folder; makes and removes a file in it, if the folder exists."""
    path = os.path.abspath(path)
    exists = os.path.isdir(path)
    place = path if exists else _existing(path)
    size_bytes, files = _content(path)
    return FolderFacts(
        purpose,
        path,
        exists,
        _problem(path, place),
        not exists or _is_ours(path),
        size_bytes,
        files,
        _free(place),
    )


def _existing(path: str) -> str:
    """The nearest folder around a path that is there."""
    while not os.path.lexists(path):
        path = os.path.dirname(path)
    return path


def _problem(path: str, place: str) -> str:
    if not os.path.isdir(place):
        return f"{place} is no folder"
    if place != path:
        return "" if os.access(place, os.W_OK | os.X_OK) else f"{place} cannot be written"
    try:
        with tempfile.TemporaryFile(dir=place):
            return ""
    except OSError as error:
        return error.strerror or type(error).__name__


def _is_ours(path: str) -> bool:
    if not hasattr(os, "geteuid"):
        return True
    try:
        found = os.stat(path)
    except OSError:
        return False
    return found.st_uid == os.geteuid() and not found.st_mode & _OTHERS_WRITE


def _content(path: str) -> tuple[int, int]:
    """Bytes and number of the files below a folder, counted up to some number of them."""
    size_bytes = files = 0
    for folder, _, names in os.walk(path):
        for name in names:
            try:
                size_bytes += os.lstat(os.path.join(folder, name)).st_size
            except OSError:
                continue
            files += 1
            if files >= _MOST_FILES:
                return size_bytes, files
    return size_bytes, files


def _free(path: str) -> int | None:
    try:
        found = os.statvfs(path)
    except (OSError, AttributeError):
        return None
    return found.f_bavail * found.f_frsize
