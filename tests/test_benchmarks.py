"""The benchmark scripts still run: each with tiny rounds, its figures read back."""

from __future__ import annotations

import importlib
import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nnasync.cli import demo_data
from tests.importers.tflite_files import Op, floats, tflite_file

ROOT = Path(__file__).resolve().parent.parent
pytestmark = pytest.mark.bench


def run(script: str, *arguments: str, models: Path | None = None) -> str:
    """Standard output of a benchmark, run as a stranger would."""
    environment = dict(os.environ, PYTHONPATH=str(ROOT))
    if models is not None:
        environment["NNASYNC_MODELS"] = str(models)
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / script, *arguments],
        capture_output=True,
        text=True,
        env=environment,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def numbers(figures: Any) -> Iterator[float]:
    """All numbers in a tree of lists and objects."""
    if isinstance(figures, dict | list):
        for part in figures.values() if isinstance(figures, dict) else figures:
            yield from numbers(part)
    elif isinstance(figures, int | float):
        yield figures


def figures(path: Path) -> dict[str, Any]:
    """What a benchmark wrote, seen to be numbers."""
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    values = list(numbers(found))
    assert values
    assert all(math.isfinite(value) for value in values)
    return found


@pytest.mark.parametrize(
    "script",
    [
        "borders",
        "call_cost",
        "connections",
        "deadlines",
        "graphs",
        "in_flight",
        "instructions",
        "live",
        "loop_lag",
        "operations",
        "serving",
        "serving_grpc",
        "start_up",
        "vision",
        "web",
    ],
)
def test_help_says_what_is_measured(
    script: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [f"{script}.py", "--help"])
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(f"benchmarks.{script}").main()
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert "--rounds" in text
    assert "--json" in text


@pytest.mark.slow
def test_start_up(tmp_path: Path) -> None:
    text = run("start_up.py", "--rounds", "1", "--json", str(tmp_path / "figures"))
    assert "all names of nnasync" in text
    found = figures(tmp_path / "figures")
    assert len(found["milliseconds"]) == 5
    assert set(found["added_ms"]) == {"import numpy, nnasync", "all names of nnasync"}


def test_call_cost(shared: Path, tmp_path: Path) -> None:
    arguments = ("--rounds", "1", "--calls", "16", "--json", str(tmp_path / "figures"))
    text = run("call_cost.py", *arguments, models=shared / "models")
    found = figures(tmp_path / "figures")
    assert all(values[0] > 0 for values in found["microseconds"].values())
    assert "chain of 8, behind a gate" in text


@pytest.mark.parametrize(
    "contestant",
    ["bare plan", "await net(x)", "chain of 8 launches", "4 calls at once, on workers"],
)
def test_a_child_of_instructions_counts_calls_of_functions(shared: Path, contestant: str) -> None:
    which = ("--child", contestant, "--calls", "8", "--profiled")
    counted = run("instructions.py", *which, models=shared / "models")
    assert int(counted) >= 8


def test_web(tmp_path: Path) -> None:
    sizes = ("--rounds", "1", "--requests", "5", "--calls", "2")
    text = run("web.py", *sizes, "--json", str(tmp_path / "figures"))
    assert "in an executor" in text
    assert "calls/s joined/alone" in text
    assert len(figures(tmp_path / "figures")["batching"]) == 3


def test_serving_over_grpc(tmp_path: Path) -> None:
    sizes = ("--rounds", "1", "--requests", "10")
    text = run("serving_grpc.py", *sizes, "--json", str(tmp_path / "figures"))
    assert "in shared memory" in text
    assert all(values[0] > 0 for values in figures(tmp_path / "figures")["cpu_us"].values())


@pytest.mark.slow
def test_connections(tmp_path: Path) -> None:
    sizes = ("--connections", "20", "--minutes", "2", "--interval", "2")
    text = run("connections.py", *sizes, "--json", str(tmp_path / "figures"))
    assert "hung up in a request" in text
    assert len(figures(tmp_path / "figures")["rests"]) == 3


@pytest.mark.slow
def test_live(tmp_path: Path) -> None:
    arguments = ("--rounds", "1", "--seconds", "1", "--json", str(tmp_path / "figures"))
    assert "2 clients of the LOW load" in run("live.py", *arguments)
    found = figures(tmp_path / "figures")
    for name, (figure,) in found.items():
        assert figure["hops"] > 0
        assert 0 <= figure["heard in time %"] <= 100
        if name != "sound alone":
            assert 0 < figure["p50 ms"] <= figure["p95 ms"] <= figure["worst ms"]
    assert len(found) == 3


