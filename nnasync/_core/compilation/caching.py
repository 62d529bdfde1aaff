"""The cache as one compilation sees it: its keys, and the waiting for a file system.

A client's directory may be slow, or on a mount that is dead. All of it is done on threads, with
patience that ends: then the compilation goes on without the cache and says so in the report.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

import msgspec

from nnasync._core.cache import (
    CacheKey,
    Contents,
    Hit,
    Miss,
    derive_token,
    operations_digest,
)
from nnasync._core.cache.outcome import Rejected
from nnasync._core.clock import Deadline, now_ns
from nnasync._core.compilation.choice import Part
from nnasync._core.compilation.spec import CompileSpec
from nnasync._core.deferred import deferred
from nnasync._core.engine_device.caching import library_version
from nnasync._core.state_files import machine
from nnasync._core.wakeup import shield
from nnasync._core.workers import HelperThreads
from nnasync.device import Device, Lowering, PreparedModel, PrepareModelConfig
from nnasync.errors import MissedDeadline, NNError

if TYPE_CHECKING:
    from nnasync._core.cache import Store, late_files
    from nnasync._core.cache import writing as writings
    from nnasync._core.cache.late_files import Amender, SharedEntries, SharedEntry
    from nnasync._core.cache.writing import Writing
else:
    late_files = deferred("nnasync._core.cache.late_files")
    writings = deferred("nnasync._core.cache.writing")

T = TypeVar("T")

_PATIENCE_S = 5.0


class CompilationCache:
    """Reads and writes the cache for one compilation; `reason` says why it was not found there."""

    def __init__(
        self,
        store: Store,
        helper_threads: HelperThreads,
        spec: CompileSpec,
        *,
        cores: int,
        shared: Callable[[], SharedEntries] | None = None,
    ) -> None:
        """Has keys that hold all of `spec` and `cores` that decides on the plan.

        `shared` gives what looks after the files of devices that write them late.
        """
        self._store = store
        self._helper_threads = helper_threads
        self._digest = spec.fingerprint
        self._deadline = spec.deadline
        self._shared = shared
        self._common = CacheKey(
            spec.token or spec.fingerprint,
            device_name="",
            device_version="",
            library_version=library_version(),
            preference=spec.preference,
        )
        self._priority = spec.priority
        conditions = [
            machine(),
            [device.name for device in spec.devices],
            cores,
            spec.budget_ns > 0,
            spec.precision,
            spec.quantum_ns,
            spec.pin,
            sorted(spec.code.items()),
            spec.value_limit_bytes,
        ]
        self._conditions = hashlib.sha256(msgspec.json.encode(conditions)).hexdigest()
        self._answers = True
        self.unusable: set[Part] = set()
        """The parts whose entries were there and could not be loaded."""
        self.versions = ", ".join(f"{each.name} {each.version}" for each in spec.devices)
        self.reason = ""

    def key(self, part: Part, step: int = 0, operations: Sequence[int] = ()) -> CacheKey:
        """Returns the cache key of a device's plan.

        The whole model has step 0, and names no operations.
        """
        return msgspec.structs.replace(
            self._common,
            device_name=part.device,
            device_version=part.version,
            step=step,
            operations=operations_digest((0, index) for index in operations) if operations else b"",
            variant=f"{part.lowering}, {part.threads} threads;{self._conditions}",
        )

    async def lookup(self, key: CacheKey, counts: tuple[int, int]) -> Hit | Miss:
        """Returns the files of an entry; where there are none, `reason` says why."""
        silent: Hit | Miss = Miss(self._silence())
        found = await self._on_thread(lambda: self._store.lookup(key, self._digest, counts), silent)
        return self._noted(found)

    async def read(
        self,
        key: CacheKey,
        counts: tuple[int, int] | None = None,
        *,
        found: Callable[[], object] | None = None,
    ) -> Contents | Miss:
        """Returns the contents of an entry as `Store.read` does, or notes the `reason` for none."""
        silent: Contents | Miss = Miss(self._silence())
        read = functools.partial(self._store.read, key, self._digest, counts, found=found)
        return self._noted(await self._on_thread(read, silent))

    def _noted(self, found: T) -> T:
        if isinstance(found, Miss):
            self.reason = self.reason or found.reason
        return found

    @contextlib.asynccontextmanager
    async def writing(self, key: CacheKey, counts: tuple[int, int]) -> AsyncIterator[Writing]:
        """Writes an entry as `Store.write` does; there are no descriptors where that cannot be."""
        block = self._store.write(key, self._digest, counts)
        writing = await self._on_thread(block.__enter__, None)
        if writing is None:
            writing = writings.Writing()
            writing.abandon(self._silence())
            yield writing
            return
        try:
            yield writing
        except BaseException as error:
            if not block.__exit__(type(error), error, error.__traceback__):
                raise
        else:
            with shield():
                await self._on_thread(lambda: block.__exit__(None, None, None), None)

    def amender(self, key: CacheKey, generation: bytes) -> Amender:
        """Returns what replaces an entry later, as long as it is of that generation."""
        return late_files.Amender(self._store, key, self._digest, generation)

    async def share(
        self,
        key: CacheKey,
        counts: tuple[int, int],
        found: Hit | None,
        prepare: Callable[[Sequence[int], Sequence[int]], Awaitable[PreparedModel]],
    ) -> PreparedModel:
        """Prepare a model with files that the driver may write as long as the model lives.

        `found` is what is in them. Without memory for them there are none. Raises what `prepare`
        raises.
        """

        def opened() -> SharedEntry | Rejected:
            amender = self.amender(key, self._store.generation(key))
            try:
                return late_files.SharedEntry(amender, counts, found)
            except (Rejected, OSError) as error:
                return Rejected(f"no files in memory: {error}")

        silent: SharedEntry | Rejected = Rejected(self._silence())
        entry = await self._on_thread(opened, silent)
        if isinstance(entry, Rejected):
            self.reason = self.reason or str(entry)
            return await prepare((), ())
        try:
            prepared = await prepare(entry.model_fds, entry.data_fds)
        except BaseException:
            entry.close()
            raise
        if self._shared is not None:
            self._shared().add(entry, prepared)
        await self._on_thread(entry.collect, "")
        return prepared

    async def load_prepared(
        self, device: Device, part: Part, counts: tuple[int, int], deadline: Deadline | None
    ) -> PreparedModel | None:
        """Returns the prepared model from a device's own cache; None where it cannot be had."""
        key = self.device_key(part)
        found = await self.lookup(key, counts)
        if isinstance(found, Miss):
            return None

        token = derive_token(key)

        async def loaded(model_fds: Sequence[int], data_fds: Sequence[int]) -> PreparedModel:
            config = PrepareModelConfig(
                deadline=deadline, model_cache=model_fds, data_cache=data_fds, token=token
            )
            return await device.prepare_model_from_cache(config)

        with found:
            try:
                if caches_late(device):
                    return await self.share(key, counts, found, loaded)
                return await loaded(found.model_fds, found.data_fds)
            except NNError as error:
                self.unusable.add(part)
                self.reason = self.reason or f"{device.name} cannot load what it kept: {error}"
                return None

    def device_key(self, part: Part) -> CacheKey:
        """Returns the key of what a device caches by itself, which depends on the priority."""
        return msgspec.structs.replace(self.key(part), priority=self._priority)

    async def _on_thread(self, work: Callable[[], T], otherwise: T) -> T:
        if not self._answers:
            return otherwise
        patience_s = _PATIENCE_S
        if self._deadline is not None:
            remaining_s = self._deadline.remaining_ns(now_ns()) / 1e9
            patience_s = min(patience_s, max(0.0, remaining_s))
        until = Deadline(now_ns() + int(patience_s * 1e9))
        try:
            return await self._helper_threads.run(work, "the compilation cache", until)
        except MissedDeadline:
            self._answers = False
            self.reason = self._silence()
            return otherwise

    def _silence(self) -> str:
        return f"the cache directory {self._store.path} did not answer in time"


