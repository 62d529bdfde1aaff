"""A device that keeps its compilations: what is loaded, what is refused, and who is asked."""

from __future__ import annotations

import functools
import os
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

import nnasync as nn
from nnasync._core.clock import within
from nnasync._core.drivers.cpu import ReferenceEngine
from nnasync._core.drivers.null import NullEngine
from nnasync._core.engine_device import EngineDevice, caching
from nnasync._core.engine_device.caching import Compiled, skeleton_of
from nnasync.burst import BurstController, LocalChannel, Outcome
from nnasync.device import PrepareModelConfig
from nnasync.engine import CacheFiles, Lowering, Plan
from nnasync.errors import BadState, GeneralFailure, InvalidArgument, MissedDeadline, NNError
from nnasync.fences import Fence
from nnasync.hal import (
    ExecutionConfig,
    ExecutionPreference,
    ExecutionResult,
    Model,
    OperationType,
    Priority,
)
from nnasync.scheduler import NEVER_NS
from tests.compilation.just_in_time import FIRST, LATER, LateEngine
from tests.engine_device.caches import TOKEN, Files, append, chain, dense, flip
from tests.engine_device.rig import PATIENCE_S, Rig, Row, doubled, finished
from tests.rigs import counter, doubler

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.one_loop("Files are read and written on threads, whatever the loop."),
]

Rigs = Callable[..., Rig]
SEEDS = 10


@pytest.fixture
def kept(rigs: Rigs, state_folder: Path) -> Callable[..., Rig]:
    """Rigs whose devices have a directory for digests."""
    return functools.partial(rigs, state_directory=state_folder)


def caching_null(model: int = 1, data: int = 1) -> NullEngine:
    """Doubles, and keeps its plans in so many files."""
    return NullEngine(compute=doubled, cache_files=(model, data))


async def counts_of(device: EngineDevice) -> tuple[int, int]:
    return await device.get_number_of_cache_files_needed()


# -- numbers of files


async def test_numbers_of_files(rigs: Rigs, kept: Rigs) -> None:
    engine = caching_null(3, 2)
    assert await counts_of(kept(engine).device) == (4, 2)
    without = rigs(engine).device
    assert await counts_of(without) == (0, 0)
    assert without.cache_files == (4, 2)
    assert await counts_of(kept(NullEngine()).device) == (0, 0)
    assert await counts_of(kept(caching_null(0, 1)).device) == (1, 1)
    assert await counts_of(kept(caching_null(31, 32)).device) == (32, 32)
    for numbers in ((32, 0), (1, 33), (-1, 0)):
        with pytest.raises(InvalidArgument, match="cache files"):
            kept(caching_null(*numbers))


async def test_device_without_caching(rigs: Rigs, kept: Rigs, tmp_path: Path) -> None:
    files = Files(tmp_path / "files", (1, 1))
    for device in (rigs(caching_null()).device, kept(NullEngine()).device):
        await files.save(device, doubler())
        assert [path.read_bytes() for path in files.paths] == [b"", b""]
        with pytest.raises(GeneralFailure, match="no compilation cache"):
            await files.load(device)


# -- what a hit is


async def test_hit_asks_the_engine_nothing_about_a_model(kept: Rigs, tmp_path: Path) -> None:
    engine = caching_null()
    rig = kept(engine)
    files = Files(tmp_path, rig.device.cache_files)
    await files.save(rig.device, doubler())
    before = engine.counters
    prepared = await files.load(rig.device)
    after = engine.counters
    assert (after.compile, after.supported_operations) == (
        before.compile,
        before.supported_operations,
    )
    assert (after.serialize, after.deserialize) == (1, 1)
    row = Row()
    await prepared.execute_synchronously(row.request)
    assert row.is_right


async def test_loaded_model_runs_on_every_path(kept: Rigs, tmp_path: Path) -> None:
    rig = kept(ReferenceEngine())
    files = Files(tmp_path, rig.device.cache_files)
    await files.save(rig.device, doubler())
    prepared = await files.load(rig.device)
    rows = [Row(number, -number, 0.5, 1e6) for number in range(4)]
    await prepared.execute(rows[0].request)
    await prepared.execute_synchronously(rows[1].request)
    assert await finished((await prepared.execute_fenced(rows[2].request)).fence) is None
    requests, results, done = LocalChannel(), LocalChannel(), Fence()
    outcomes: list[Outcome] = []

    def take(outcome: Outcome) -> None:
        outcomes.append(outcome)
        done.signal()

    controller = BurstController(requests, results)
    controller.attach(await prepared.configure_execution_burst(controller, requests, results))
    controller.send(controller.encode(rows[3].request), take, ExecutionConfig(deadline_ns=NEVER_NS))
    assert await finished(done) is None
    controller.close(BadState("the test ends"))
    assert isinstance(outcomes[0], ExecutionResult)
    assert all(row.is_right for row in rows)
    with pytest.raises(InvalidArgument, match="bytes"):
        await prepared.execute(Row(length=1 << 20).request)


