"""Cache handles of a HAL client, and small models whose compilations are kept."""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

import nnasync as nn
from nnasync._core.engine_device import EngineDevice, EnginePreparedModel
from nnasync.device import PrepareModelConfig
from nnasync.engine import CacheFiles
from nnasync.hal import Model, OperationType

TOKEN = bytes(range(32))


class Files:
    """Files of a client, opened as it pleases."""

    def __init__(self, folder: Path, counts: tuple[int, int], name: str = "") -> None:
        folder.mkdir(exist_ok=True)
        self.paths = [folder / f"{name}{kind}{n}" for kind in (0, 1) for n in range(counts[kind])]
        self.counts = counts
        for path in self.paths:
            path.touch()

    @contextlib.contextmanager
    def opened(
        self, flags: int = os.O_RDWR, counts: tuple[int, int] | None = None, *, offset: int = 0
    ) -> Iterator[tuple[Sequence[int], Sequence[int]]]:
        """Handles of the model cache and the data cache, or of other numbers of files."""
        model, data = counts or self.counts
        numbers = [*range(model), *range(self.counts[0], self.counts[0] + data)]
        fds = [os.open(self.paths[min(n, len(self.paths) - 1)], flags) for n in numbers]
        try:
            for fd in fds:
                os.lseek(fd, offset, os.SEEK_SET)
            yield fds[:model], fds[model:]
        finally:
            for fd in fds:
                os.close(fd)

    def contents(self) -> CacheFiles:
        """What is in the files."""
        found = [path.read_bytes() for path in self.paths]
        return CacheFiles(tuple(found[: self.counts[0]]), tuple(found[self.counts[0] :]))

    async def save(
        self,
        device: EngineDevice,
        model: Model,
        token: bytes = TOKEN,
        *,
        flags: int = os.O_RDWR,
        counts: tuple[int, int] | None = None,
        offset: int = 0,
    ) -> EnginePreparedModel:
        """Compile a model and have it kept."""
        with self.opened(flags, counts, offset=offset) as (model_fds, data_fds):
            prepared = await device.prepare_model(
                model, PrepareModelConfig(model_cache=model_fds, data_cache=data_fds, token=token)
            )
        assert isinstance(prepared, EnginePreparedModel)
        return prepared

    async def load(
        self,
        device: EngineDevice,
        token: bytes = TOKEN,
        *,
        flags: int = os.O_RDWR,
        counts: tuple[int, int] | None = None,
        offset: int = 0,
    ) -> EnginePreparedModel:
        """Load what was kept."""
        with self.opened(flags, counts, offset=offset) as (model_fds, data_fds):
            prepared = await device.prepare_model_from_cache(
                PrepareModelConfig(model_cache=model_fds, data_cache=data_fds, token=token)
            )
        assert isinstance(prepared, EnginePreparedModel)
        return prepared


def flip(path: Path, chance: random.Random) -> None:
    """Change one bit of a file."""
    data = bytearray(path.read_bytes())
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    path.write_bytes(data)


def append(path: Path, chance: random.Random) -> None:
    """Make a file longer by 1 to 256 bytes."""
    path.write_bytes(path.read_bytes() + chance.randbytes(chance.randint(1, 256)))


def chain(type: OperationType, length: int = 100) -> Model:
    """x + x + x ... or x * x * x ..., with one row of four floats."""
    builder = nn.ModelBuilder(type.name)
    x = builder.input("x", (1, 4))
    y = x
    for _ in range(length):
        y = builder.add(y, x) if type == OperationType.ADD else builder.mul(y, x)
    builder.output("y", y)
    return builder.build()


def dense() -> Model:
    """A dense layer, whose weights go to the data cache."""
    builder = nn.ModelBuilder("dense")
    x = builder.input("x", (1, 20))
    builder.output("y", builder.fully_connected(x, np.eye(20, dtype=np.float32)))
    return builder.build()
