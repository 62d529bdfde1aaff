"""Networks on shared cores: how long their runs take by what runs beside them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from nnasync.experiments import Network, Poisson, RunResult, RunTimes, Span
from nnasync.experiments import measured_together as module
from nnasync.experiments.latencies import Latencies
from nnasync.experiments.measured_together import (
    Kind,
    Together,
    quantiles_ms,
    times_by_company,
)
from nnasync.experiments.record import Outcome, RequestRow, StreamResult
from nnasync.experiments.workload import Workload, offered_load
from nnasync.hal import Priority

ROOT = Path(__file__).resolve().parents[2]
WORDS = str(ROOT / "nnasync" / "cli" / "demo_data" / "words.nnm")
MS = 1_000_000


def run_of(*spans: tuple[int, float, float]) -> RunResult:
    """Runs of two streams as stream, beginning and end in milliseconds."""
    none = StreamResult("a", "high", None, 0, 0, 0, 0, 0, 0, 0, 0, Latencies())
    return RunResult(
        kind="real",
        seed=0,
        cores=2,
        policy="default",
        duration_ns=10**9,
        busy_ns=0,
        preemptions=0,
        streams=(none, none),
        spans=tuple(
            Span(0, stream, number, round(began * MS), round(ended * MS))
            for number, (stream, began, ended) in enumerate(spans)
        ),
    )


def test_runs_are_told_apart_by_what_ran_beside_them() -> None:
    alone = [(0, at, at + 1) for at in range(0, 300, 10)]
    beside = [(0, at + 4, at + 6) for at in range(0, 300, 10)]
    others = [(1, at + 3.9, at + 7) for at in range(0, 300, 10)]
    halfway = [(0, at + 6.5, at + 9.5) for at in range(0, 300, 10)]
    found = times_by_company([run_of(*alone, *beside, *others, *halfway)], 0)
    assert found is not None
    assert set(found.usual_ms) == {1.0}
    assert {name: set(values) for name, values in found.beside_ms.items()} == {"1": {2.0}}
    # Nobody ran beside the other stream for nearly all of a run, and it never was alone.
    assert times_by_company([run_of(*alone, *beside, *others, *halfway)], 1) is None


def test_runs_beside_their_own_kind() -> None:
    pairs = [(0, at + shift, at + 2 + shift) for at in range(0, 300, 10) for shift in (0, 0.05)]
    alone = [(0, at + 5, at + 6) for at in range(0, 300, 10)]
    run = run_of(*pairs[:30], *alone[:15]), run_of(*pairs[30:], *alone[15:])
    found = times_by_company(run, 0)
    assert found is not None
    assert (set(found.usual_ms), set(found.beside_ms["0"])) == ({1.0}, {2.0})


def test_the_form_for_runs_alone_does_not_count_as_usual() -> None:
    spans = [(0, at, at + 1 + at // 10 % 2) for at in range(0, 990, 10)]
    found = times_by_company([run_of(*spans)], 0, 1.5 * MS)
    assert found is not None
    assert set(found.usual_ms) == {2.0}


def test_the_pieces_of_a_run_that_was_interrupted_are_one_run() -> None:
    run = run_of(*((0, at, at + 3) for at in range(0, 300, 10)))
    pieces = (
        piece
        for whole in run.spans
        for piece in (
            replace(whole, ended_ns=whole.began_ns + MS),
            replace(whole, began_ns=whole.began_ns + 4 * MS, ended_ns=whole.ended_ns + 3 * MS),
        )
    )
    found = times_by_company([replace(run, spans=tuple(pieces))], 0)
    assert found is not None
    assert set(found.usual_ms) == {3.0}


def test_a_run_that_has_not_come_to_its_end_does_not_count() -> None:
    run = run_of(*((0, at, at + 3) for at in range(0, 300, 10)), (0, 500, 501))
    rows = (
        RequestRow(0, span.request, span.began_ns, span.ended_ns, Outcome.MET)
        for span in run.spans[:-1]
    )
    cut = RequestRow(0, run.spans[-1].request, 500 * MS, 501 * MS, Outcome.PENDING)
    found = times_by_company([replace(run, requests=(*rows, cut))], 0)
    assert found is not None
    assert set(found.usual_ms) == {3.0}


def test_quantiles_are_as_many_whatever_there_is() -> None:
    assert quantiles_ms([MS]) == (1.0,) * 199
    assert quantiles_ms(range(MS, 200 * MS, MS)) == tuple(map(float, range(1, 200)))


@pytest.mark.anyio
@pytest.mark.one_loop("what is measured is the same on all of them")
async def test_a_network_is_measured_beside_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_RUN_NS", 300_000_000)
    monkeypatch.setattr(module, "_WARM_MS", 0.0)
    kind = Kind(WORDS, Priority.HIGH)
    network = Network(WORDS, (0.1,), times=RunTimes((0.1,)))
    together = Together({kind: network}, 2)
    await together.measure()
    await together.measure_more()
    found = together.networks()
    assert list(found) == [kind]
    assert found[kind].mean_ns > 0
    assert {len(run.streams) for run in together.runs} == {1}


@pytest.mark.anyio
async def test_runs_that_others_did_not_disturb_count(monkeypatch: pytest.MonkeyPatch) -> None:
    # Three attempts at the first load, one at the second, and then one more at each.
    stolen = iter([0.3, 0.2, 0.4, 0.0, 0.25, 0.02])
    loads = []

    class Meter:
        def read(self) -> SimpleNamespace:
            return SimpleNamespace(others=0.0, stolen=next(stolen))

    async def run(workload: Workload, cores: int, **_: object) -> RunResult:
        loads.append(round(offered_load(workload, cores), 3))
        return replace(run_of(), seed=len(loads))

    monkeypatch.setattr(module, "CpuMeter", Meter)
    monkeypatch.setattr(module, "run_real", run)
    networks = {
        Kind("large", Priority.LOW): Network("large", (5.0,)),
        Kind("small", Priority.HIGH): Network("small", (1.0,)),
    }
    together = Together(networks, 2)
    await together.measure()
    assert [run.seed for run in together.runs] == [2, 4]
    await together.measure_more()
    await together.measure_more()
    assert [run.seed for run in together.runs] == [2, 4, 6]
    assert loads == [0.4, 0.4, 0.4, 0.8, 0.4, 0.8]


def test_small_networks_do_not_come_too_often_for_a_loop() -> None:
    networks = {
        Kind(name, Priority.LOW): Network(name, (0.001,)) for name in ("a.tflite", "b.tflite")
    }
    streams = module._streams(networks, 1.6)
    assert [stream.arrivals for stream in streams] == [Poisson(600.0)] * 2
