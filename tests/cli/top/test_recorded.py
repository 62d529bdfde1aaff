"""What a trace says of the runtime that it is of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

import nnasync as nn
from nnasync.cli import main
from nnasync.cli.top.recorded import recorded
from nnasync.cli.top.told import as_text
from nnasync.cli.top.view import DeviceRow, NetworkRow, Picture
from nnasync.errors import InvalidArgument
from nnasync.tracing import Timeline, write_trace
from tests import rigs

NAME = "digits on cpu"


def run(ts: float, dur: float, task: int | None = 1, *, finished: bool = True) -> dict[str, Any]:
    """A run on a worker, 5 us after it was ready; without a task one on the loop."""
    args: dict[str, Any] = {"inline": True}
    if task is not None:
        args = {"task": task, "priority": "HIGH", "finished": finished, "us_since_ready": 5.0}
    return {
        "ph": "X",
        "cat": "driver,execution",
        "name": NAME,
        "pid": 2,
        "ts": ts,
        "dur": dur,
        "args": args,
    }


def error(
    ts: float, kind: str, task: int = 1, active: float = 0.0, priority: str = "HIGH"
) -> dict[str, Any]:
    """An answer with an error."""
    args = {"task": task, "priority": priority, "us_active": active, "error": "why"}
    return {
        "ph": "i",
        "cat": "runtime,unspecified",
        "name": f"{NAME}: {kind}",
        "pid": 2,
        "ts": ts,
        "args": args,
    }


def picture(path: Path, *events: dict[str, Any]) -> Picture:
    path = path / "trace.json"
    path.write_bytes(msgspec.json.encode({"traceEvents": events}))
    return recorded(path)


def only(seen: Picture) -> NetworkRow:
    (row,) = seen.networks
    return row


def test_calls_are_those_of_a_second(tmp_path: Path) -> None:
    seen = picture(tmp_path, *(run(1e6 + 1e4 * each, 1e3, each) for each in range(100)))
    row = only(seen)
    assert (row.network, row.device, row.priority) == ("digits", "cpu", "high")
    assert row.calls == row.completed == pytest.approx(100 / 0.991)
    assert row.missed == row.refused == row.failed == row.cancelled == 0
    assert row.run_median_s == row.run_p99_s == pytest.approx(1e-3)
    assert row.queue_p99_s == pytest.approx(5e-6)
    assert seen.busy == pytest.approx(0.1 / 0.991)


def test_what_a_trace_does_not_tell_is_a_dash(tmp_path: Path) -> None:
    seen = picture(tmp_path, run(0, 10, None), run(100, 10, None))
    row = only(seen)
    assert row.priority == ""
    assert row.in_flight is row.completed is row.missed is row.queue_p99_s is None
    assert (seen.queued, seen.running, seen.pool_bytes) == (None, None, None)
    lines = as_text("it", seen).splitlines()
    assert "- running; waiting: -" in lines[1]
    assert lines[1].endswith("pools -")
    assert lines[-1].split()[:5] == ["digits", "-", "18182", "-", "-"]


def test_a_preempted_call_is_one_call(tmp_path: Path) -> None:
    seen = picture(tmp_path, run(0, 100, finished=False), run(500, 200), run(900, 100, 2))
    row = only(seen)
    assert row.calls == pytest.approx(2e3)
    assert row.run_p99_s == pytest.approx(300e-6)
    assert seen.preemptions == pytest.approx(1e3)


@pytest.mark.parametrize(
    "events",
    [
        pytest.param([error(500, "MissedDeadlineTransient")], id="never began"),
        pytest.param([run(0, 900), error(500, "MissedDeadlineTransient")], id="while it ran"),
        pytest.param([run(0, 500), error(501, "MissedDeadlineTransient", active=500)], id="late"),
        pytest.param(
            [run(0, 90, finished=False), error(500, "MissedDeadlineTransient", active=90)],
            id="after a preemption",
        ),
    ],
)
def test_a_missed_call_is_one_call_however_it_missed(
    tmp_path: Path, events: list[dict[str, Any]]
) -> None:
    row = only(picture(tmp_path, *events, run(1000, 1000, 2)))
    assert row.missed == row.completed
    assert row.calls == pytest.approx(2 * (row.missed or 0))


def test_another_call_may_have_the_number_of_one_that_ended(tmp_path: Path) -> None:
    events = [run(0, 100), error(500, "MissedDeadlinePersistent"), run(900, 100)]
    row = only(picture(tmp_path, *events))
    assert (row.calls, row.completed, row.missed) == pytest.approx((3e3, 2e3, 1e3))


@pytest.mark.parametrize(
    ("kind", "outcome"),
    [
        ("MissedDeadlineTransient", "missed"),
        ("ResourceExhaustedTransient", "refused"),
        ("Cancelled", "cancelled"),
        ("DeviceDied", "failed"),
    ],
)
def test_errors_are_outcomes(tmp_path: Path, kind: str, outcome: str) -> None:
    row = only(picture(tmp_path, run(0, 1000), error(500, kind, 2)))
    assert getattr(row, outcome) == pytest.approx(1e3)


def test_processes_of_drivers_are_named(tmp_path: Path) -> None:
    named = {"ph": "M", "name": "process_name", "pid": 77, "args": {"name": "service of cpu"}}
    other = {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "nnasync"}}
    seen = picture(tmp_path, named, other, run(0, 10))
    assert seen.devices == (DeviceRow("cpu", 77),)
    assert "cpu, process 77" in as_text("it", seen)


def test_an_empty_trace_is_an_empty_picture(tmp_path: Path) -> None:
    seen = picture(tmp_path)
    assert (seen.networks, seen.busy) == ((), 0)
    assert "0.00 cores busy" in as_text("it", seen)


@pytest.mark.anyio
async def test_a_real_trace_tells_high_and_low(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    timeline, path = Timeline(), tmp_path / "trace.json"
    options = nn.Options(inline_budget_us=0, cores=1)
    async with rigs.runtime(options=options) as rt:
        rt.tracer.add(timeline)
        for priority in (nn.Priority.HIGH, nn.Priority.LOW):
            net = await rt.compile(rigs.doubler(), priority=priority)
            for _ in range(5):
                await net(rigs.ROW)
            await net.aclose()
        await rigs.free(rt)
    write_trace(path, timeline.records)
    seen = recorded(path)
    assert [row.priority for row in seen.networks] == ["high", "low"]
    for row in seen.networks:
        assert row.device == rigs.REFERENCE
        assert row.calls == row.completed
        assert row.calls > 0
        assert row.run_median_s is not None
    assert main(["top", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == str(path)
    assert max(map(len, lines[1:])) <= 100
    assert main(["top", str(path), "--json"]) == 0
    told = msgspec.json.decode(capsys.readouterr().out)[str(path)]
    assert told["pool_bytes"] is None


WRONG = [
    *("", "[]", "[" * 100_000, '{"traceEvents": 3}', '{"traceEvents": [{"ph": 1}]}'),
    '{"traceEvents": [{"ph": "X", "ts": 1e300, "dur": 1}]}',
    '{"traceEvents": [{"ph": "X", "cat": "driver,execution", "args": [1]}]}',
    '{"traceEvents": [{"ph": "X", "cat": "driver,execution", "args": {"task": {}}}]}',
    '{"traceEvents": [{"ph": "X", "cat": "driver,execution", "args": ' + "[" * 100_000 + "]}",
    '{"traceEvents": [{"ph": "i", "cat": "runtime,unspecified", "args": {"us_active": 1e99}}]}',
]


@pytest.mark.parametrize("text", WRONG, ids=range(len(WRONG)))
def test_what_is_no_trace_is_told(text: str, tmp_path: Path) -> None:
    path = tmp_path / "junk.json"
    path.write_text(text)
    with pytest.raises(InvalidArgument, match=r"junk\.json is no trace"):
        recorded(path)


def test_a_file_that_is_too_large_is_not_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "huge.json"
    with path.open("wb") as file:
        file.truncate(2**30 + 1)
    assert main(["top", str(path)]) == 1
    assert "larger than 1024 MiB" in capsys.readouterr().err
    assert main(["top", str(tmp_path / "missing.json")]) == 1
    assert main(["top", str(path), "--url", "http://127.0.0.1:1/metrics"]) == 1
    assert "give one of them" in capsys.readouterr().err
