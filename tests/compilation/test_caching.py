"""Compilations kept in a cache directory, and found there: by whom, when, and when not."""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest

import nnasync as nn
from nnasync._core import cache as caches
from nnasync._core.compilation import Report, kept
from nnasync._core.drivers.cpu import ReferenceEngine
from nnasync._core.engine_device import EngineDevice
from nnasync.device import DEFAULT_PREPARE, PrepareModelConfig
from nnasync.engine import CacheFiles, Lowering, Plan, StopFlag
from nnasync.errors import (
    DeviceUnavailable,
    GeneralFailure,
    InvalidArgument,
)
from nnasync.hal import Model, OperationType, Priority
from tests.compilation.rig import REFERENCE, FakeEngine, ManualClock, chain, clock, way
from tests.rigs import GUARD_S, ROW, doubler, until

pytestmark = [pytest.mark.anyio, pytest.mark.one_loop("The cache is the same on every loop.")]

__all__ = ["clock"]

OTHER_TOKEN = b"t" * 32
QUICK_OPTIONS = nn.Options(cores=1, competition_budget_ms=20)


def opened(*devices: Any, options: nn.Options = QUICK_OPTIONS) -> nn.Runtime:
    return nn.open_runtime(devices=list(devices) or [REFERENCE], options=options)


async def reported(cache_dir: Path, *devices: Any, **options: Any) -> Report:
    """The report of a compilation in a runtime of its own; the network must work."""
    model = options.pop("model", None) or doubler()
    async with opened(*devices) as rt:
        net = await rt.compile(model, cache_dir=cache_dir, **options)
        assert (await net(ROW)).tolist() == [[2, 4, 6, 8]]
        return net.report()


SPARE = str.maketrans("ABCDEFGHIJKLMNOP", "PONMLKJIHGFEDCBA")
"""Names of the files of an entry by its token, to those by its spare one, and back."""


def entries(folder: Path) -> list[Path]:
    """The files of the entries, in an order that does not depend on how often they were written."""
    return sorted(folder.iterdir(), key=lambda file: min(file.name, file.name.translate(SPARE)))


def on_disk(folder: Path) -> int:
    return sum(file.stat().st_blocks * 512 for file in entries(folder))


async def test_the_second_compilation_is_a_hit_and_does_not_see_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await reported(tmp_path)
    assert (first.cache_hit, first.cache_reason) == (False, "no entry")

    def forbidden(*args: Any) -> Any:
        raise AssertionError("a hit must not do this")

    monkeypatch.setattr(ReferenceEngine, "compile", forbidden)
    monkeypatch.setattr(ReferenceEngine, "supported_operations", forbidden)
    second = await reported(tmp_path)
    assert (second.cache_hit, second.cache_reason) == (True, "hit")
    assert second.partitions == first.partitions
    assert second.pin == first.pin
    assert second.candidates == first.candidates


async def test_a_file_is_not_loaded_when_its_compilation_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "doubler.nnm"
    nn.save(doubler(), path)
    first = await reported(tmp_path / "cache", model=path)
    assert not first.cache_hit
    monkeypatch.setattr("nnasync._core.importers.LOADERS", {".nnm": "none:none"})
    second = await reported(tmp_path / "cache", model=path)
    assert second.cache_hit
    assert second.partitions == first.partitions
    async with opened() as rt:
        net = await rt.compile(str(path), cache_dir=tmp_path / "cache")
        assert [port.name for port in net.inputs] == ["x"]
        assert [port.name for port in net.outputs] == ["y"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"options": nn.CompileOptions(token=OTHER_TOKEN)}, "no entry"),
        ({"preference": nn.Preference.LOW_POWER}, "no entry"),
        ({"precision": "exact"}, "no entry"),
        ({"options": nn.CompileOptions(preemption_quantum_ms=5)}, "no entry"),
    ],
)
async def test_whatever_decides_on_the_plan_is_in_the_key(
    tmp_path: Path, change: dict[str, Any], reason: str
) -> None:
    await reported(tmp_path)
    report = await reported(tmp_path, **change)
    assert (report.cache_hit, report.cache_reason) == (False, reason)
    assert (await reported(tmp_path, **change)).cache_hit
    assert (await reported(tmp_path)).cache_hit


async def test_all_priorities_have_one_entry(tmp_path: Path) -> None:
    await reported(tmp_path)
    kept = {path.name for path in entries(tmp_path)}
    for priority in Priority:
        assert (await reported(tmp_path, priority=priority)).cache_hit
    assert {path.name for path in entries(tmp_path)} == kept


