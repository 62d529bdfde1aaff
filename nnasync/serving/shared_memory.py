"""System shared memory: regions that clients of the same machine share with the server.

A client makes a file in the folder of POSIX shared memory, registers it under a name, and from
then on sends places instead of tensors. The file is mapped once, when it is registered; inputs are
read in it, outputs are written into it.

Whoever may write a file may also shorten it, and the next access to a mapping behind its end is a
bus error, which no process survives. Files of POSIX shared memory cannot be sealed against it. So:

* How long the file is now is asked for before each use. What was shortened by then is refused.
* A file is mapped only if it belongs to the user that the server runs as, and nobody else may
  write it: who could shorten it during a use could as well kill the server.
* Any other file that the server may open is never mapped. What is needed of it is copied, by
  system calls, to which the end of a file is an answer.

What a request names is a name of a region, never a path; the key of a region is the name of a file
directly in that folder, and no link.
"""

from __future__ import annotations

import os
import re
import stat
from http import HTTPStatus
from typing import Any

import numpy as np

from nnasync.errors import CallerError, ResourceExhausted
from nnasync.hal import Struct
from nnasync.memory import Pool
from nnasync.serving.messages import Bytes, RegionSlice
from nnasync.serving.problems import ServingError, invalid, not_found

FOLDER = "/dev/shm"
"""Where POSIX shared memory is on Linux."""
_KEY = re.compile(r"/*([^/\0]{1,254})")
_OPEN = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_MOST_BYTES = 2**48


class RegionStatus(Struct, frozen=True):
    """A region that is registered: `byte_size` bytes from `offset` of the file named by `key`."""

    name: str
    key: str
    offset: int
    byte_size: int


class ClientsMemory:
    """Keeps the shared memory of all clients of a server, each of which sees its own regions alone.

    With `is_allowed` false nothing can be registered.
    """

    def __init__(self, most_regions: int = 256, *, is_allowed: bool = True) -> None:
        self._is_allowed = is_allowed
        self._most = most_regions
        self._of: dict[str, SharedMemory] = {}
        self._all: list[SharedMemory] = []

    def of(self, client: str) -> SharedMemory:
        """Returns the shared memory of a client."""
        found = self._of.get(client)
        if found is None:
            found = SharedMemory(self._most, is_allowed=self._is_allowed, beside=self._all)
            self._of[client] = found
        return found

    def close(self) -> None:
        """Forget all regions of all clients."""
        for each in self._all:
            each.close()