async def test_priority_is_kept(kept: Rigs, tmp_path: Path) -> None:
    rig = kept(caching_null())
    files = Files(tmp_path, rig.device.cache_files)
    with files.opened() as (model, data):
        await rig.device.prepare_model(
            doubler(),
            PrepareModelConfig(
                priority=Priority.HIGH, model_cache=model, data_cache=data, token=TOKEN
            ),
        )
    assert (await files.load(rig.device)).priority is Priority.HIGH


def looping() -> Model:
    """Doubles x until it is 100."""
    builder = nn.ModelBuilder("loop")
    x = builder.input("x", (1,))
    less = OperationType.LESS
    y = builder.while_loop(
        lambda g, v: g.operation(less, v, [100.0]), lambda g, v: (g.add(v, v),), x
    )
    builder.output("y", y)
    return builder.build()


def test_skeletons() -> None:
    model = counter()
    skeleton = skeleton_of(model)
    for indexes in ("input_indexes", "output_indexes"):
        assert _ports(skeleton, indexes) == _ports(model, indexes)
    assert (skeleton.state, skeleton.name) == (model.state, model.name)
    assert (skeleton.main.operations, skeleton.pools, skeleton.operand_values) == ((), (), b"")
    assert skeleton_of(skeleton) == skeleton
    loop = skeleton_of(looping())
    assert [operation.type for operation in loop.main.operations] == [OperationType.WHILE]
    assert loop.referenced == ()


def _ports(model: Model, indexes: str) -> list[Any]:
    return [model.main.operands[index] for index in getattr(model.main, indexes)]


# -- handles


@pytest.mark.parametrize("counts", [(0, 1), (1, 1), (3, 1), (2, 0), (2, 2), (0, 0)])
async def test_wrong_numbers_of_handles(
    kept: Rigs, tmp_path: Path, counts: tuple[int, int]
) -> None:
    rig = kept(caching_null())
    files = Files(tmp_path, (2, 1))
    await files.save(rig.device, doubler(), counts=counts)
    with pytest.raises((InvalidArgument, GeneralFailure)):
        await files.load(rig.device)
    await files.save(rig.device, doubler())
    with pytest.raises(InvalidArgument, match=r"needs 2 model and 1 data cache files"):
        await files.load(rig.device, counts=counts)
    await files.load(rig.device)


async def test_handles_that_cannot_be_used(kept: Rigs, tmp_path: Path) -> None:
    rig = kept(caching_null())
    files = Files(tmp_path, (2, 1))
    await files.save(rig.device, doubler(), flags=os.O_RDONLY)
    with pytest.raises(GeneralFailure, match="no entry"):
        await files.load(rig.device)
    await files.save(rig.device, doubler())
    with pytest.raises(GeneralFailure, match="unreadable"):
        await files.load(rig.device, flags=os.O_WRONLY)
    await files.load(rig.device, flags=os.O_RDONLY)
    for bad in (-1, 2**40):
        with pytest.raises(GeneralFailure, match="cannot be used"):
            await rig.device.prepare_model_from_cache(
                PrepareModelConfig(model_cache=[bad, bad], data_cache=[bad], token=TOKEN)
            )
        await rig.device.prepare_model(
            doubler(), PrepareModelConfig(model_cache=[bad, bad], data_cache=[bad], token=TOKEN)
        )


async def test_offsets_of_handles_do_not_count(kept: Rigs, tmp_path: Path) -> None:
    rig = kept(ReferenceEngine())
    files = Files(tmp_path, rig.device.cache_files)
    await files.save(rig.device, doubler(), offset=7)
    await files.load(rig.device, offset=1000)