async def test_a_token_reused_for_another_model_is_noticed(tmp_path: Path) -> None:
    await reported(tmp_path, options=nn.CompileOptions(token=OTHER_TOKEN))
    report = await reported(
        tmp_path, options=nn.CompileOptions(token=OTHER_TOKEN), model=doubler("another")
    )
    assert not report.cache_hit
    assert "another model" in report.cache_reason


async def test_no_damaged_file_is_taken(tmp_path: Path) -> None:
    await reported(tmp_path)
    files = entries(tmp_path)
    assert {file.name[64] for file in files} == {"1", "2"}
    async with opened() as rt:
        for number in range(len(files)):
            size = entries(tmp_path)[number].stat().st_size
            for tenth in range(11):
                file = entries(tmp_path)[number]
                content = bytearray(file.read_bytes())
                place = min(tenth * max(1, size // 10), len(content) - 1)
                content[place] ^= 1 << place % 8
                file.write_bytes(content)
                net = await rt.compile(doubler(), cache_dir=tmp_path)
                assert not net.report().cache_hit
                assert "modified" in net.report().cache_reason
                assert (await net(ROW)).tolist() == [[2, 4, 6, 8]]
                net.close()
    assert (await reported(tmp_path)).cache_hit


async def test_another_installation_has_no_use_for_the_files(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    await reported(tmp_path)
    monkeypatch.setenv("NNASYNC_STATE_DIR", str(tmp_path_factory.mktemp("other")))
    report = await reported(tmp_path)
    assert not report.cache_hit
    assert "another installation" in report.cache_reason


async def test_refused_directories_are_told(tmp_path: Path) -> None:
    everybodys = tmp_path / "everybodys"
    everybodys.mkdir()
    everybodys.chmod(0o777)
    async with opened() as rt:
        with pytest.raises(InvalidArgument, match="writ"):
            await rt.compile(doubler(), cache_dir=everybodys)
        for wrong in (5, b"\0", ""):
            with pytest.raises(InvalidArgument):
                await rt.compile(doubler(), cache_dir=wrong)  # type: ignore[arg-type]
        for token in (b"short", "t" * 32):
            with pytest.raises(InvalidArgument, match="32 bytes"):
                options = nn.CompileOptions(token=token)  # type: ignore[arg-type]  # no bytes
                await rt.compile(doubler(), cache_dir=tmp_path, options=options)


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a place without directories")
async def test_a_directory_that_cannot_be_made_fails_nothing() -> None:
    report = await reported(Path("/proc/nnasync/_core/cache"))
    assert not report.cache_hit
    assert "not kept" in report.cache_reason


async def test_a_file_in_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("in the way")
    async with opened() as rt:
        with pytest.raises(InvalidArgument, match="not a directory"):
            await rt.compile(doubler(), cache_dir=file / "cache")


async def test_a_directory_that_does_not_answer_delays_for_a_while_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()
    monkeypatch.setattr(caches.Store, "read", lambda *_, **__: release.wait(GUARD_S))
    monkeypatch.setattr("nnasync._core.compilation.caching._PATIENCE_S", 0.05)
    try:
        report = await reported(tmp_path)
    finally:
        release.set()
    assert not report.cache_hit
    assert "did not answer in time" in report.cache_reason


async def test_encrypted_entries_are_found_again(tmp_path: Path) -> None:
    options = nn.Options(cores=1, encrypt_cache=True)
    for hit in (False, True):
        async with opened(options=options) as rt:
            net = await rt.compile(doubler("unmistakable name"), cache_dir=tmp_path)
            assert net.report().cache_hit is hit
    assert not any(b"unmistakable" in file.read_bytes() for file in entries(tmp_path))


async def test_a_bounded_cache_drops_what_was_used_least(tmp_path: Path) -> None:
    await reported(tmp_path)
    size = on_disk(tmp_path)
    async with opened(options=nn.Options(cores=1, cache_limit_bytes=int(size * 2.5))) as rt:
        for name in ("b", "c", "d"):
            (await rt.compile(doubler(name), cache_dir=tmp_path)).close()
        assert on_disk(tmp_path) <= size * 2.5
        latest = await rt.compile(doubler("d"), cache_dir=tmp_path)
        oldest = await rt.compile(doubler(), cache_dir=tmp_path)
        assert latest.report().cache_hit
        assert not oldest.report().cache_hit


# -- a device of which every call is counted


class Outside(EngineDevice):
    """A device that keeps what it prepares itself; the plans are the reference's."""

    def __init__(self, rt: nn.Runtime, counts: tuple[int, int], outcome: Exception | None) -> None:
        reference = rt.device(REFERENCE)
        assert isinstance(reference, EngineDevice)
        super().__init__(ReferenceEngine(), reference.workers)
        self.counts = counts
        self.outcome = outcome
        self.calls: list[str] = []

    name = "outside"

    async def get_number_of_cache_files_needed(self) -> tuple[int, int]:
        return self.counts

    async def prepare_model(
        self, model: Model, config: PrepareModelConfig = DEFAULT_PREPARE
    ) -> Any:
        handles = (*config.model_cache, *config.data_cache)
        self.calls.append(f"prepare {len(handles)}")
        for fd in handles:
            os.pwrite(fd, b"mine", 0)
        self.model = model
        return await super().prepare_model(model)

    async def prepare_model_from_cache(self, config: PrepareModelConfig) -> Any:
        assert len(config.token) == 32
        handles = (*config.model_cache, *config.data_cache)
        self.calls.append(f"load {len(handles)}")
        assert all(os.pread(fd, 5, 0) == b"mine" for fd in handles)
        if self.outcome is not None:
            raise self.outcome
        return await super().prepare_model(self.model)


OUTCOMES = [None, GeneralFailure("g"), DeviceUnavailable("d"), InvalidArgument("i")]


@pytest.mark.parametrize("outcome", OUTCOMES, ids=lambda each: type(each).__name__)
async def test_calls_by_numbers_of_files_and_result_of_loading(
    tmp_path: Path, outcome: Exception | None
) -> None:
    async with opened() as rt:
        for models, data in itertools.product((0, 1, 32), repeat=2):
            files = models + data
            device = Outside(rt, (models, data), outcome)
            folder = tmp_path / f"{models}-{data}"
            assert await calls(rt, device) == ["prepare 0"]
            assert await calls(rt, device, cache_dir=folder) == [f"prepare {files}"]
            again = await calls(rt, device, cache_dir=folder)
            if not files:
                assert again == ["prepare 0"]
            elif outcome is None:
                assert again == [f"load {files}"]
            else:
                assert again == [f"load {files}", f"prepare {files}"]


async def calls(rt: nn.Runtime, device: Outside, **options: Any) -> list[str]:
    """What a compilation calls of the device."""
    device.calls.clear()
    net = await rt.compile(doubler(), devices=[device], **options)
    assert (await net(ROW)).tolist() == [[2, 4, 6, 8]]
    net.close()
    return list(device.calls)


# -- stages


class KeepingEngine(FakeEngine):
    """A fake engine that keeps plans: files name them, a table has them."""

    cache_files = (1, 0)

    def __init__(
        self, name: str, clock: ManualClock, *ways: Any, loading_ns: int = 0, **options: Any
    ) -> None:
        super().__init__(name, clock, *ways, **options)
        self._loading_ns = loading_ns
        self.table: dict[bytes, Plan] = {}
        self.loaded = 0
        self.hold = threading.Event()
        self.hold.set()

    def loading_ns(self) -> int:
        return self._loading_ns

    def serialize(self, plan: Plan) -> CacheFiles:
        name = str(len(self.table)).encode()
        self.table[name] = plan
        return CacheFiles(model=(name,))

    def deserialize(self, files: CacheFiles, lowering: Lowering | None) -> Plan:
        assert self.hold.wait(GUARD_S)
        self.loaded += 1
        return self.table[bytes(files.model[0])]


class SlowToImport(KeepingEngine):
    """One that is ready to load plans when `get_ready` was called."""

    def __init__(self, name: str, clock: ManualClock, *ways: Any) -> None:
        super().__init__(name, clock, *ways)
        self.ready = threading.Event()

    def get_ready(self) -> None:
        self.ready.set()
        raise RuntimeError("nobody hears of this")

    def deserialize(self, files: CacheFiles, lowering: Lowering | None) -> Plan:
        assert self.ready.wait(GUARD_S)
        return super().deserialize(files, lowering)


async def test_an_engine_gets_ready_while_its_files_are_read(
    tmp_path: Path, clock: ManualClock
) -> None:
    engine = SlowToImport("slow", clock, way(us=10))
    x = np.ones((1, 64), np.float32)
    for hit in (False, True):
        engine.ready.clear()
        engine.loaded = 0
        async with opened(engine) as rt:
            net = await rt.compile(chain(4), cache_dir=tmp_path)
            assert net.report().cache_hit is hit
            assert np.array_equal(await net(x), x * 5)
    assert engine.ready.is_set()
    assert engine.loaded == 1


async def test_a_quick_stage_answers_until_the_best_is_loaded(
    tmp_path: Path, clock: ManualClock
) -> None:
    slow_to_load = KeepingEngine("best", clock, way(us=10), loading_ns=10**9)
    quick = KeepingEngine("quick", clock, way(us=20))
    model, x = chain(4), np.ones((1, 64), np.float32)
    async with opened(slow_to_load, quick) as rt:
        net = await rt.compile(model, cache_dir=tmp_path)
        assert [part.device for part in net.report().partitions] == ["best"]
        expected = await net(x)
    slow_to_load.hold.clear()
    with anyio.fail_after(GUARD_S):
        async with opened(slow_to_load, quick) as rt:
            net = await rt.compile(model, cache_dir=tmp_path)
            report = net.report()
            assert report.cache_hit
            assert report.cache_reason == "hit; best follows when it is loaded"
            assert [part.device for part in report.partitions] == ["quick"]
            runs: list[str] = []
            for engine in (slow_to_load, quick):
                engine.before_run = lambda stop, name=engine.name: runs.append(name)  # type: ignore[misc]
            assert np.array_equal(await net(x), expected)
            assert set(runs) == {"quick"}
            slow_to_load.hold.set()
            while net.report() is report:
                await anyio.lowlevel.checkpoint()
            runs.clear()
            assert np.array_equal(await net(x), expected)
            assert runs == ["best"]
            assert net.report().cache_reason == "hit"
            assert [part.device for part in net.report().partitions] == ["best"]
            assert net.report().pin == report.pin


class TwoForms(KeepingEngine):
    """A fake engine that is fastest with two threads; `narrow` lets the other form be loaded."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__("engine", clock, way(threads=2, us=60_000), way(us=100_000))
        self.narrow = threading.Event()
        self.narrow.set()
        self.running, self.let_go = threading.Semaphore(0), threading.Event()

    def deserialize(self, files: CacheFiles, lowering: Lowering | None) -> Plan:
        if lowering is not None and lowering.threads == 1:
            assert self.narrow.wait(GUARD_S)
        return super().deserialize(files, lowering)

    def hang(self, stop: StopFlag) -> None:
        self.running.release()
        assert self.let_go.wait(GUARD_S)

    async def time_of_two(self, net: nn.Net) -> int:
        """How long two executions take together that run at once."""
        self.let_go.clear()
        self.before_run = self.hang
        began_ns = self.clock.now_ns
        launched = []
        for _ in range(2):
            launched.append(await net.launch(ROW))
            await until(lambda: self.running.acquire(blocking=False))
        self.let_go.set()
        for execution in launched:
            await execution.fence
        self.before_run = lambda stop: None
        return self.clock.now_ns - began_ns


async def test_the_form_for_runs_beside_others_is_loaded_after_the_first_answer(
    tmp_path: Path, clock: ManualClock
) -> None:
    options = nn.Options(cores=2)
    engine = TwoForms(clock)
    async with opened(engine, options=options) as rt:
        net = await rt.compile(doubler(), cache_dir=tmp_path)
        assert await engine.time_of_two(net) == 160_000_000
    engine.narrow.clear()
    loaded = engine.loaded
    async with opened(engine, options=options) as rt:
        net = await rt.compile(doubler(), cache_dir=tmp_path)
        report = net.report()
        assert report.cache_hit
        assert engine.loaded == loaded + 1
        assert await engine.time_of_two(net) == 120_000_000
        tasks = asyncio.all_tasks()
        engine.narrow.set()
        await until(lambda: len(asyncio.all_tasks()) < len(tasks))
        assert engine.loaded == loaded + 2
        assert await engine.time_of_two(net) == 160_000_000
        assert net.report() == report


async def test_without_the_form_for_runs_beside_others_all_runs_are_alike(
    tmp_path: Path, clock: ManualClock
) -> None:
    options = nn.Options(cores=2)
    engine = TwoForms(clock)
    async with opened(engine, options=options) as rt:
        await (await rt.compile(doubler(), cache_dir=tmp_path)).close()
    engine.narrow.clear()
    async with opened(engine, options=options) as rt:
        net = await rt.compile(doubler(), cache_dir=tmp_path)
        tasks = asyncio.all_tasks()
        engine.table.clear()
        engine.narrow.set()
        await until(lambda: len(asyncio.all_tasks()) < len(tasks))
        assert await engine.time_of_two(net) == 120_000_000


async def test_plans_that_devices_share_are_kept_step_by_step(
    tmp_path: Path, clock: ManualClock
) -> None:
    adds = KeepingEngine("adds", clock, takes=lambda type: type == OperationType.ADD)
    others = KeepingEngine("others", clock, takes=lambda type: type != OperationType.ADD)
    builder = nn.ModelBuilder("mixed")
    x = builder.input("x", (1, 4))
    builder.output("y", builder.mul(builder.add(builder.add(x, x), x), builder.relu(x)))
    model = builder.build()
    async with opened(adds, others) as rt:
        net = await rt.compile(model, cache_dir=tmp_path)
        first, expected = net.report(), await net(ROW)
        assert {part.device for part in first.partitions} == {"adds", "others"}
        assert first.cache_reason == "no entry"
    compiled = len(adds.compiled + others.compiled)
    async with opened(adds, others) as rt:
        net = await rt.compile(model, cache_dir=tmp_path)
        report = net.report()
        assert (report.cache_hit, report.cache_reason) == (True, "hit")
        assert (report.partitions, report.pin) == (first.partitions, first.pin)
        assert np.array_equal(await net(ROW), expected)
    assert len(adds.compiled + others.compiled) == compiled
    adds.table.clear()
    async with opened(adds, others) as rt:
        net = await rt.compile(model, cache_dir=tmp_path)
        assert not net.report().cache_hit
        assert "adds cannot load what it kept" in net.report().cache_reason
        assert np.array_equal(await net(ROW), expected)


async def test_the_best_is_made_anew_where_it_cannot_be_loaded(
    tmp_path: Path, clock: ManualClock
) -> None:
    best = KeepingEngine("best", clock, way(us=10), loading_ns=10**9)
    quick = KeepingEngine("quick", clock, way(us=20))
    model = chain(4)
    async with opened(best, quick) as rt:
        net = await rt.compile(model, cache_dir=tmp_path)
    best.table.clear()
    with anyio.fail_after(GUARD_S):
        async with opened(best, quick) as rt:
            net = await rt.compile(model, cache_dir=tmp_path)
            report = net.report()
            while net.report() is report:
                await anyio.lowlevel.checkpoint()
            assert [part.device for part in net.report().partitions] == ["best"]


async def test_the_first_answers_at_once_and_the_best_is_kept_later(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    # However long loading takes here: no quick plan is kept before the best one.
    monkeypatch.setattr("nnasync._core.compilation.kept._SOON_NS", 10**12)
    first = KeepingEngine("first", clock, way(us=30))
    better = KeepingEngine("better", clock, way(us=10))
    model, x = chain(4), np.ones((1, 64), np.float32)
    with anyio.fail_after(GUARD_S):
        async with opened(first, better) as rt:
            net = await rt.compile(
                model, options=nn.CompileOptions(wait="first"), cache_dir=tmp_path
            )
            report = net.report()
            assert [part.device for part in report.partitions] == ["first"]
            assert better.compiled == []
            expected = await net(x)
            assert await net.optimized() is net.report()
            assert [part.device for part in net.report().partitions] == ["better"]
            assert np.array_equal(await net(x), expected)
        async with opened(first, better) as rt:
            net = await rt.compile(
                model, options=nn.CompileOptions(wait="first"), cache_dir=tmp_path
            )
            assert net.report().cache_hit
            assert [part.device for part in net.report().partitions] == ["better"]


async def test_nothing_is_lost_doubled_or_wrong_while_a_plan_takes_over(clock: ManualClock) -> None:
    first = KeepingEngine("first", clock, way(us=30))
    better = KeepingEngine("better", clock, way(us=10))
    model, x = chain(4), np.ones((1, 64), np.float32)
    answers: list[bool] = []
    with anyio.fail_after(GUARD_S):
        async with opened(first, better, options=nn.Options(cores=2)) as rt:
            net = await rt.compile(model, options=nn.CompileOptions(wait="first"))
            report = net.report()
            expected = await net(x)

            async def client(number: int) -> None:
                for _ in range(40):
                    result = await net(x * number)
                    answers.append(np.array_equal(result, expected * number))

            async with anyio.create_task_group() as group:
                for number in (1, 2, 3):
                    group.start_soon(client, number)
                async with net.burst() as burst:
                    answers += [np.array_equal(await burst(x), expected) for _ in range(20)]
            while net.report() is report:
                await net(x)
    assert answers == [True] * 140


@pytest.mark.one_loop("No loop has a part in it.")
async def test_a_plan_of_the_reference_asks_for_a_quick_one_before_it() -> None:
    """Its kernels are imported before it can be loaded, which no other engine waits for."""
    assert ReferenceEngine().loading_ns() > kept._SOON_NS
