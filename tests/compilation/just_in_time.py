"""Devices that write their cache files after they prepared a model: engines, and one of others."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Sequence
from typing import Any, cast

from nnasync._core.drivers.null import NullEngine
from nnasync._core.engine_device import EngineDevice
from nnasync._core.workers import Workers
from nnasync.device import DEFAULT_PREPARE, PrepareModelConfig
from nnasync.engine import (
    BoundCall,
    CacheFiles,
    LateFiles,
    Lowering,
    Plan,
    Target,
)
from nnasync.errors import GeneralFailure
from nnasync.hal import Array, ExecutionPreference, Model
from tests.rigs import doubler

FIRST = CacheFiles((b"interpreted",), (b"",))
LATER = CacheFiles((b"compiled",), (b"weights",))


class LatePlan(Plan):
    """A plan of the null engine that is compiled when it is told."""

    def __init__(self, plan: Plan, files: CacheFiles) -> None:
        self.files = files
        self.late: LateFiles | None = None
        self._plan = plan

    def bind(self, inputs: Sequence[Array | None], outputs: Sequence[Target]) -> BoundCall:
        return self._plan.bind(inputs, outputs)

    def trim(self) -> None:
        self._plan.trim()

    def kept_in(self, files: LateFiles) -> None:
        self.late = files

    def compile(self, files: CacheFiles = LATER) -> None:
        """What a plan does when it has run often enough."""
        self.files = files
        if self.late is not None:
            self.late.update(files)


class LateEngine(NullEngine):
    """Doubles; its plans say what was compiled of them."""

    caches_late = True

    def __init__(self, compiles_after: int = 1 << 30, takes: CacheFiles | None = None) -> None:
        super().__init__(compute=self._doubled, cache_files=(1, 1))
        self.plans: list[LatePlan] = []
        self.loaded: list[CacheFiles] = []
        self._runs_left = compiles_after
        self._takes = takes

    def _doubled(self, inputs: Any) -> list[Array]:
        self._runs_left -= 1
        if self._runs_left == 0:
            self.plans[-1].compile()
        return [inputs[0] * 2]

    def compile(self, model: Model, preference: ExecutionPreference) -> Any:
        return self._made(super().compile(model, preference), FIRST)

    def serialize(self, plan: Plan) -> CacheFiles:
        return cast(LatePlan, plan).files

    def deserialize(self, files: CacheFiles, lowering: Lowering | None) -> Any:
        found = CacheFiles((bytes(files.model[0]),), (bytes(files.data[0]),))
        self.loaded.append(found)
        if self._takes not in (None, found):
            raise GeneralFailure("these are not the files that were expected")
        return self._made(self._new_plan(), found)

    def _made(self, plan: Plan, files: CacheFiles) -> Plan:
        self.plans.append(LatePlan(plan, files))
        return self.plans[-1]


def compiles_at_the_third_run() -> LateEngine:
    """An engine for a process of its own, which takes nothing from the cache but what that made."""
    return LateEngine(compiles_after=3, takes=LATER)


class Foreign(EngineDevice):
    """A device of others, which keeps cache files by itself, and writes them whenever it likes."""

    share: Any = None

    name = "foreign"
    caches_late = True

    def __init__(self, engine: NullEngine, workers: Workers, first: bytes = b"") -> None:
        super().__init__(engine, workers)
        self.first = first
        self.fds: list[int] = []
        self.loaded: list[bytes] = []
        self.prepared = 0

    async def get_number_of_cache_files_needed(self) -> tuple[int, int]:
        return 1, 1

    async def prepare_model(
        self, model: Model, config: PrepareModelConfig = DEFAULT_PREPARE
    ) -> Any:
        self.prepared += 1
        self._duplicate(*config.model_cache, *config.data_cache)
        if self.first:
            os.pwrite(self.fds[0], self.first, 0)
        return await super().prepare_model(model)

    async def prepare_model_from_cache(self, config: PrepareModelConfig) -> Any:
        self._duplicate(*config.model_cache, *config.data_cache)
        self.loaded.append(os.pread(self.fds[0], 100, 0))
        return await super().prepare_model(doubler())

    def write(self, content: bytes, *, at: int = 0) -> None:
        """Write the model cache file as a driver does that compiled more."""
        fcntl.flock(self.fds[0], fcntl.LOCK_EX)
        os.pwrite(self.fds[0], content, at)
        fcntl.flock(self.fds[0], fcntl.LOCK_UN)

    def _duplicate(self, *fds: int) -> None:
        while self.fds:
            os.close(self.fds.pop())
        self.fds = [os.dup(fd) for fd in fds]

    async def close(self) -> None:
        self._duplicate()
        await super().close()