async def test_tokens(kept: Rigs, tmp_path: Path) -> None:
    rig = kept(caching_null())
    files = Files(tmp_path, (2, 1))
    await files.save(rig.device, doubler())
    chance = random.Random(1)
    for _ in range(SEEDS):
        flipped = bytearray(TOKEN)
        flipped[chance.randrange(32)] ^= 1 << chance.randrange(8)
        with pytest.raises(GeneralFailure, match="no entry"):
            await files.load(rig.device, bytes(flipped))
    for token in (b"", TOKEN[:31], TOKEN + b"!"):
        with pytest.raises(InvalidArgument, match="32 bytes"):
            await files.load(rig.device, token)
        with pytest.raises(InvalidArgument, match="32 bytes"):
            await files.save(rig.device, doubler(), token)


# -- damage


@pytest.mark.parametrize("damage", [flip, append])
async def test_damaged_files(
    kept: Rigs, tmp_path: Path, damage: Callable[[Path, random.Random], None]
) -> None:
    rig = kept(ReferenceEngine())
    files = Files(tmp_path, rig.device.cache_files)
    await files.save(rig.device, dense())
    for path in files.paths:
        good = path.read_bytes()
        for seed in range(SEEDS):
            damage(path, random.Random(seed))
            with pytest.raises(GeneralFailure, match="does not take the cache"):
                await files.load(rig.device)
            path.write_bytes(good)
    await files.load(rig.device)


async def test_files_of_another_token(kept: Rigs, tmp_path: Path) -> None:
    rig = kept(ReferenceEngine())
    mine = Files(tmp_path, rig.device.cache_files, "mine")
    other = Files(tmp_path, rig.device.cache_files, "other")
    await mine.save(rig.device, doubler())
    await other.save(rig.device, chain(OperationType.MUL, 2), bytes(32))
    mine.paths[1].write_bytes(other.paths[1].read_bytes())
    with pytest.raises(GeneralFailure):
        await mine.load(rig.device)


async def test_other_versions(kept: Rigs, tmp_path: Path, monkeypatch: Any) -> None:
    rig = kept(caching_null())
    files = Files(tmp_path, (2, 1))
    await files.save(rig.device, doubler())
    newer = caching_null()
    newer.version = "2"
    with pytest.raises(GeneralFailure, match="other driver version null 2"):
        await files.load(kept(newer).device)
    await files.load(kept(caching_null()).device)
    monkeypatch.setattr(caching, "library_version", lambda: "99")
    with pytest.raises(GeneralFailure, match="nnasync 99"):
        await files.load(kept(caching_null()).device)


async def test_envelopes(rigs: Rigs, tmp_path: Path) -> None:
    rig = rigs(caching_null())
    files = Files(tmp_path, (2, 1))
    preference = ExecutionPreference.LOW_POWER
    made = Compiled(doubler(), Lowering("one"), preference, Priority.LOW)
    plan = rig.engine.compile(doubler(), ExecutionPreference.LOW_POWER)
    with files.opened() as handles:
        assert await rig.device.preserve(plan, made, *handles) == ""
        contents = files.contents()
        restored = await rig.device.restore(None, contents)
        of = restored.compiled
        assert (of.model, of.lowering) == (skeleton_of(doubler()), made.lowering)
        assert isinstance(restored.plan, type(plan))
        with pytest.raises(InvalidArgument, match="needs 2 model"):
            await rig.device.restore(None, CacheFiles(contents.data, contents.model))
        newer = caching_null()
        newer.version = "2"
        with pytest.raises(GeneralFailure, match="was written by null 1"):
            await rigs(newer).device.restore(None, contents)
        damaged = CacheFiles((b"no envelope", *contents.model[1:]), contents.data)
        with pytest.raises(GeneralFailure, match="no envelope"):
            await rig.device.restore(None, damaged)
        plan = ReferenceEngine().compile(doubler(), ExecutionPreference.LOW_POWER)
        assert "not one of null" in await rig.device.preserve(plan, made, *handles)
    with files.opened(os.O_RDONLY) as handles:
        plan = rig.engine.compile(doubler(), ExecutionPreference.LOW_POWER)
        reason = await rig.device.preserve(plan, made, *handles)
        assert "cannot be written" in reason


# -- engines that fail


