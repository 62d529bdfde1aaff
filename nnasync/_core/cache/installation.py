"""The folder of the user's state, and the secret of this installation in it.

The folder is readable by its owner only and never lies in a cache directory: who may write the
cache files must not be able to write what they are checked against.
"""

from __future__ import annotations

import contextlib
import os
import stat

from nnasync._core.cache.outcome import Rejected
from nnasync.errors import InvalidArgument

_KEY_NAME = "cache.key"
_KEY_BYTES = 32


class Installation:
    """What one user keeps on one machine; the folder is made when something is first written."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def path(self, name: str) -> str:
        """Returns the path of a file in the folder."""
        return os.path.join(self.folder, name)

    def secret(self) -> bytes | None:
        """The secret, 32 bytes; None where there is none yet, or its file is not as it should be.

        Raises InvalidArgument if the folder belongs to somebody else.
        """
        try:
            self._check_folder()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise Rejected(f"the state folder cannot be read: {error.strerror}") from error
        return self._read()

    def make_secret(self) -> bytes:
        """The secret, made if there is none; one file that two processes make at once is the same.

        Raises InvalidArgument as `secret`, Rejected where the folder cannot be written.
        """
        try:
            os.makedirs(self.folder, mode=0o700, exist_ok=True)
            self._check_folder()
            return self._read() or self._create()
        except OSError as error:
            raise Rejected(f"the state folder cannot be written: {error.strerror}") from error

    def _check_folder(self) -> None:
        found = os.stat(self.folder)
        if found.st_uid != os.geteuid():
            raise InvalidArgument(
                f"the state folder {self.folder} belongs to user {found.st_uid}; it must be yours"
            )
        if stat.S_IMODE(found.st_mode) & 0o077:
            os.chmod(self.folder, 0o700)

    def _read(self) -> bytes | None:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            fd = os.open(self.path(_KEY_NAME), flags)
        except OSError:
            return None
        with open(fd, "rb") as file:
            found = os.fstat(fd)
            secret = file.read(_KEY_BYTES + 1)
        ours = stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid()
        private = not stat.S_IMODE(found.st_mode) & 0o077
        return secret if ours and private and len(secret) == _KEY_BYTES else None

    def _create(self) -> bytes:
        """Write a secret beside the name, then give it the name in one step."""
        temporary = self.path(f".{_KEY_NAME}-{os.urandom(8).hex()}")
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with open(fd, "wb") as file:
                file.write(os.urandom(_KEY_BYTES))
                file.flush()
                os.fsync(fd)
            self._name(temporary)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
        secret = self._read()
        if secret is None:
            raise Rejected("the state folder does not keep what is written to it")
        return secret

    def _name(self, temporary: str) -> None:
        try:
            # Unlike a rename, a link never replaces what another process made meanwhile.
            os.link(temporary, self.path(_KEY_NAME))
        except FileExistsError:
            if self._read() is None:
                os.replace(temporary, self.path(_KEY_NAME))