class SharedMemory:
    """The regions that one client has registered with a server.

    With `is_allowed` false nothing can be registered. What it raises is ServingError.
    """

    def __init__(
        self,
        most_regions: int = 256,
        *,
        is_allowed: bool = True,
        beside: list[SharedMemory] | None = None,
    ) -> None:
        """Counts regions together with `beside`, those of other clients.

        `most_regions` is for all.
        """
        self._is_allowed = is_allowed
        self._most = most_regions
        self._regions: dict[str, _Region] = {}
        self._beside = [] if beside is None else beside
        self._beside.append(self)

    def register(self, name: str, key: str, offset: int, byte_size: int) -> None:
        """Map a file of shared memory, or a part of it, under a name.

        Raises where the name is taken, where there is no such file, where it is shorter, and where
        another client has it registered.
        """
        if not self._is_allowed:
            raise ServingError(HTTPStatus.FORBIDDEN, "shared memory is turned off on this server")
        if not name:
            raise invalid("a shared memory region must have a name")
        if name in self._regions:
            raise invalid(f"shared memory region '{name}' already in manager")
        if sum(len(each._regions) for each in self._beside) >= self._most:
            text = f"there are {self._most} shared memory regions, the most that are allowed"
            raise ServingError(HTTPStatus.SERVICE_UNAVAILABLE, text)
        if not 0 < byte_size <= _MOST_BYTES or not 0 <= offset <= _MOST_BYTES:
            raise invalid(f"Invalid offset + byte size for shared memory region: '{name}'")
        status = RegionStatus(name, key, offset, byte_size)
        region = _opened(status)
        if any(each.has(region.file) for each in self._beside if each is not self):
            region.close()
            raise _cannot_open(status)
        self._regions[name] = region

    def has(self, file: tuple[int, int]) -> bool:
        """Returns whether a file is registered, by its device and inode number."""
        return any(region.file == file for region in self._regions.values())

    def unregister(self, name: str | None = None) -> None:
        """Forget a region, or all; requests that use it keep its memory until their end."""
        names = list(self._regions) if name is None else [name]
        for each in names:
            region = self._regions.pop(each, None)
            if region is not None:
                region.close()

    def status(self, name: str | None = None) -> list[RegionStatus]:
        """Returns the region of this name, or all.

        Raises ServingError where there is none of it.
        """
        if name is None:
            return [region.status for region in self._regions.values()]
        if name not in self._regions:
            raise not_found(f"Unable to find system shared memory region: '{name}'")
        return [self._regions[name].status]

    def view(self, place: RegionSlice) -> memoryview:
        """Returns the bytes of a place for reading, without a copy where its file is mapped."""
        return self._checked(place).read(place)

    def target(self, place: RegionSlice, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Any:
        """Returns the beginning of a place as an array for writing.

        Returns None where the file is not mapped.
        """
        pool = self._checked(place).pool
        return None if pool is None else np.ndarray(shape, dtype, pool.view, place.offset)

    def write(self, place: RegionSlice, data: Bytes) -> None:
        """Put bytes at the beginning of a place, which must be large enough."""
        self._checked(place).write(place, data)

    def close(self) -> None:
        """Forget all regions."""
        self.unregister()

    def _checked(self, place: RegionSlice) -> _Region:
        region = self._regions.get(place.name)
        if region is None:
            raise not_found(f"Unable to find shared memory region: '{place.name}'")
        if not 0 <= place.offset <= place.offset + place.byte_size <= region.status.byte_size:
            raise invalid(f"Invalid offset + byte size for shared memory region: '{place.name}'")
        region.check()
        return region


class _Region:
    """An open file of shared memory; without a pool it is not mapped."""

    def __init__(self, status: RegionStatus, fd: int, pool: Pool | None) -> None:
        self.status = status
        self.pool = pool
        self._fd = fd
        about = os.fstat(fd)
        self.file = (about.st_dev, about.st_ino)

    def check(self) -> None:
        """Raise where the file has become shorter than the region."""
        if os.fstat(self._fd).st_size < self.status.offset + self.status.byte_size:
            raise _too_short(self.status.name)

    def read(self, place: RegionSlice) -> memoryview:
        if self.pool is not None:
            return self.pool.view[place.offset : place.offset + place.byte_size]
        data = memoryview(bytearray(place.byte_size))
        done = 0
        while done < len(data):
            count = os.preadv(self._fd, [data[done:]], self.status.offset + place.offset + done)
            if count == 0:
                raise _too_short(place.name)
            done += count
        return data

    def write(self, place: RegionSlice, data: Bytes) -> None:
        view = memoryview(data).cast("B")
        if self.pool is not None:
            self.pool.view[place.offset : place.offset + len(view)] = view
            return
        done = 0
        while done < len(view):
            done += os.pwrite(self._fd, view[done:], self.status.offset + place.offset + done)

    def close(self) -> None:
        if self.pool is not None:
            self.pool.close()
        os.close(self._fd)


def _opened(status: RegionStatus) -> _Region:
    key = _KEY.fullmatch(status.key)
    if key is None or key[1] in (".", ".."):
        raise _cannot_open(status, HTTPStatus.BAD_REQUEST)
    try:
        fd = os.open(f"{FOLDER}/{key[1]}", _OPEN)
    except (OSError, ValueError) as error:
        raise _cannot_open(status) from error
    try:
        about = os.fstat(fd)
        if not stat.S_ISREG(about.st_mode):
            raise _cannot_open(status)
        if about.st_size < status.offset + status.byte_size:
            raise _too_short(status.name)
        pool = None
        if about.st_uid == os.geteuid() and not about.st_mode & _OTHERS_WRITE:
            pool = Pool.from_fd(fd, status.byte_size, offset=status.offset)
        return _Region(status, fd, pool)
    except (CallerError, ResourceExhausted) as error:
        os.close(fd)
        raise _cannot_open(status) from error
    except BaseException:
        os.close(fd)
        raise


def _cannot_open(
    status: RegionStatus, code: HTTPStatus = HTTPStatus.INTERNAL_SERVER_ERROR
) -> ServingError:
    return ServingError(code, f"Unable to open shared memory region: '{status.key}'")


def _too_short(name: str) -> ServingError:
    return invalid(f"Invalid offset + byte size for shared memory region: '{name}'")


def no_cuda(name: str) -> str:
    """Returns the message for clients that want memory of a GPU registered."""
    return f"failed to register CUDA shared memory region '{name[:200]}': this server has none"
