"""Networks on shared cores: how often they come, and which of their runs count."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from nnasync.experiments import Network, RunResult, RunTimes
from nnasync.experiments import measured_together as module
from nnasync.experiments.latencies import Latencies
from nnasync.experiments.measured_together import Kind, Together, load_of, usable
from nnasync.experiments.record import StreamResult
from nnasync.experiments.workload import Workload, offered_load
from nnasync.hal import Priority
from tests.experiments.rigs import real_run

ROOT = Path(__file__).resolve().parents[2]
WORDS = str(ROOT / "nnasync" / "cli" / "demo_data" / "words.nnm")
LARGE, SMALL = Kind("large", Priority.LOW), Kind("small", Priority.HIGH)
NETWORKS = {LARGE: Network("large", (5.0,)), SMALL: Network("small", (1.0,))}


def run_of() -> RunResult:
    """A run of two streams in which nothing came."""
    none = StreamResult("a", "high", None, 0, 0, 0, 0, 0, 0, 0, 0, Latencies())
    return real_run(streams=(none, none))


@pytest.mark.anyio
@pytest.mark.one_loop("what is measured is the same on all of them")
async def test_a_network_is_measured_beside_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_RUN_NS", 300_000_000)
    monkeypatch.setattr(module, "_WARM_MS", 0.0)
    kind = Kind(WORDS, Priority.HIGH)
    network = Network(WORDS, (0.1,), times=RunTimes((0.1,)))
    together = Together({kind: network}, 2, {kind: 300.0})
    await together.measure()
    await together.measure_more()
    found = together.networks()
    assert list(found) == [kind]
    assert found[kind].mean_ns > 0
    assert {len(run.streams) for run in together.runs} == {1}


@pytest.mark.anyio
async def test_runs_that_others_did_not_disturb_count(monkeypatch: pytest.MonkeyPatch) -> None:
    # Three attempts, and then two more.
    stolen = iter([0.3, 0.2, 0.4, 0.25, 0.02])
    seeds = []

    class Meter:
        def read(self) -> SimpleNamespace:
            return SimpleNamespace(others=0.0, stolen=next(stolen))

    async def run(workload: Workload, cores: int, seed: int, **_: object) -> RunResult:
        assert offered_load(workload, cores) == pytest.approx(0.4)
        seeds.append(seed)
        return replace(run_of(), seed=seed)

    monkeypatch.setattr(module, "CpuMeter", Meter)
    monkeypatch.setattr(module, "run_real", run)
    together = Together(NETWORKS, 2, {LARGE: 120.0, SMALL: 200.0})
    await together.measure()
    assert [run.seed for run in together.runs] == [1]
    await together.measure_more()
    assert [run.seed for run in together.runs] == [1]
    await together.measure_more()
    assert ([run.seed for run in together.runs], seeds) == ([4], [0, 1, 2, 3, 4])


def test_networks_come_as_often_as_at_a_point() -> None:
    mix = {LARGE: 120.0, SMALL: 200.0}
    assert load_of(mix, NETWORKS, 2) == 0.4
    assert usable(mix, NETWORKS, 2) == mix
    # Next to nothing, and more than the cores can do, become a load that tells something.
    few = usable({LARGE: 0.6, SMALL: 1.0}, NETWORKS, 2)
    assert few == pytest.approx({LARGE: 60.0, SMALL: 100.0})
    assert usable({LARGE: 600.0, SMALL: 1000.0}, NETWORKS, 2) == pytest.approx(
        {LARGE: 240.0, SMALL: 400.0}
    )
    # Of a stream whose rate is not known nothing is expected but that it comes.
    unknown = usable({LARGE: 0.0, SMALL: 200.0}, NETWORKS, 2)
    assert (unknown[LARGE], unknown[SMALL]) == (40.0, 200.0)


def test_small_networks_do_not_come_too_often_for_a_loop() -> None:
    kinds = [Kind(name, Priority.LOW) for name in ("a.tflite", "b.tflite")]
    networks = {kind: Network(kind.model, (0.001,)) for kind in kinds}
    assert list(usable(dict.fromkeys(kinds, 5e5), networks, 2).values()) == [600.0] * 2
