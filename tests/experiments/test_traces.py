"""Traces from files: rows, dates, Parquet, and what is wrong in them."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import numpy as np
import pytest

from nnasync.errors import ExperimentError
from nnasync.experiments import (
    Constant,
    Recorded,
    Stream,
    Trace,
    Workload,
    arrival_blocks,
    request_blocks,
    simulate,
)
from nnasync.experiments.traces import TraceColumns, read_trace

ROWS = ["time,stream,cost"] + [f"{i * 0.5 + 7},{'ab'[i % 2]},{i % 5 + 0.25}" for i in range(10_000)]


def written(folder: Path, *lines: str, name: str = "trace.csv") -> str:
    path = folder / name
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


def requests(trace: Trace) -> list[tuple[int, int]]:
    blocks = request_blocks(Stream(name="s", arrivals=trace, cost=Recorded()), 0)
    return [pair for times, costs in blocks for pair in zip(times, costs, strict=True)]


def test_rows_of_a_stream_are_its_requests_from_the_first_row_on(tmp_path: Path) -> None:
    found = requests(Trace(written(tmp_path, *ROWS), stream="b"))
    rows = range(1, 10_000, 2)
    assert found == [(i * 500_000_000, int((i % 5 + 0.25) * 1e6)) for i in rows]


def test_without_a_stream_all_rows_count_and_need_no_such_column(tmp_path: Path) -> None:
    path = written(tmp_path, "cost,time", "2,0", "3,1.5")
    assert requests(Trace(path, speed=2.0)) == [(0, 2_000_000), (750_000_000, 3_000_000)]
    assert requests(Trace(path, time_unit_ms=1.0, cost_unit_ms=10.0))[1] == (1_500_000, 30_000_000)
    assert Trace(path).mean_rate_hz == pytest.approx(1 / 1.5)


def test_times_may_be_dates_in_columns_of_other_names(tmp_path: Path) -> None:
    lines = ["TIMESTAMP,tokens", "2023-11-16 18:17:03.9799600,10", "2023-11-16 18:17:04.0319601,8"]
    trace = Trace(
        written(tmp_path, *lines), time_column="TIMESTAMP", cost_column="tokens", cost_unit_ms=20.0
    )
    (start, _), (second, cost) = requests(trace)
    assert (start, cost) == (0, 160_000_000)
    assert second == pytest.approx(52_000_100, abs=500)


def test_parquet_gives_the_same_requests(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="the extra parquet is not installed")
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = [line.split(",") for line in ROWS[1:]]
    columns = {
        "time": [float(row[0]) for row in rows],
        "stream": [row[1] for row in rows],
        "cost": [float(row[2]) for row in rows],
    }
    path = str(tmp_path / "trace.parquet")
    parquet.write_table(pyarrow.table(columns), path)
    as_text = Trace(written(tmp_path, *ROWS), stream="a")
    assert requests(Trace(path, stream="a")) == requests(as_text)
    with pytest.raises(ExperimentError, match="has no column when; it has time, stream, cost"):
        requests(Trace(path, time_column="when"))
    broken = written(tmp_path, "no parquet", name="broken.parquet")
    with pytest.raises(ExperimentError, match=r"broken\.parquet is no Parquet file"):
        requests(Trace(broken))


def test_a_long_trace_is_read_as_it_is_needed(tmp_path: Path) -> None:
    path = written(tmp_path, *ROWS, "0,a,1")
    stream = Stream(name="s", arrivals=Trace(path), cost=Recorded())
    next(arrival_blocks(stream, 0))
    with pytest.raises(ExperimentError, match="row 10001, time: "):
        list(arrival_blocks(stream, 0))


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        (["when,cost", "1,2"], "has no column time; it has when, cost"),
        ([""], "has no column time; it has none"),
        (["time,cost", "1,2", "0.5,2"], "row 2, time: .* is before the row above"),
        (["time,cost", "1,2", "x,2"], "row 2, time: 'x' is no number"),
        (["time,cost", "nan,2"], "row 1, time"),
        (["time,cost", "1,2", "2,-1"], "row 2, cost: -1 is not a cost: it must be 0 or more"),
        (["time,cost", "1,2", "2,inf"], "row 2, cost: inf"),
        (["time,cost", "1,much"], "row 1, cost: 'much' is not a number"),
        (["time,cost", "1,2", "2"], "row 2: 1 values, not 2"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(lines: list[str], text: str, tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match=text):
        requests(Trace(written(tmp_path, *lines)))


def test_a_file_that_is_not_there_or_no_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match="cannot be read"):
        requests(Trace(str(tmp_path / "nothing.csv")))
    path = tmp_path / "binary.csv"
    path.write_bytes(b"time,cost\n\xff\xfe,1\n")
    with pytest.raises(ExperimentError, match="cannot be read"):
        requests(Trace(str(path)))


def test_the_traces_of_a_language_model_are_read(shared: Path) -> None:
    path = shared / "traces" / "AzureLLMInferenceTrace_code.csv"
    if not path.is_file():
        pytest.skip("the traces are not beside the checkout")
    trace = Trace(
        str(path), time_column="TIMESTAMP", cost_column="GeneratedTokens", cost_unit_ms=20.0
    )
    found = requests(trace)
    assert len(found) == 8_819
    assert all(before[0] <= after[0] for before, after in itertools.pairwise(found))
    assert np.mean([cost for _, cost in found]) > 0


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        (["0.5", "1.5", "abc"], "row 3, time: 'abc' is no number"),
        (["0.5", "x y"], "row 2, time: 'x y' is no number"),
        (["0.5", "nan"], "row 2, time: nan is no time"),
        (["2026-01-01", "NaT"], "row 2, time: 'NaT' is no date"),
        (["1500-01-01"], "row 1, time: '1500-01-01' is no date"),
    ],
)
def test_the_row_that_is_wrong_is_named(tmp_path: Path, lines: list[str], why: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("\n".join(["time", *lines]) + "\n", encoding="utf-8")
    with pytest.raises(ExperimentError, match=re.escape(why)):
        list(read_trace(str(path), TraceColumns()))


def test_marks_of_spreadsheets_and_zones_are_understood(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    rows = ["time", "2026-01-01T12:00:00+01:00", "2026-01-01T11:00:02Z"]
    path.write_text("\ufeff" + "\n".join(rows) + "\n", encoding="utf-8")
    (block,) = read_trace(str(path), TraceColumns())
    assert block.times_ns.tolist() == [0, 2_000_000_000]


def test_times_beyond_measure_stay_in_order(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("time\n0\n1e12\n1e15\n")
    (block,) = read_trace(str(path), TraceColumns())
    assert (np.diff(block.times_ns) >= 0).all()


def test_a_path_that_is_none_is_told() -> None:
    with pytest.raises(ExperimentError, match="cannot be read"):
        list(read_trace("a\0b.csv", TraceColumns()))


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        (["0,b", "1,a"], "has no rows of the stream 'c'; there is 'a', 'b'"),
        ([f"{i},s{i:02}" for i in range(30)], "'s19' and more"),
        ([], "has no rows"),
    ],
)
def test_a_stream_without_rows_is_told_with_those_that_have(
    tmp_path: Path, rows: list[str], told: str
) -> None:
    path = written(tmp_path, "time,stream", *rows)
    stream = Stream(name="s", arrivals=Trace(path, stream="c"), cost=Constant(1.0))
    with pytest.raises(ExperimentError, match=told):
        list(arrival_blocks(stream, 0))
    with pytest.raises(ExperimentError, match=told):
        simulate(Workload((stream,)))
