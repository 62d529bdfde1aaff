"""Compilations found in the cache: the manifest, and the plans that it names, loaded and ready."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from nnasync._core.cache import CacheKey, Miss, Store, operations_digest
from nnasync._core.clock import Deadline
from nnasync._core.compilation.caching import CompilationCache, device_key, load_prepared
from nnasync._core.compilation.choice import WHOLE, Part
from nnasync._core.compilation.contenders import Contender, EngineContender, OutsideContender
from nnasync._core.compilation.manifest import MANIFEST, Manifest, ManifestStage, decode_manifest
from nnasync._core.compilation.spec import CompileSpec
from nnasync._core.compilation.verdicts import is_quiet
from nnasync._core.deferred import deferred
from nnasync._core.engine_device import EngineDevice
from nnasync._core.engine_device.caching import library_version
from nnasync._core.wakeup import in_thread
from nnasync._core.workers.anyio_threads import in_helper_thread
from nnasync.engine import CacheFiles, Lowering, Plan
from nnasync.errors import InvalidArgument, NNError
from nnasync.hal.decoders import msgpack_decoder

if TYPE_CHECKING:
    from nnasync._core.compilation import partitioning
else:
    partitioning = deferred("nnasync._core.compilation.partitioning")

MANIFEST_FILES = (1, 0)
"""Numbers of model cache and data cache files of a manifest."""


class Found(msgspec.Struct, frozen=True):
    """A compilation that was found: its manifest, and the contender that is ready at once.

    `stage` is the number of that contender's stage; there may be a better one after it.
    """

    manifest: Manifest
    spec: CompileSpec
    stage: int
    contender: Contender


def get_ready_to_recall() -> None:
    """Import and make what every search needs, where nothing better is to be done."""
    Store.get_ready()
    library_version()
    msgpack_decoder(Manifest)


class Recall:
    """The search for one compilation; only plans that devices share need the model itself."""

    def __init__(self, cache: CompilationCache, spec: CompileSpec) -> None:
        self._cache = cache
        self._spec = spec
        self._devices = {device.name: device for device in spec.devices}

    async def find(self) -> Found | None:
        """A compilation; None where it is not there, or cannot be loaded any more."""
        cache = self._cache
        found = await cache.read(manifest_key(cache), MANIFEST_FILES)
        if isinstance(found, Miss):
            return None
        manifest = decode_manifest(found.model[0])
        if manifest is None:
            cache.reason = "the manifest of the entry is of another form"
            return None
        if manifest.circumstances.is_provisional and is_quiet():
            cache.reason = "other work disturbed the measuring; it is repeated in quiet"
            return None
        if await self._is_forgotten(manifest.circumstances.held_at_s):
            cache.reason = "the verdict that it came from was forgotten"
            return None
        spec = self._spec.outlined(manifest.outline.model())
        for number, stage in enumerate(manifest.stages):
            contender = await self.load(stage, spec, spec.deadline)
            if contender is not None:
                return Found(manifest, spec, number, contender)
        return None

    async def _is_forgotten(self, held_at_s: int) -> bool:
        """Whether who forgot verdicts since the contest meant this one, too."""
        verdicts, model = self._spec.verdicts, self._spec.digest
        if verdicts is None or not held_at_s:
            return False
        return await in_thread(lambda: verdicts.forgot(model, held_at_s), "nnasync-verdicts")

    async def load(
        self, stage: ManifestStage, spec: CompileSpec, deadline: Deadline | None
    ) -> Contender | None:
        """The contender of a stage, ready to finish; None where it cannot be loaded."""
        parts = stage.choice.parts
        devices = [self._devices.get(part.device) for part in parts]
        engines = [device for device in devices if isinstance(device, EngineDevice)]
        if len(parts) > 1 or stage.choice.runs:
            if len(engines) < len(parts):
                self._cache.reason = "a device that has a part is not there any more"
                return None
            return await self._load_shared(stage, engines, deadline)
        if engines:
            return await self._load_whole(stage, engines[0], spec, deadline)
        device = devices[0]
        if device is None:
            self._cache.reason = f"{parts[0].device} is not there any more"
            return None
        counts = await device.get_number_of_cache_files_needed()
        part = parts[0]
        named = None if part.lowering == WHOLE else Lowering(part.lowering, part.threads)
        key = device_key(self._cache, device, named)
        prepared = await load_prepared(device, key, counts, deadline, self._cache)
        return None if prepared is None else OutsideContender(device, spec, named, prepared)

    async def _load_whole(
        self,
        stage: ManifestStage,
        device: EngineDevice,
        spec: CompileSpec,
        deadline: Deadline | None,
    ) -> EngineContender | None:
        found = await load_plan(self._cache, device, stage.choice.parts[0], deadline)
        return None if found is None else EngineContender(device, spec, found[1], found[0])

    async def narrow(self, stage: ManifestStage, device: EngineDevice) -> Plan | None:
        """The plan of a stage for runs beside others; None where it has none, or not any more."""
        if stage.narrow is None:
            return None
        found = await load_plan(self._cache, device, stage.narrow, None)
        return None if found is None else found[0]

    async def _load_shared(
        self, stage: ManifestStage, engines: Sequence[EngineDevice], deadline: Deadline | None
    ) -> Contender | None:
        spec = await self._spec.loaded()
        try:
            contender = await in_helper_thread(
                partitioning.spelled_out, stage.choice, engines, spec
            )
            plans: dict[int, Plan] = {}
            for share in contender.shares():
                part = stage.choice.parts[engines.index(share.device)]
                found = await load_plan(
                    self._cache, share.device, part, deadline, share.number, share.operations
                )
                if found is None:
                    return None
                plans[share.number] = found[0]
            contender.take(plans)
            await contender.prepare(deadline)
        except (InvalidArgument, IndexError) as error:
            self._cache.reason = f"the manifest is not for this model: {error}"
            return None
        return contender


async def load_plan(
    cache: CompilationCache,
    device: EngineDevice,
    part: Part,
    deadline: Deadline | None,
    number: int = 0,
    operations: Sequence[int] = (),
) -> tuple[Plan, Lowering | None] | None:
    """The plan of a step, or of the whole; None, and the reason noted, where it is not there."""
    key = entry_key(cache, device, part, number, operations)
    # How many files there must be is asked of the engine afterwards, which may have to be imported.
    found = await cache.read(key, found=device.get_ready)
    if isinstance(found, Miss):
        return None
    try:
        made = await device.restore(deadline, CacheFiles(found.model, found.data))
        if device.caches_late:
            replace = cache.amender(key, found.generation).replace
            device.keep_late(made.plan, made.compiled, replace)
    except NNError as error:
        cache.reason = f"{device.name} cannot load what it kept: {error}"
        return None
    return made.plan, made.compiled.lowering


def manifest_key(cache: CompilationCache) -> CacheKey:
    """The key of a manifest."""
    return cache.key(MANIFEST, cache.versions)


def entry_key(
    cache: CompilationCache,
    device: EngineDevice,
    part: Part,
    number: int = 0,
    operations: Sequence[int] = (),
) -> CacheKey:
    """The key of the plan of a step; the whole model has number 0, and names no operations."""
    return cache.key(
        device.name,
        device.version,
        step=number,
        operations=operations_digest((0, index) for index in operations) if operations else b"",
        variant=f"{part.lowering}, {part.threads} threads",
    )