async def test_engine_that_cannot_keep_a_plan(kept: Rigs, tmp_path: Path) -> None:
    engine = caching_null()
    rig = kept(engine)
    files = Files(tmp_path, (2, 1))
    await files.save(rig.device, doubler())
    for error in (BadState("open shapes"), ValueError("a fault")):
        engine.fail("serialize", error)
        prepared = await files.save(rig.device, doubler())
        row = Row()
        await prepared.execute(row.request)
        assert row.is_right
        with pytest.raises(GeneralFailure, match="no entry"):
            await files.load(rig.device)
        engine.heal()
        await files.save(rig.device, doubler())
        await files.load(rig.device)
    engine.fail("deserialize", ValueError("a fault"))
    with pytest.raises(GeneralFailure, match="a fault"):
        await files.load(rig.device)


class Miscounting(NullEngine):
    """Gives fewer files than it said."""

    def serialize(self, plan: Plan) -> CacheFiles:
        return CacheFiles((b"",))


async def test_engine_that_gives_other_numbers_of_files(kept: Rigs, tmp_path: Path) -> None:
    rig = kept(Miscounting(compute=doubled, cache_files=(1, 1)))
    files = Files(tmp_path, (2, 1))
    await files.save(rig.device, doubler())
    with pytest.raises(GeneralFailure, match="no entry"):
        await files.load(rig.device)


class Hanging(NullEngine):
    """Loads when it is let."""

    def __init__(self) -> None:
        super().__init__(compute=doubled, cache_files=(1, 0))
        self.go_on = threading.Event()
        self.left = threading.Event()

    def deserialize(self, files: CacheFiles, lowering: Lowering | None) -> Any:
        assert self.go_on.wait(PATIENCE_S)
        self.left.set()
        return super().deserialize(files, lowering)


async def test_deadline_while_the_engine_loads(kept: Rigs, tmp_path: Path) -> None:
    """The thread that is left alone works on descriptors of its own, and closes them."""
    engine = Hanging()
    rig = kept(engine)
    files = Files(tmp_path, (2, 0))
    await files.save(rig.device, doubler())
    with files.opened() as handles:
        with pytest.raises(MissedDeadline):
            await rig.device.prepare_model_from_cache(
                PrepareModelConfig(
                    deadline=within(ms=20),
                    model_cache=handles[0],
                    data_cache=handles[1],
                    token=TOKEN,
                )
            )
        with pytest.raises(MissedDeadline):
            await rig.device.prepare_model_from_cache(
                PrepareModelConfig(
                    deadline=within(ms=-1),
                    model_cache=handles[0],
                    data_cache=handles[1],
                    token=TOKEN,
                )
            )
    engine.go_on.set()
    await anyio.to_thread.run_sync(engine.left.wait, PATIENCE_S)


# -- replaced between check and use


async def test_files_swapped_meanwhile(kept: Rigs, tmp_path: Path) -> None:
    """100 additions against 100 multiplications: an error or the sum, never the product."""
    rig = kept(ReferenceEngine())
    sums = Files(tmp_path, rig.device.cache_files, "sums")
    products = Files(tmp_path, rig.device.cache_files, "products")
    await products.save(rig.device, chain(OperationType.MUL), bytes(32))
    wrong = [path.read_bytes() for path in products.paths]
    loaded = 0
    for step in range(20):
        await sums.save(rig.device, chain(OperationType.ADD))
        thread = threading.Thread(target=_overwrite, args=(sums.paths, wrong, step % 2))
        thread.start()
        try:
            prepared = await sums.load(rig.device)
        except NNError:
            pass
        else:
            row = Row(1, 2, 3, 4)
            await prepared.execute(row.request)
            assert (row.y == 101 * row.x).all()
            loaded += 1
        thread.join()
    with pytest.raises(GeneralFailure):
        await sums.load(rig.device)
    assert loaded < 20


async def test_plans_that_replace_the_files_of_a_client(kept: Rigs, tmp_path: Path) -> None:
    engine = LateEngine()
    rig = kept(engine)
    files = Files(tmp_path, (2, 1))
    await files.save(rig.device, doubler())
    engine.plans[-1].compile()
    await rig.device.written()
    await files.load(rig.device)
    assert engine.loaded == [LATER]
    engine.plans[-1].compile(FIRST)
    await rig.device.written()
    await files.load(rig.device, flags=os.O_RDONLY)
    engine.plans[-1].compile()  # which cannot be written
    await rig.device.written()
    await files.load(rig.device)
    assert engine.loaded == [LATER, FIRST, FIRST]
    engine.plans.clear()


def _overwrite(paths: list[Path], contents: list[bytes], backwards: int) -> None:
    for path, content in list(zip(paths, contents, strict=True))[:: -1 if backwards else 1]:
        path.write_bytes(content)