@pytest.mark.slow
def test_loop_lag(tmp_path: Path) -> None:
    arguments = ("--rounds", "1", "--seconds", "0.02", "--json", str(tmp_path / "figures"))
    run("loop_lag.py", *arguments)
    cells = figures(tmp_path / "figures")["cells"]
    assert len(cells) == 12
    assert all(cell["p50"] <= cell["p99"] <= cell["worst"] for cell in cells)
    assert all(cell["runs_s"] == 0 for cell in cells if cell["load"] == "idle")


@pytest.mark.slow
def test_lock_holds(shared: Path, tmp_path: Path) -> None:
    model = str(shared / "models" / "hello_world_int8.tflite")
    arguments = ("--rounds", "1", "--model", model, "--json", str(tmp_path / "figures"))
    assert "let go" in run("lock_holds.py", *arguments)


def test_compile_lag(tmp_path: Path) -> None:
    what = ("--model", str(demo_data.path("words.nnm")), "--devices", "nnasync-reference")
    arguments = ("--rounds", "1", *what, "--json", str(tmp_path / "figures"))
    assert "second compilation" in run("compile_lag.py", *arguments)
    found = figures(tmp_path / "figures")
    for (figure,) in found.values():
        assert figure["p50"] <= figure["p99"] <= figure["worst"]
        assert figure["took_s"] > 0


@pytest.mark.slow
def test_compile_floor(tmp_path: Path) -> None:
    path = tmp_path / "net.tflite"
    path.write_bytes(tflite_file([floats(1, 8)] * 2, [Op("TANH", (0,), (1,))], [0], [1]))
    what = ("--model", str(path), "--devices", "litert-cpu")
    arguments = ("--rounds", "1", *what, "--json", str(tmp_path / "figures"))
    assert "file judged" in run("compile_floor.py", *arguments)
    assert len(figures(tmp_path / "figures")["net.tflite"]) == 6


@pytest.mark.slow
def test_compile(tmp_path: Path) -> None:
    path = tmp_path / "net.tflite"
    path.write_bytes(tflite_file([floats(1, 8)] * 2, [Op("TANH", (0,), (1,))], [0], [1]))
    who = ("--only", "nnasync", "LiteRT", "--devices", "litert-cpu")
    arguments = ("--rounds", "1", "--model", str(path), *who, "--json", str(tmp_path / "figures"))
    assert "again ms" in run("compile.py", *arguments)
    for [figure] in figures(tmp_path / "figures")["net.tflite"].values():
        assert 0 < figure["again_ms"] < figure["start_ms"]


def test_operations(tmp_path: Path) -> None:
    arguments = ("--rounds", "1", "--only", "64x64x8", "--json", str(tmp_path / "figures"))
    text = run("operations.py", *arguments)
    found = figures(tmp_path / "figures")
    assert [name.split()[0] for name in found] == ["CONV_2D", "DEPTHWISE_CONV_2D"]
    assert all(values[0] > 0 for times in found.values() for values in times.values())
    assert "int8 per channel" in text


def test_borders(shared: Path, tmp_path: Path) -> None:
    arguments = ("--rounds", "1", "--calls", "1", "--json", str(tmp_path / "figures"))
    text = run("borders.py", *arguments, models=shared / "models")
    found = figures(tmp_path / "figures")
    assert all(values[0] > 0 for values in found["microseconds"].values())
    assert "102 empty steps" in text


def test_scheduling(tmp_path: Path) -> None:
    arguments = ("--rounds", "1", "--most", "1000", "--json", str(tmp_path / "figures"))
    text = run("scheduling.py", *arguments)
    assert "a VLOG line that is off" in text
    found = figures(tmp_path / "figures")["microseconds"]
    assert len(found) == 6
    assert all(set(by_size) == {"100", "1000"} for by_size in found.values())
    assert all(values[0] > 0 for by_size in found.values() for values in by_size.values())


def test_experiments(tmp_path: Path) -> None:
    pytest.importorskip("simpy", reason="it is of the development group")
    sizes = ("--rounds", "1", "--requests", "500", "--long", "1000")
    text = run("experiments.py", *sizes, "--json", str(tmp_path / "figures"))
    assert "MB more than a tenth" in text
    found = figures(tmp_path / "figures")
    assert len(found["rates"]) == 8
    assert all(rate > 0 for (rate,) in found["rates"].values())


