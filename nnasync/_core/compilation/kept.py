"""Compilations that are kept in the cache: the plans of all steps, and a manifest that names them.

The compiled code lies in an entry for each device and step; the manifest, an entry of its own, says
which of them belong together, and how the compilation came out. So one that is found needs no
device to be asked about the model.

Where the plan that is best takes long to load, and another one is there much sooner, both are kept:
the quick one answers until the best one has been loaded beside it. What that takes is measured when
the entries are written, by loading them once, which also tells whether they can be.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from nnasync._core.cache import Miss, fill
from nnasync._core.clock import Deadline, now_ns
from nnasync._core.compilation.caching import CompilationCache
from nnasync._core.compilation.choice import Choice, Part
from nnasync._core.compilation.contenders import (
    Chosen,
    Contender,
    EngineContender,
    OutsideContender,
    PlanContender,
    Share,
)
from nnasync._core.compilation.report import Candidate, Partition, Rejection, Report
from nnasync._core.compilation.spec import CompileSpec
from nnasync._core.compilation.verdicts import QUIET, Circumstances, is_quiet
from nnasync._core.deferred import deferred
from nnasync._core.engine_device import EngineDevice
from nnasync._core.engine_device.caching import Compiled, library_version, skeleton_of
from nnasync._core.model.description import ModelDescription, describe
from nnasync._core.workers.anyio_threads import in_helper_thread
from nnasync.device import Device
from nnasync.engine import CacheFiles, Lowering, Plan
from nnasync.errors import InvalidArgument, NNError
from nnasync.hal import Struct
from nnasync.hal.decoders import msgpack_decoder

if TYPE_CHECKING:
    from nnasync._core.cache import store as stores
    from nnasync._core.compilation import partitioning
else:
    stores = deferred("nnasync._core.cache.store")
    partitioning = deferred("nnasync._core.compilation.partitioning")

_MANIFEST = "nnasync manifest"
"""Stands for the name of a device in the keys of manifests."""
_MANIFEST_FILES = (1, 0)
"""Numbers of model cache and data cache files of a manifest."""
_FORMAT = 4
_MAX_STAGES = 2
_MAX_LINES = 4096
_SOON_NS = 20_000_000
"""A plan that is loaded within this time needs no quick one before it."""
_TOLERABLE = 5
"""How many times slower than the best a quick plan may be."""


class KeptStage(Struct, frozen=True):
    """Describes a plan: who runs what, and its form with fewer threads, if there is one.

    ready_ns: how long it took to load, with the import of the engine. median_ns: how long a run
    takes, if that was measured.
    """

    choice: Choice
    partitions: tuple[Partition, ...]
    narrow: Part | None = None
    ready_ns: int = 0
    median_ns: float | None = None


class Manifest(Struct, frozen=True):
    """Describes a compilation in the cache: its report, and its stages, of which the last stays.

    `outline` stands for the model where that was not loaded: its inputs, outputs and states.
    `circumstances` are those of the contest that made the choice.
    """

    stages: tuple[KeptStage, ...]
    outline: ModelDescription
    pin: str
    reason: str
    candidates: tuple[Candidate, ...] = ()
    rejections: tuple[Rejection, ...] = ()
    circumstances: Circumstances = QUIET
    format: int = _FORMAT


def get_ready_to_find() -> None:
    """Import and make what every search needs, where nothing better is to be done."""
    stores.Store.get_ready()
    library_version()
    msgpack_decoder(Manifest)


class _Unkept(Exception):
    """Says why a compilation is not kept."""


class KeptCompilation:
    """Finds and keeps one compilation in the cache.

    Only plans that several devices share need the model itself.

    `stages` are there once it was found: first the one that was loaded, then those that are better.
    """

    def __init__(self, cache: CompilationCache, spec: CompileSpec) -> None:
        self._cache = cache
        self._asked = self._spec = spec
        self._devices = {device.name: device for device in spec.devices}
        self._key = cache.key(Part(_MANIFEST, cache.versions))
        self.stages: tuple[KeptStage, ...] = ()
        self._manifest: Manifest

    # -- found

    async def find(self) -> Contender | None:
        """Returns the contender that is ready soonest; None where none can be loaded."""
        cache, spec = self._cache, self._spec
        found = await cache.read(self._key, _MANIFEST_FILES)
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
        self._manifest = manifest
        self._spec = spec.outlined(manifest.outline.model())
        for number, stage in enumerate(manifest.stages):
            contender = await self.load(stage, spec.deadline)
            if contender is not None:
                self.stages = manifest.stages[number:]
                return contender
        return None

    async def _is_forgotten(self, held_at_s: int) -> bool:
        """Returns whether the verdict of a contest that was held then has been forgotten since."""
        verdicts, model = self._spec.verdicts, self._spec.digest
        if verdicts is None or not held_at_s:
            return False
        return await self._spec.on_thread(
            lambda: verdicts.forgot(model, held_at_s), "nnasync-verdicts"
        )

    def chosen(self, contender: Contender, stage: KeptStage, reason: str = "hit") -> Chosen:
        """Returns a loaded stage as what was chosen, with the report of the contest."""
        kept = self._manifest
        report = Report(
            partitions=stage.partitions,
            candidates=kept.candidates,
            rejections=kept.rejections,
            cache_hit=True,
            cache_reason=reason,
            pin=kept.pin,
        )
        return Chosen(contender, kept.reason, stage.median_ns, report=report)

    async def load(self, stage: KeptStage, deadline: Deadline | None = None) -> Contender | None:
        """Returns the contender of a stage, ready to finish; None where it cannot be loaded."""
        parts = stage.choice.parts
        devices = [self._devices.get(part.device) for part in parts]
        engines = [device for device in devices if isinstance(device, EngineDevice)]
        if len(parts) > 1 or stage.choice.runs:
            if len(engines) < len(parts):
                self._cache.reason = "a device that has a part is not there any more"
                return None
            return await self._load_shared(stage, engines, deadline)
        device, part = devices[0], parts[0]
        if device is None:
            self._cache.reason = f"{part.device} is not there any more"
            return None
        if isinstance(device, EngineDevice):
            found = await self._load_plan(device, part, deadline)
            return found and EngineContender(device, self._spec, found[1], found[0])
        counts = await device.get_number_of_cache_files_needed()
        prepared = await self._cache.load_prepared(device, part, counts, deadline)
        if prepared is None:
            return None
        return OutsideContender(device, self._spec, part.way, prepared)

    async def narrow(self, stage: KeptStage, device: EngineDevice) -> Plan | None:
        """Returns a stage's plan for runs beside others; None where it has none, or lost it."""
        if stage.narrow is None:
            return None
        found = await self._load_plan(device, stage.narrow, None)
        return None if found is None else found[0]

    async def _load_shared(
        self, stage: KeptStage, engines: Sequence[EngineDevice], deadline: Deadline | None
    ) -> Contender | None:
        spec = await self._asked.loaded()  # An outline has no operations to be shared out.
        try:
            contender = await in_helper_thread(
                partitioning.spelled_out, stage.choice, engines, spec
            )
            plans: dict[int, Plan] = {}
            for share in contender.shares():
                part = stage.choice.parts[engines.index(share.device)]
                found = await self._load_plan(
                    share.device, part, deadline, share.number, share.operations
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

    async def _load_plan(
        self,
        device: EngineDevice,
        part: Part,
        deadline: Deadline | None,
        number: int = 0,
        operations: Sequence[int] = (),
    ) -> tuple[Plan, Lowering | None] | None:
        """Returns the plan of a step, or of the whole; None where it is not there.

        The cache is told the reason then.
        """
        cache = self._cache
        key = cache.key(part, number, operations)
        # How many files there must be is asked of the engine afterwards, which may be imported.
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

    # -- kept

    async def keep(self, best: Chosen, rivals: Sequence[Chosen], report: Report) -> str:
        """Keep what was chosen, with its plan and perhaps a quick one; why not, or "".

        `rivals` agree with the reference too, the fastest first.
        """
        try:
            stages = [await self._keep_stage(best)]
            if stages[0].ready_ns > _SOON_NS:
                stages = [*await self._quick_stage(best, rivals, stages[0].ready_ns), *stages]
        except _Unkept as reason:
            return str(reason)
        manifest = Manifest(
            stages=tuple(stages),
            outline=describe(skeleton_of(self._spec.model)),
            pin=report.pin,
            reason=best.reason,
            candidates=report.candidates,
            rejections=report.rejections,
            circumstances=best.circumstances,
        )
        async with self._cache.writing(self._key, _MANIFEST_FILES) as writing:
            if not writing.reason:
                fill(writing.model_fds[0], msgspec.msgpack.encode(manifest))
        return "" if writing.stored else writing.reason

    async def _quick_stage(
        self, best: Chosen, rivals: Sequence[Chosen], ready_ns: int
    ) -> list[KeptStage]:
        """Returns the stage of a rival that loads much sooner than the best one, if any does."""
        others: dict[str, Chosen] = {}
        for rival in rivals:
            is_near = (rival.median_ns or 0) <= _TOLERABLE * (best.median_ns or 0)
            if rival.contender.name != best.contender.name and is_near:
                others.setdefault(rival.contender.name, rival)
        for rival in others.values():
            try:
                await rival.contender.prepare(None)
                stage = await self._keep_stage(rival)
            except (_Unkept, NNError):
                continue
            if stage.ready_ns < ready_ns / 2:
                return [stage]
        return []

    async def _keep_stage(self, chosen: Chosen) -> KeptStage:
        """Keep the plans of a stage, and load them once; raises _Unkept."""
        contender = chosen.contender
        partitions = contender.partitions(chosen.reason)
        stage = KeptStage(contender.choice, partitions, median_ns=chosen.median_ns)
        if isinstance(contender, OutsideContender):
            # The device wrote its files itself while it prepared the model.
            await _counts(contender.device)
            return stage
        shares = contender.shares() if isinstance(contender, PlanContender) else []
        if not shares:
            raise _Unkept(f"a plan in segments is not kept: {contender.name}")
        devices = {share.device for share in shares}
        loading_ns = [await self._keep_plan(share) for share in shares]
        narrow = None
        if isinstance(contender, EngineContender) and len(shares) > 1:
            # It is loaded when the first answers are out.
            narrow, loading_ns = shares[1].part, loading_ns[:1]
        ready_ns = sum(each.loading_ns for each in devices) + sum(loading_ns)
        return msgspec.structs.replace(stage, narrow=narrow, ready_ns=ready_ns)

    async def _keep_plan(self, share: Share) -> int:
        """Keeps a plan, and loads it once; returns how long the loading took, in nanoseconds."""
        device, plan, spec, cache = share.device, share.plan, self._spec, self._cache
        if plan is None:
            raise _Unkept(f"step {share.number} has no plan")
        made = Compiled(share.model, share.lowering, spec.preference, spec.priority)
        key = cache.key(share.part, share.number, share.operations)
        async with cache.writing(key, await _counts(device)) as writing:
            if not writing.reason:
                reason = await device.preserve(plan, made, writing.model_fds, writing.data_fds)
                if reason:
                    writing.abandon(reason)
        if not writing.stored:
            raise _Unkept(writing.reason)
        if device.caches_late:
            try:
                device.keep_late(plan, made, cache.amender(key, writing.generation).replace)
            except NNError as error:
                raise _Unkept(str(error)) from error
        began_ns = now_ns()
        if not await self._load_plan(device, share.part, None, share.number, share.operations):
            raise _Unkept(cache.reason)
        return now_ns() - began_ns


async def _counts(device: Device) -> tuple[int, int]:
    """Returns how many cache files of each kind a device has; raises _Unkept where it has none."""
    if isinstance(device, EngineDevice):
        counts = device.cache_files
    else:
        counts = await device.get_number_of_cache_files_needed()
    if counts == (0, 0):
        raise _Unkept(f"{device.name} has no cache files")
    return counts


def decode_manifest(data: bytes | memoryview) -> Manifest | None:
    """Returns the manifest in a cache file; None for anything that makes no sense."""
    try:
        manifest = msgpack_decoder(Manifest).decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    is_sound = (
        manifest.format == _FORMAT
        and 1 <= len(manifest.stages) <= _MAX_STAGES
        and all(stage.choice.parts for stage in manifest.stages)
        and max(len(manifest.candidates), len(manifest.rejections)) <= _MAX_LINES
    )
    return manifest if is_sound else None
