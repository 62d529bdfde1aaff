"""The cache files of one compilation on a disk, opened as a client of the HAL opens them."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

Handles = tuple[Sequence[int], Sequence[int]]
"""Descriptors of the model cache and of the data cache."""


class SuiteCacheFiles:
    """Files for a model cache and a data cache in a folder that is there."""

    def __init__(self, folder: Path, numbers: tuple[int, int]) -> None:
        self.folder = folder
        self.model = [folder / f"model{number}" for number in range(numbers[0])]
        self.data = [folder / f"data{number}" for number in range(numbers[1])]
        for path in (*self.model, *self.data):
            path.touch()

    @contextlib.contextmanager
    def opened(self, flags: int = os.O_RDWR, *, offset: int = 0) -> Iterator[Handles]:
        """Descriptors of all files, at a file offset."""
        with contextlib.ExitStack() as stack:
            model, data = (
                [_opened(stack, path, flags, offset) for path in paths]
                for paths in (self.model, self.data)
            )
            yield model, data

    def copy(self, folder: Path) -> SuiteCacheFiles:
        """Returns files with the same contents in another folder."""
        for path in (*self.model, *self.data):
            shutil.copyfile(path, folder / path.name)
        return SuiteCacheFiles(folder, (len(self.model), len(self.data)))

    def replace_model(self, other: SuiteCacheFiles) -> None:
        """Overwrite the model cache with another one."""
        for path, source in zip(self.model, other.model, strict=True):
            path.write_bytes(source.read_bytes())


def _opened(stack: contextlib.ExitStack, path: Path, flags: int, offset: int) -> int:
    fd = os.open(path, flags)
    stack.callback(os.close, fd)
    os.lseek(fd, offset, os.SEEK_SET)
    return fd


def flip(path: Path, draw: random.Random) -> bool:
    """Flip one bit of a file; False if it is empty."""
    content = bytearray(path.read_bytes())
    if not content:
        return False
    bit = draw.randrange(8 * len(content))
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)
    return True


def append(path: Path, draw: random.Random) -> bool:
    """Append up to 256 bytes to a file."""
    with path.open("ab") as file:
        file.write(draw.randbytes(draw.randint(1, 256)))
    return True


def truncate(path: Path, draw: random.Random) -> bool:
    """Cut a file off somewhere; False if it is empty."""
    size = path.stat().st_size
    if size:
        os.truncate(path, draw.randrange(size))
    return size > 0
