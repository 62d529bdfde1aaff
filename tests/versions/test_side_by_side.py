"""Devices of HAL 1.0, 1.1, 1.2 and 1.3, none of them an engine, side by side in one runtime."""

from __future__ import annotations

import functools
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import numpy as np
import pytest

import nnasync as nn
from nnasync import hal
from nnasync._core.validation import noncompliance
from nnasync.conformance.random_graphs import RandomGraph, Size, generate, model_of
from nnasync.errors import GeneralFailure, MissedDeadline
from nnasync.hal import HalVersion, Model, OperationType, Priority
from tests.rigs import GUARD_S, attempt, until
from tests.versions.rig import (
    Fake10,
    Fake11,
    Fake12,
    Fake13,
    Recorded,
    ages,
    same,
)

pytestmark = pytest.mark.anyio
X = np.array([[1, -2, 3, 0.5]], np.float32)
Y = np.array([[0.3, 0.2, -1, 4]], np.float32)
OWN = {
    OperationType.MUL: Fake10,
    OperationType.SUB: Fake11,
    OperationType.MAXIMUM: Fake12,
    OperationType.ELU: Fake13,
}
NAMES = ["ten", "eleven", "twelve", "thirteen"]
LOOPS = ["asyncio", "uvloop", "trio"]
BACKENDS = [("asyncio", {"use_uvloop": False}), ("asyncio", {"use_uvloop": True}), ("trio", {})]
QUIET = nn.Options(cores=2, competition_budget_ms=0)


def four() -> list[Any]:
    """Each takes the one operation of `ages` that its version brought."""
    return [
        kind(name, functools.partial(_is, type))
        for name, (type, kind) in zip(NAMES, OWN.items(), strict=True)
    ]


def _is(wanted: int, type: int) -> bool:
    return type == wanted


@asynccontextmanager
async def runtime(*devices: Any, options: nn.Options = QUIET) -> AsyncIterator[nn.Runtime]:
    with anyio.fail_after(GUARD_S):
        async with nn.open_runtime(devices=devices, options=options) as opened:
            yield opened


async def on_reference(model: Model, *arrays: Any) -> Any:
    async with runtime("nnasync-reference") as opened:
        net = await opened.compile(model)
        return await net(*arrays)


@pytest.mark.parametrize("anyio_backend", BACKENDS, ids=LOOPS, indirect=True)
async def test_one_model_on_all_four_gives_what_the_reference_gives() -> None:
    model, fakes = ages(), four()
    expected = await on_reference(model, X, Y)
    async with runtime(*fakes) as opened:
        assert [int(device.feature_level) for device in opened.devices] == [27, 28, 29, 30]
        net = await opened.compile(model, priority=Priority.HIGH)
        parts = net.report().partitions
        assert [(part.device, part.operations) for part in parts] == [
            (name, (index,)) for index, name in enumerate(NAMES)
        ]
        assert same([await net(X, Y)], [expected])
        launched = await net.launch(X, Y)
        await launched.fence
        assert same([launched.outputs[0].array], [expected])
        async with net.burst() as burst:
            assert same([await burst(X, Y)], [expected])
        pinned = await opened.compile(model, options=nn.CompileOptions(pin=net.report().pin))
        assert [part.device for part in pinned.report().partitions] == NAMES
        assert same([await pinned(X, Y)], [expected])
    assert [len(fake.runs()) for fake in fakes] == [4, 4, 4, 4]
    assert [fake.closed for fake in fakes] == [1, 1, 1, 1]


async def test_each_is_called_with_what_its_version_has() -> None:
    model, fakes = ages(), four()
    async with runtime(*fakes) as opened:
        net = await opened.compile(
            model, preference=nn.Preference.LOW_POWER, priority=Priority.HIGH
        )
        await net(X, Y)
    prepared = [call for fake in fakes for call in fake.heard if call[0] == "prepare"]
    low = nn.Preference.LOW_POWER
    assert [call[2:] for call in prepared] == [
        (),
        (low,),
        (low, (), (), b""),
        (low, Priority.HIGH, None),
    ]
    assert [call[1].main.operations[0].type for call in prepared] == list(OWN)
    asked = [next(call[1] for call in fake.heard if call[0] == "supported") for fake in fakes]
    assert [len(each.main.operations) for each in asked] == [1, 2, 3, 4]
    runs = [fake.runs()[0] for fake in fakes]
    assert [call[0] for call in runs] == ["execute"] * 4
    assert [call[2:] for call in runs] == [(), (), (False,), (False,)]


async def test_a_device_that_fails_ends_the_run_with_its_error() -> None:
    fakes = four()
    async with runtime(*fakes) as opened:
        net = await opened.compile(ages())
        fakes[1].fault = ZeroDivisionError("oops")
        with pytest.raises(GeneralFailure, match="oops"):
            await net(X, Y)
        fakes[1].fault = None
        assert (await net(X, Y)).shape == X.shape


