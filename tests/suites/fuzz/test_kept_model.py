"""Inputs that leave the model as it is share a prepared one, and nobody else does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from nnasync._core.runtime import open_runtime
from nnasync.errors import DeviceDied
from nnasync.hal import Model
from nnasync.suites.fuzz.attempts import attempt
from nnasync.suites.fuzz.inputs import (
    PARTS,
    ROUND,
    FuzzInput,
    FuzzKind,
    fuzz_seed_of,
    made,
    numbered,
    numbered_part,
    recipe_of,
)
from nnasync.suites.fuzz.kept_model import KeptModel
from nnasync.suites.fuzz.samples import FuzzSample
from nnasync.suites.fuzz.seeds import FuzzSeeds
from nnasync.suites.fuzz.small_models import EXAMPLE
from nnasync.suites.fuzz.verdicts import Ending

pytestmark = pytest.mark.anyio
SEEDS = FuzzSeeds()


class Counted:
    """A device that counts what it prepares, and may say that it died."""

    def __init__(self, device: Any) -> None:
        self._device = device
        self.prepared = 0
        self.is_dead = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    async def prepare_model(self, *arguments: Any) -> Any:
        self.prepared += 1
        if self.is_dead:
            raise DeviceDied("it died")
        return await self._device.prepare_model(*arguments)


class Closable:
    def __init__(self) -> None:
        self.closed = 0

    async def close(self) -> None:
        self.closed += 1


@pytest.mark.parametrize("kind", [FuzzKind.REQUESTS, FuzzKind.MEMORY])
async def test_a_round_prepares_once(kind: FuzzKind, tmp_path: Path) -> None:
    kept = KeptModel()
    async with open_runtime(devices=["nnasync-reference"]) as rt:
        device: Any = Counted(rt.devices[0])
        for number in (*range(4), *range(ROUND, ROUND + 4)):
            await attempt(device, numbered(1, number, kind, SEEDS), tmp_path, kept)
        await kept.close()
    assert fuzz_seed_of(1, 0, kind, SEEDS) != fuzz_seed_of(1, ROUND, kind, SEEDS)
    assert device.prepared == 2


async def test_changed_models_are_prepared_each(tmp_path: Path) -> None:
    kept = KeptModel()
    async with open_runtime(devices=["nnasync-reference"]) as rt:
        device: Any = Counted(rt.devices[0])
        endings = [
            await attempt(device, numbered(1, number, FuzzKind.MODELS, SEEDS), tmp_path, kept)
            for number in range(8)
        ]
        await kept.close()
    assert device.prepared >= endings.count(Ending.RAN) > 1


@pytest.mark.parametrize("kind", [FuzzKind.MODELS, FuzzKind.NNM])
async def test_parts_of_a_number_share_a_prepared_model(kind: FuzzKind, tmp_path: Path) -> None:
    kept = KeptModel()
    async with open_runtime(devices=["nnasync-reference"]) as rt:
        device: Any = Counted(rt.devices[0])
        given, number = await first_prepared(device, kind, tmp_path, kept)
        before = device.prepared
        for part in range(1, PARTS):
            given = numbered_part(given, 1, number, part)
            is_followed = part + 1 < PARTS
            follows = msgspec.structs.replace(given, is_followed=is_followed)
            await attempt(device, follows, tmp_path, kept)
            assert kept.is_of(given.subject) is is_followed
    assert device.prepared == before


async def first_prepared(
    device: Any, kind: FuzzKind, folder: Path, kept: KeptModel
) -> tuple[FuzzInput, int]:
    """The first input of a seed whose model is prepared, and its number."""
    for number in range(200):
        given = msgspec.structs.replace(numbered(1, number, kind, SEEDS), is_followed=True)
        await attempt(device, given, folder, kept)
        if kept.is_of(given.subject):
            return given, number
    raise AssertionError("none of 200 models is prepared")


@pytest.mark.one_loop("nothing waits")
async def test_a_part_is_the_same_from_its_recipe() -> None:
    """And parts are requests of their own, every second one or so a changed one."""
    number = next(n for n in range(50) if numbered(1, n, FuzzKind.MODELS, SEEDS).request)
    given, inputs = numbered(1, number, FuzzKind.MODELS, SEEDS), []
    for part in range(1, PARTS):
        given = numbered_part(given, 1, number, part)
        inputs.append(given)
        recipe = recipe_of(1, number, FuzzKind.MODELS, SEEDS, part)
        assert made(recipe, SEEDS).digest == given.digest
    assert len({each.digest for each in inputs}) == len(inputs)
    assert {each.is_fitting for each in inputs} == {True, False}


async def test_what_died_is_prepared_again(tmp_path: Path) -> None:
    kept = KeptModel()
    async with open_runtime(devices=["nnasync-reference"]) as rt:
        device: Any = Counted(rt.devices[0])
        device.is_dead = True
        given = numbered(1, 0, FuzzKind.REQUESTS, SEEDS)
        assert await attempt(device, given, tmp_path, kept) is Ending.DIED
        device.is_dead = False
        assert await attempt(device, given, tmp_path, kept) is not Ending.DIED
        await kept.close()
    assert device.prepared == 2


async def test_one_of_another_model_is_closed() -> None:
    kept, prepared = KeptModel(), Closable()
    sample = FuzzSample(EXAMPLE, {})
    kept.keep(EXAMPLE, sample, prepared)  # type: ignore[arg-type]  # only its close is called
    other: Model = msgspec.structs.replace(EXAMPLE)
    assert await kept.take(other) is None
    assert prepared.closed == 1
    assert await kept.take(EXAMPLE) is None
