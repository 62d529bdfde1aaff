"""Compilations kept in the cache: the plans of all steps, and a manifest that names them.

Where the plan that is best takes long to load, and another one is there much sooner, both are kept:
the quick one answers until the best one has been loaded beside it. What that takes is measured when
the entries are written, by loading them once, which also tells whether they can be.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from nnasync._core.cache import fill
from nnasync._core.clock import now_ns
from nnasync._core.compilation.caching import CompilationCache
from nnasync._core.compilation.choice import WHOLE, Part
from nnasync._core.compilation.contenders import (
    Choosing,
    Contender,
    EngineContender,
    OutsideContender,
)
from nnasync._core.compilation.manifest import Manifest, ManifestStage, encode_manifest
from nnasync._core.compilation.partitioning import PartitionContender, Share
from nnasync._core.compilation.recalling import MANIFEST_FILES, entry_key, load_plan, manifest_key
from nnasync._core.engine_device import EngineDevice
from nnasync._core.engine_device.caching import Compiled
from nnasync.device import Device
from nnasync.engine import Lowering
from nnasync.errors import NNError

_SOON_NS = 30_000_000
"""A plan that is loaded within this time needs no quick one before it."""
_TOLERABLE = 5
"""How many times slower than the best a quick plan may be."""


class _Unkept(Exception):
    """Why a compilation is not kept."""


async def keep_stages(
    cache: CompilationCache, best: Choosing, rivals: Sequence[Choosing], manifest: Manifest
) -> str:
    """Keep a compilation: its plan, perhaps a quick one, and the manifest; why not, or "".

    `rivals` agree with the reference too, the fastest first; `manifest` is without stages.
    """
    try:
        stages = [await _keep_stage(cache, best)]
    except _Unkept as reason:
        return str(reason)
    if stages[0].ready_ns > _SOON_NS:
        stages = [*await _quick_stage(cache, best, rivals, stages[0].ready_ns), *stages]
    return await _keep_manifest(cache, msgspec.structs.replace(manifest, stages=tuple(stages)))


async def _quick_stage(
    cache: CompilationCache, best: Choosing, rivals: Sequence[Choosing], ready_ns: int
) -> list[ManifestStage]:
    """The plan of a rival that is there much sooner than the best one, if there is one."""
    others: dict[str, Choosing] = {}
    for rival in rivals:
        is_near = (rival.median_ns or 0) <= _TOLERABLE * (best.median_ns or 0)
        if rival.contender.name != best.contender.name and is_near:
            others.setdefault(rival.contender.name, rival)
    for rival in others.values():
        try:
            await rival.contender.prepare(None)
            stage = await _keep_stage(cache, rival)
        except (_Unkept, NNError):
            continue
        if stage.ready_ns < ready_ns / 2:
            return [stage]
    return []


async def _keep_stage(cache: CompilationCache, choosing: Choosing) -> ManifestStage:
    """Keep the plans of a stage, and load them once; raises _Unkept."""
    contender = choosing.contender
    partitions = contender.partitions(choosing.reason)
    stage = ManifestStage(contender.choice, partitions, median_ns=choosing.median_ns)
    if isinstance(contender, OutsideContender):
        # The device wrote its files itself while it prepared the model.
        await _counts(contender.device)
        return stage
    shares = _shares(contender)
    ready_ns = sum(_loading_ns(device) for device in {share.device for share in shares})
    loading_ns = [await _keep_plan(cache, choosing, share) for share in shares]
    narrow = None
    if isinstance(contender, EngineContender) and len(shares) > 1:
        # It is loaded when the first answers are out.
        narrow, loading_ns = _part(shares[1]), loading_ns[:1]
    ready_ns += sum(loading_ns)
    return msgspec.structs.replace(stage, narrow=narrow, ready_ns=ready_ns)


def _shares(contender: Contender) -> list[Share]:
    """The plans of a contender."""
    if isinstance(contender, PartitionContender):
        return contender.shares()
    if not isinstance(contender, EngineContender):
        raise _Unkept(f"{contender.name} does not show its plans")
    plans = contender.plans()
    if not plans:
        raise _Unkept(f"a plan in segments is not kept: {contender.name}")
    device, model = contender.engine_device, contender.spec.model
    return [Share(0, device, lowering, model, (), plan) for lowering, plan in plans]


async def _keep_plan(cache: CompilationCache, choosing: Choosing, share: Share) -> int:
    """Keep a plan and load it once; how long that takes, in ns."""
    device, plan, spec = share.device, share.plan, choosing.contender.spec
    if plan is None:
        raise _Unkept(f"step {share.number} has no plan")
    key = entry_key(cache, device, _part(share), share.number, share.operations)
    async with cache.writing(key, await _counts(device)) as writing:
        if not writing.reason:
            reason = await device.preserve(
                plan,
                share.model,
                share.lowering,
                spec.preference,
                spec.priority,
                writing.model_fds,
                writing.data_fds,
            )
            if reason:
                writing.abandon(reason)
    if not writing.stored:
        raise _Unkept(writing.reason)
    if device.caches_late:
        made = Compiled(share.model, share.lowering, spec.preference, spec.priority)
        try:
            device.keep_late(plan, made, cache.amender(key, writing.generation).replace)
        except NNError as error:
            raise _Unkept(str(error)) from error
    began_ns = now_ns()
    if not await load_plan(cache, device, _part(share), None, share.number, share.operations):
        raise _Unkept(cache.reason)
    return now_ns() - began_ns


async def _keep_manifest(cache: CompilationCache, manifest: Manifest) -> str:
    async with cache.writing(manifest_key(cache), MANIFEST_FILES) as writing:
        if not writing.reason:
            fill(writing.model_fds[0], encode_manifest(manifest))
    return "" if writing.stored else writing.reason


async def _counts(device: Device) -> tuple[int, int]:
    """Numbers of cache files of a device; raises _Unkept where it has none."""
    if isinstance(device, EngineDevice):
        counts = device.cache_files
    else:
        counts = await device.get_number_of_cache_files_needed()
    if counts == (0, 0):
        raise _Unkept(f"{device.name} has no cache files")
    return counts


def _loading_ns(device: EngineDevice) -> int:
    """How long the package of an engine took to be imported in this process."""
    return device.engine.loading_ns()


def _part(share: Share) -> Part:
    way = share.lowering or Lowering(WHOLE)
    return Part(share.device.name, share.device.version, way.name, way.threads)