def test_serving(tmp_path: Path) -> None:
    pytest.importorskip("httptools", reason="the extra serve is not installed")
    arguments = ("--rounds", "2", "--requests", "80", "--json", str(tmp_path / "figures"))
    assert "inference, JSON" in run("serving.py", *arguments)
    # Processor time is counted in ticks of the system, of which few requests take none.
    found = figures(tmp_path / "figures")["cpu_us"]
    assert all(sum(values) > 0 for values in found.values())


def test_deadlines(tmp_path: Path) -> None:
    arguments = ("--rounds", "2", "--ahead-ms", "20", "--json", str(tmp_path / "figures"))
    text = run("deadlines.py", *arguments)
    assert "within 2 ms" in text
    found = figures(tmp_path / "figures")["late_us"]
    assert set(found) == {"asyncio", "uvloop", "trio"}
    for paths in found.values():
        assert set(paths) == {"call", "launch", "duration", "burst", "prepare"}
        assert all(len(late) == 2 and min(late) >= 0 for late in paths.values())


def test_in_flight(shared: Path, tmp_path: Path) -> None:
    which = ("--only", "micro_speech_quantized", "--clients", "2", "--peers", "LiteRT, run_in")
    arguments = ("--rounds", "2", "--seconds", "0.02", "--json", str(tmp_path / "figures"))
    text = run("in_flight.py", *which, *arguments, models=shared / "models")
    assert "micro_speech_quantized, 2" in text
    turns = figures(tmp_path / "figures")["micro_speech_quantized, 2"]
    assert list(turns) == ["nnasync", "LiteRT, run_in_executor"]
    assert all(each["per_second"] > 0 for each in turns["nnasync"])


def test_compile_says_what_it_does_not_know(tmp_path: Path) -> None:
    for arguments, message in (
        (["--only", "nobody"], "invalid choice: 'nobody'"),
        (["--model", str(tmp_path / "none.tflite")], "there is no file"),
        (["--model", str(tmp_path / "none.txt")], "is no .tflite or .onnx file"),
    ):
        with pytest.raises(AssertionError, match=message):
            run("compile.py", *arguments)


def test_compile_and_drop(tmp_path: Path) -> None:
    counts = ("--cycles", "20", "--collected", "20")
    run("compile_and_drop.py", *counts, "--json", str(tmp_path / "figures"))
    found = figures(tmp_path / "figures")
    assert found["nets"] == 0
    for name in ("closed", "collected"):
        first, *_, last = found[name]["readings"][1:]
        assert last["descriptors"] <= first["descriptors"]
        # Workers are started when they are first needed, which may be late; not one a network.
        assert last["threads"] - first["threads"] < 10


def test_state(shared: Path, tmp_path: Path) -> None:
    arguments = ("--rounds", "1", "--steps", "2", "--device", "nnasync-reference")
    text = run(
        "state.py", *arguments, "--json", str(tmp_path / "figures"), models=shared / "models"
    )
    assert "tts_float, service: net(...), memory domains" in text
    assert "tts_float, service: burst(...), kept by the burst" in text
    found = figures(tmp_path / "figures")
    assert len(found) == 4
    assert all(values[0] > 0 for ways in found.values() for values in ways.values())


@pytest.mark.slow
def test_graphs(tmp_path: Path) -> None:
    pytest.importorskip("av", reason="the extra media is not installed")
    small = ["--rounds", "1", "--items", "100", "--streams", "5", "--seconds", "0.1"]
    small += ["--pictures", "100"]
    clip = ["--size", "320x240", "--frames", "20", "--json", str(tmp_path / "figures")]
    assert "a stage adds" in run("graphs.py", *small, *clip)
    found = figures(tmp_path / "figures")
    assert found["video"]["unaccounted"] == 0
    assert found["memory"]["pictures"] > 0


@pytest.mark.slow
def test_vision(tmp_path: Path) -> None:
    pytest.importorskip("av", reason="the extra media is not installed")
    small = ["--rounds", "1", "--repeats", "2", "--size", "64x48"]
    assert "draw 10 boxes" in run("vision.py", *small, "--json", str(tmp_path / "figures"))
    ways = figures(tmp_path / "figures")["way"]
    copies = {name: each["copies"] for name, each in ways.items()}
    assert {name for name, count in copies.items() if not count} == {
        "array, this process",
        "array, another process",
    }
    assert set(copies.values()) == {0, 1}
