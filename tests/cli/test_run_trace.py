"""`nnasync run --trace` writes a well-formed trace, and `nnasync trace` sums it up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

import nnasync as nn
from nnasync.cli import main
from tests.rigs import doubler
from tests.tracing.events import faults


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "doubler.nnm"
    nn.save(doubler(), path)
    return path


def trace_of(model: Path, *options: str) -> Any:
    path = model.with_name("trace.json")
    main(["run", str(model), "--trace", str(path), "--device", "nnasync-reference", *options])
    return msgspec.json.decode(path.read_bytes())["traceEvents"]


def test_a_run_is_traced(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    events = trace_of(model, "--repeat", "5")
    assert faults(events) == []
    marks = [event["args"]["mark"] for event in events if event["ph"] == "b"]
    for phase in ("PP", "PI", "PC", "PE", "PT"):
        assert any(mark.startswith(f"[NN_LA_{phase}]") for mark in marks), phase
    assert sum(mark.startswith("[NN_LA_PE]") for mark in marks) == 6
    runs = [event for event in events if event["name"] == "doubler on nnasync-reference"]
    assert len([event for event in runs if event["ph"] == "X"]) >= 6
    processes = {e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert processes == {"nnasync", "device nnasync-reference"}
    assert "6 runs" in capsys.readouterr().out


def test_a_trace_is_written_though_the_command_fails(model: Path) -> None:
    assert main(["run", str(model), "--deadline-ms", "-1", "--trace", "unused/no.json"]) == 1
    events = trace_of(model, "--deadline-ms", "-1")
    assert faults(events) == []
    assert any(event["name"].startswith("application: compile") for event in events)


def test_a_trace_is_summed_up(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace_of(model, "--repeat", "5")
    capsys.readouterr()
    path = str(model.with_name("trace.json"))
    assert main(["trace", path]) == 0
    told = capsys.readouterr().out
    assert "application, compilation" in told
    assert "doubler on nnasync-reference" in told
    assert main(["trace", path, "--json"]) == 0
    summed = msgspec.json.decode(capsys.readouterr().out)
    phases = {row["name"]: row for row in summed["layers and phases"]}
    assert phases["application, execution"]["count"] == 6
    for row in phases.values():
        assert 0 < row["median_ns"] <= row["longest_ns"] <= row["total_ns"]


@pytest.mark.parametrize(
    "text", ["", "[]", '{"traceEvents": 3}', '{"traceEvents": [{"ph": 1}]}', "[" * 100_000]
)
def test_what_is_no_trace_is_told(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "junk.json"
    path.write_text(text)
    assert main(["trace", str(path)]) == 1
    assert "is no trace" in capsys.readouterr().err
    assert main(["trace", str(tmp_path / "missing.json")]) == 1
