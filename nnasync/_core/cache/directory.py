"""The client's directory of cache files, which is not to be trusted.

It is opened once for each operation and everything in it is reached through that descriptor, so
that what was checked is what is used. Symbolic links are never followed, pipes and devices never
waited for. Everything here may block as long as the file system does: call it in a thread.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import time
from collections.abc import Iterator
from typing import Self

from nnasync._core.cache.outcome import Rejected
from nnasync.errors import InvalidArgument

_PREFIX = ".nnasync-"
_OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CREATE_FILE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Directory:
    """An open cache directory; a context manager.

    Raises InvalidArgument where it is no directory, a symbolic link, not the user's, or writable
    for everybody; Rejected where it is missing or the system refuses.
    """

    def __init__(self, path: str, *, create: bool = False) -> None:
        self.path = path
        if create:
            self._create()
        self._fd = self._open()
        try:
            self._check()
        except BaseException:
            self.close()
            raise

    def _create(self) -> None:
        try:
            os.makedirs(os.path.dirname(self.path), exist_ok=True)
            os.mkdir(self.path, 0o700)
        except (FileExistsError, NotADirectoryError):
            # `_open` finds out, and says, what is there in its place.
            return
        except OSError as error:
            raise _rejected("made", error) from error

    def _open(self) -> int:
        try:
            return os.open(self.path, _OPEN_DIRECTORY)
        except (NotADirectoryError, ValueError) as error:
            raise InvalidArgument(
                f"the cache directory {self.path!r} is not a directory; "
                "a symbolic link to one is not followed"
            ) from error
        except FileNotFoundError as error:
            raise Rejected("no entry: the cache directory does not exist") from error
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise InvalidArgument(
                    f"the cache directory {self.path!r} is a symbolic link, which is not followed"
                ) from error
            raise _rejected("opened", error) from error

    def _check(self) -> None:
        found = os.fstat(self._fd)
        if found.st_uid != os.geteuid():
            raise InvalidArgument(
                f"the cache directory {self.path!r} belongs to user {found.st_uid}; "
                f"it must belong to user {os.geteuid()}, who runs this"
            )
        if found.st_mode & stat.S_IWOTH:
            raise InvalidArgument(
                f"the cache directory {self.path!r} is writable for everybody "
                f"(mode {stat.S_IMODE(found.st_mode):o}); make it 700"
            )

    def close(self) -> None:
        """Close the descriptor."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def open_file(self, name: str) -> int:
        """Descriptor of a regular file for reading; raises OSError."""
        fd = os.open(name, _OPEN_FILE, dir_fd=self._fd)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise OSError(errno.EINVAL, "is not a regular file")
        return fd

    def has(self, name: str) -> bool:
        """Returns whether there is something of that name."""
        try:
            os.stat(name, dir_fd=self._fd, follow_symlinks=False)
        except OSError:
            return False
        return True

    def create_temporary(self) -> TemporaryFile:
        """A file that is not part of any entry yet; raises OSError."""
        while True:
            name = _PREFIX + os.urandom(8).hex()
            fd = os.open(name, _CREATE_FILE, 0o600, dir_fd=self._fd)
            file = TemporaryFile(self, name, fd)
            try:
                if _is_locked(fd):
                    return file
            except OSError:
                # A file system without locks: nobody can sweep there either.
                return file
            file.close()

    def rename(self, old: str, new: str) -> None:
        """Give a file another name, replacing what had it; raises OSError."""
        os.replace(old, new, src_dir_fd=self._fd, dst_dir_fd=self._fd)

    def remove(self, name: str) -> None:
        """Delete a file; one that is gone already, or cannot be deleted, harms nothing."""
        with contextlib.suppress(OSError):
            os.unlink(name, dir_fd=self._fd)

    def sync(self) -> None:
        """Wait until names are on the disk; raises OSError."""
        os.fsync(self._fd)

    def touch(self, name: str) -> None:
        """Note in the time of a file that it was used, where the directory allows it."""
        now_ns = time.time_ns()
        # Not every system can set the times of a link itself, and then none are set.
        with contextlib.suppress(OSError, NotImplementedError):
            os.utime(name, ns=(now_ns, now_ns), dir_fd=self._fd, follow_symlinks=False)

    def files(self) -> Iterator[tuple[str, os.stat_result]]:
        """Name and state of each regular file; raises OSError."""
        with os.scandir(self._fd) as found:
            for item in found:
                with contextlib.suppress(FileNotFoundError):
                    if item.is_file(follow_symlinks=False):
                        yield item.name, item.stat(follow_symlinks=False)

    def sweep(self, names: list[str]) -> None:
        """Delete the temporary files among these whose writers were killed."""
        for name in names:
            if name.startswith(_PREFIX):
                with contextlib.suppress(OSError):
                    self._sweep(name)

    def _sweep(self, name: str) -> None:
        fd = self.open_file(name)
        try:
            if _is_locked(fd):
                self.remove(name)
        finally:
            os.close(fd)


class TemporaryFile:
    """A locked file with a name of its own, deleted when closed unless it was renamed."""

    def __init__(self, directory: Directory, name: str, fd: int) -> None:
        self.fd = fd
        self._directory = directory
        self._name = name

    def rename(self, name: str) -> None:
        """Give it its final name; raises OSError."""
        self._directory.rename(self._name, name)
        self._name = ""

    def close(self) -> None:
        """Close it, and delete it if it still has its temporary name."""
        if self._name:
            self._directory.remove(self._name)
        self._name = ""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)


def _is_locked(fd: int) -> bool:
    """Lock a file; False if somebody else has it, or a sweeper was faster. Raises OSError."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return os.fstat(fd).st_nlink == 1


def _rejected(done: str, error: OSError) -> Rejected:
    return Rejected(f"the cache directory cannot be {done}: {error.strerror}")