async def prepare_cached(
    device: Device,
    spec: CompileSpec,
    lowering: Lowering | None,
    deadline: Deadline | None,
    cache: CompilationCache | None,
) -> PreparedModel:
    """Have a device load a model that it kept, or else compile and keep it.

    As NNAPI does it: where files are there the device is not given the model, unless it cannot load
    them. Without a cache, or for a device without cache files, it is only compiled. Only a device
    that has it is asked for a lowering. Raises what `prepare_model` raises.
    """
    config = PrepareModelConfig(spec.preference, spec.priority, deadline, lowering=lowering)
    if cache is None:
        return await device.prepare_model(spec.model, config)
    counts = await device.get_number_of_cache_files_needed()
    if counts == (0, 0):
        cache.reason = cache.reason or f"{device.name} has no cache files"
        return await device.prepare_model(spec.model, config)
    part = Part.of(device, lowering)
    if part not in cache.unusable:
        prepared = await cache.load_prepared(device, part, counts, deadline)
        if prepared is not None:
            return prepared
    key = cache.device_key(part)
    token = derive_token(key)

    async def compiled(model_fds: Sequence[int], data_fds: Sequence[int]) -> PreparedModel:
        files = {"model_cache": model_fds, "data_cache": data_fds, "token": token}
        return await device.prepare_model(spec.model, msgspec.structs.replace(config, **files))

    if caches_late(device):
        return await cache.share(key, counts, None, compiled)
    async with cache.writing(key, counts) as writing:
        return await compiled(writing.model_fds, writing.data_fds)


def caches_late(device: Device) -> bool:
    """Returns whether a device may write its cache files after it prepared a model."""
    return bool(getattr(device, "caches_late", False))