@pytest.mark.parametrize("anyio_backend", BACKENDS, ids=LOOPS, indirect=True)
async def test_a_deadline_and_a_cancel_free_the_device_in_the_middle() -> None:
    fakes, model = four(), ages()
    expected = await on_reference(model, X, Y)
    async with runtime(*fakes) as opened, anyio.create_task_group() as group:
        net = await opened.compile(model)
        fakes[2].gate = anyio.Event()
        with pytest.raises(MissedDeadline):
            await net(X, Y, deadline=nn.within(ms=50))
        await until(lambda: fakes[2].ended == len(fakes[2].runs()))
        ran = len(fakes[2].runs())
        going = await attempt(group, lambda: net(X, Y))
        await until(lambda: len(fakes[2].runs()) == ran + 1)
        going.scope.cancel()
        await until(lambda: fakes[2].ended == ran + 1)
        fakes[2].gate = None
        assert same([await net(X, Y)], [expected])


async def test_measuring_takes_the_older_ones_into_account() -> None:
    """NNAPI's synthetic drivers: HAL 1.2, 1.1 and 1.0, each takes all it can and is the faster."""
    full = [Fake12("a", speed=0.9), Fake11("b", speed=0.8), Fake10("c", speed=0.7)]
    model = ages()
    expected = await on_reference(model, X, Y)
    options = nn.Options(cores=2, competition_budget_ms=20)
    async with runtime(*full, "nnasync-reference", options=options) as opened:
        net = await opened.compile(model)
        told = {line.device for line in net.report().candidates}
        assert {"a", "b", "c", "nnasync-reference"} < told
        assert any("+" in name for name in told)
        assert same([await net(X, Y)], [expected])


async def test_a_step_that_fails_goes_to_the_reference_where_it_is_named() -> None:
    fakes, model = four()[:3], ages()
    expected = await on_reference(model, X, Y)
    async with runtime(*fakes, "nnasync-reference") as opened:
        net = await opened.compile(model)
        for fake in fakes:
            fake.fault = ZeroDivisionError("oops")
        assert same([await net(X, Y)], [expected])


SEEDS = range(12)


@pytest.fixture
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    """All loops, but one for what does not depend on it."""
    return getattr(request, "param", ("asyncio", {"use_uvloop": False}))


async def test_random_graphs_over_devices_of_random_abilities() -> None:
    """Bit by bit what the reference gives alone; every version gets its share."""
    heard = dict.fromkeys(HalVersion, 0)
    for seed in SEEDS:
        graph = generate(Size.SMALL, seed, "float32")
        model = model_of(graph)
        fakes = _random_fleet(model, seed)
        async with runtime(*fakes) as opened:
            net = await opened.compile(model)
            assert len(net.report().partitions) > 0
            given = await net(*_inputs(graph))
        expected = await on_reference(model, *_inputs(graph))
        assert same(_several(given), _several(expected)), seed
        for fake in fakes:
            heard[fake.feature_level] += len(fake.runs())
    assert min(heard.values()) > 0


def _random_fleet(model: Model, seed: int) -> list[Recorded]:
    """Each type of operation goes to one device that can express all of its kind here."""
    numbers = random.Random(seed)
    owner: dict[int, HalVersion] = {}
    for type in sorted({each.type for each in model.main.operations}):
        able = [version for version in HalVersion if not _lost(model, type, version)]
        owner[type] = numbers.choice(able)
    kinds = dict(zip(HalVersion, (Fake10, Fake11, Fake12, Fake13), strict=True))
    return [
        kind(name, functools.partial(_owns, owner, version))
        for name, (version, kind) in zip(NAMES, kinds.items(), strict=True)
    ]


def _owns(owner: dict[int, HalVersion], version: HalVersion, type: int) -> bool:
    return owner.get(type) == version


def _lost(model: Model, type: int, version: HalVersion) -> bool:
    """Whether the version cannot run an operation of this type; early ones need all shapes."""
    dropped = noncompliance(version, model).operations
    return any(
        index in dropped or (version < HalVersion.V1_2 and not _is_settled(model, each))
        for index, each in enumerate(model.main.operations)
        if each.type == type
    )


def _is_settled(model: Model, operation: hal.Operation) -> bool:
    used = [model.main.operands[index] for index in (*operation.inputs, *operation.outputs)]
    return all(hal.is_fully_specified(each.type, each.dimensions) for each in used)


def _inputs(graph: RandomGraph) -> Sequence[Any]:
    return graph.input_values


def _several(result: Any) -> Sequence[Any]:
    return result if isinstance(result, tuple) else (result,)
