"""Handles of memory that cannot be used, and models and requests to use them with."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

import nnasync as nn
from nnasync.hal import DataLocation, Memory, Model, Request, RequestArgument
from nnasync.memory import Pool

SIZE = 4096
"""Bytes of each: more than the models of this file need."""


class NotMapped:
    """Memory of a library of somebody else, which cannot map it here."""

    name = "ashmem"
    size = SIZE

    @property
    def view(self) -> memoryview:
        raise OSError("cannot be mapped in this process")


def closed(folder: Path) -> Memory:
    pool = Pool.allocate(SIZE)
    pool.close()
    return pool


def foreign_kind(folder: Path) -> Memory:
    return NotMapped()


def foreign_handle(folder: Path) -> Memory:
    """The handle of something else: an event."""
    fd = os.eventfd(0, os.EFD_CLOEXEC)
    try:
        return Pool.from_handle(fd, SIZE)
    finally:
        os.close(fd)


def unmappable(folder: Path) -> Memory:
    read, write = os.pipe()
    try:
        return Pool.from_handle(read, SIZE, kind="ashmem")
    finally:
        os.close(read)
        os.close(write)


def directory(folder: Path) -> Memory:
    fd = os.open(folder, os.O_RDONLY)
    try:
        return Pool.from_handle(fd, SIZE)
    finally:
        os.close(fd)


def too_short(folder: Path) -> Memory:
    return of_file(folder, os.O_RDWR, content=bytes(10))


def write_only(folder: Path) -> Memory:
    return of_file(folder, os.O_WRONLY)


def write_only_by_its_word(folder: Path) -> Memory:
    return of_file(folder, os.O_RDWR, prot=mmap.PROT_WRITE)


def truncated(folder: Path) -> Memory:
    """A file that was long enough when it was mapped."""
    path = folder / "truncated"
    path.write_bytes(bytes(SIZE))
    with open(path, "r+b") as file:
        pool = Pool.from_fd(file.fileno(), SIZE)
    os.truncate(path, 0)
    return pool


def read_only(folder: Path) -> Memory:
    path = folder / "read only"
    path.write_bytes(bytes(SIZE))
    return Pool.from_file(path)


def of_file(folder: Path, flags: int, *, content: bytes = bytes(SIZE), **options: Any) -> Pool:
    path = folder / "memory"
    path.write_bytes(content)
    fd = os.open(path, flags)
    try:
        return Pool.from_handle(fd, SIZE, **options)
    finally:
        os.close(fd)


BAD: tuple[Callable[[Path], Memory], ...] = (
    closed,
    foreign_kind,
    foreign_handle,
    unmappable,
    directory,
    too_short,
    write_only,
    write_only_by_its_word,
    truncated,
)
UNSENDABLE = (closed, foreign_kind, write_only_by_its_word)
"""Those of which there is nothing to send to another process."""


@contextmanager
def given(make: Callable[[Path], Memory], folder: Path) -> Iterator[Memory]:
    """Memory that is given back."""
    memory = make(folder)
    try:
        yield memory
    finally:
        if isinstance(memory, Pool):
            memory.close()


class Subject:
    """A model with constants in a pool, what it is fed with, and what must come out."""

    def __init__(self, model: Model, x: Any, y: Any, supported: tuple[bool, ...]) -> None:
        """`supported`: what a device does for each operation while the constants are unusable."""
        self.model = model
        self.x = np.asarray(x)
        self.y = np.asarray(y)
        self.supported = supported

    def with_constants(self, pool: Memory) -> Model:
        """The model with other memory in place of its constants."""
        return msgspec.structs.replace(self.model, pools=(pool,))

    def request(self, source: Memory, target: Memory) -> Request:
        """Both at the beginning of their memory."""
        return Request(
            (RequestArgument(location=DataLocation(0, 0, self.x.nbytes)),),
            (RequestArgument(location=DataLocation(1, 0, self.y.nbytes)),),
            (source, target),
        )


def dense() -> Subject:
    """FULLY_CONNECTED with its weights in a pool, and RELU, which has no constants."""
    weights = np.arange(64, dtype=np.float32).reshape(16, 4)
    builder = nn.ModelBuilder("dense")
    x = builder.input("x", (1, 4))
    inner = builder.fully_connected(x, weights, np.zeros(16, np.float32))
    builder.output("y", builder.relu(inner))
    given = np.array([[1, 2, 3, 4]], np.float32)
    return Subject(builder.build(), given, given @ weights.T, (False, True))
