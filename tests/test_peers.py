"""benchmarks/peers: conversions that change no result, limits, tables, children, the plot."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnasync as nn
from benchmarks._rounds import Quiet
from benchmarks.peers import children
from benchmarks.peers.awaited import factor_of
from benchmarks.peers.catalog import Entry, catalog, input_arrays
from benchmarks.peers.compute import ALL_CORES, BF16, ONE_CORE, thread_counts
from benchmarks.peers.conversion import NoConversion, to_onnx
from benchmarks.peers.engines import PEERS
from benchmarks.peers.mobilenet import NAME, mobilenet_v1
from benchmarks.peers.plot import draw
from benchmarks.peers.ratios import Ratio, has_matrix_units, limit_of, ratios_of
from benchmarks.peers.section import Context, Progress, mark, number
from benchmarks.peers.timing import called_us, geometric_mean, middle
from nnasync.hal import Array
from tests.rigs import counter, doubler

ROOT = Path(__file__).resolve().parents[1]
REFERENCE = "nnasync-reference"
UINT8 = nn.OperandType.TENSOR_QUANT8_ASYMM


def by_reference(model: nn.Model) -> Array:
    """What the reference device computes for the model's benchmark inputs."""

    async def main() -> Array:
        async with nn.open_runtime(devices=[REFERENCE]) as rt:
            net = await rt.compile(model)
            result: Array = await net(*input_arrays(model))
            return result

    return nn.run(main)


def by_onnxruntime(model: nn.Model) -> Array:
    """What ONNX Runtime computes for the conversion of the model."""
    package = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    session = package.InferenceSession(to_onnx(model), providers=["CPUExecutionProvider"])
    (x,) = input_arrays(model)
    first = x.transpose(0, 3, 1, 2) if x.ndim == 4 else x
    result: Array = session.run(None, {"input": np.ascontiguousarray(first)})[0]
    return result


def network(*, quantized: bool) -> nn.Model:
    """Convolutions with SAME padding that is uneven, a pool, a dense layer, a softmax."""
    generator = np.random.default_rng(3)
    builder = nn.ModelBuilder("network")
    scaled: dict[str, Any] = {"scale": 0.05, "zero_point": 120} if quantized else {}
    result: dict[str, Any] = {"scale": 0.1, "zero_point": 30} if quantized else {}

    def weights(*shape: int) -> Any:
        values = generator.normal(size=shape).astype(np.float32)
        if not quantized:
            return values
        codes = np.clip(np.rint(values * 30 + 128), 0, 255).astype(np.uint8)
        return builder.constant(codes, scale=0.02, zero_point=128)

    def bias(size: int) -> Array:
        return np.arange(size, dtype=np.int32 if quantized else np.float32)

    options = {"type": UINT8, **scaled} if quantized else {}
    x = builder.input("x", (1, 8, 8, 3), **options)
    y = builder.conv_2d(x, weights(8, 3, 3, 3), bias(8), stride=2, activation="relu6", **result)
    y = builder.depthwise_conv_2d(y, weights(1, 3, 3, 8), bias(8), activation="relu", **result)
    y = builder.average_pool_2d(y, (4, 4))
    y = builder.reshape(y, (1, 8))
    y = builder.fully_connected(y, weights(5, 8), bias(5), **result)
    builder.output("y", builder.softmax(y))
    return builder.build()


def products() -> nn.Model:
    """Matrix products that take longer than what runs on the thread of the loop."""
    builder = nn.ModelBuilder("products")
    y = builder.input("x", (64, 1024))
    for _ in range(4):
        y = builder.fully_connected(
            y, np.full((1024, 1024), 1e-3, np.float32), np.zeros(1024, np.float32)
        )
    builder.output("y", y)
    return builder.build()


# -- conversion


def test_conversion_of_floats() -> None:
    model = network(quantized=False)
    np.testing.assert_allclose(by_onnxruntime(model), by_reference(model), atol=1e-6)


def test_conversion_of_quantized_values() -> None:
    model = network(quantized=True)
    found, expected = by_onnxruntime(model), by_reference(model)
    assert found.dtype == expected.dtype == np.uint8
    assert np.abs(found.astype(int) - expected.astype(int)).max() <= 1


@pytest.mark.parametrize("model", [counter(), None], ids=["state", "maximum pool"])
def test_what_has_no_conversion_is_named(model: nn.Model | None) -> None:
    if model is None:
        builder = nn.ModelBuilder("pool")
        x = builder.input("x", (1, 4, 4, 1))
        builder.output("y", builder.max_pool_2d(x, (2, 2)))
        with pytest.raises(NoConversion, match="MAX_POOL_2D"):
            to_onnx(builder.build())
    else:
        with pytest.raises(NoConversion):
            to_onnx(model)


def test_mobilenet_is_a_file_that_engines_read(tmp_path: Path) -> None:
    package = pytest.importorskip("ai_edge_litert.interpreter")
    path = tmp_path / "small.tflite"
    path.write_bytes(mobilenet_v1(image=64, width=0.25))
    model = nn.load(path)
    assert len(model.main.operations) == 31
    interpreter = package.Interpreter(str(path), num_threads=1)
    interpreter.allocate_tensors()
    (x,) = input_arrays(model)
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], x)
    interpreter.invoke()
    found = interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
    np.testing.assert_allclose(found, by_reference(model), atol=1e-6)
    np.testing.assert_allclose(by_onnxruntime(model), found, atol=1e-6)


def test_catalog_sorts_by_size_and_builds_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "large.tflite").write_bytes(b"x" * 100)
    (tmp_path / "small.tflite").write_bytes(b"x")
    assert [entry.name for entry in catalog(tmp_path, tmp_path, "*a[lr]*e")] == ["large"]
    assert [entry.name for entry in catalog(tmp_path, tmp_path, "*l*e")] == ["large"]
    pytest.importorskip("ai_edge_litert")
    cache = tmp_path / "cache"
    cache.mkdir()
    assert [entry.name for entry in catalog(tmp_path, cache)] == ["small", "large", NAME]


# -- limits and ratios


@pytest.mark.parametrize(
    ("name", "budget", "peer_us", "matrix_units", "limit"),
    [
        ("hello_world_float", ONE_CORE, 2.0, False, 5.0),
        ("mobilenet_v1_0.25_128", ALL_CORES, 300.0, True, 1.05),
        ("mobilenet_v2_1.0_224_quant", ALL_CORES, 5000.0, True, 0.5),
        ("mobilenet_v2_1.0_224_quant", ALL_CORES, 5000.0, False, 0.9),
        ("mobilenet_v3-small_224_1.0_uint8", ONE_CORE, 2000.0, True, 0.7),
        (NAME, BF16, 7000.0, True, 0.3),
    ],
)
def test_limits(name: str, budget: str, peer_us: float, matrix_units: bool, limit: float) -> None:
    entry = Entry(name, "")
    assert limit_of(entry, budget, peer_us, matrix_units=matrix_units) == pytest.approx(limit)


def test_ratio_is_to_the_best_peer_of_the_same_budget() -> None:
    samples = {
        "LiteRT|1": [{"us": 300.0, "with_copies_us": 310.0}] * 3,
        "LiteRT|2": [{"us": 200.0, "with_copies_us": 210.0}] * 3,
        "OpenVINO|1": [{"us": us, "with_copies_us": us} for us in (900.0, 250.0, 260.0)],
        f"nnasync|{ONE_CORE}": [{"us": 130.0}],
        f"nnasync|{ALL_CORES}": [{"us": 100.0}],
    }
    verdict = {"difference": 2.0, "in_steps": True, "same_top": False}
    about = {"devices": "a+b", "lowering": "fast"}
    figures = {
        "samples": samples,
        "agreement": {f"nnasync, {ONE_CORE}": verdict},
        "nnasync": {ONE_CORE: about, ALL_CORES: about},
    }
    one, every = ratios_of(Entry("some", ""), figures, matrix_units=False)
    assert (one.peer, one.peer_us, one.ratio) == ("OpenVINO 1", 260.0, 0.5)
    assert (every.peer, every.ratio, every.limit) == ("LiteRT 2", 0.5, 1.05)
    assert (one.difference, every.difference) == ("2 steps, other top", "-")
    assert one.runs_on == "a+b fast"


def test_nothing_to_compare_gives_no_row() -> None:
    figures = {"samples": {f"nnasync|{ONE_CORE}": [{"us": 1.0}]}, "agreement": {}, "nnasync": {}}
    assert ratios_of(Entry("some", ""), figures, matrix_units=False) == []


def test_matrix_units(tmp_path: Path) -> None:
    facts = tmp_path / "cpuinfo"
    assert not has_matrix_units(facts)
    facts.write_text("flags : fpu avx512_bf16\n", encoding="utf-8")
    assert not has_matrix_units(facts)
    facts.write_text("flags : fpu amx_tile amx_int8\n", encoding="utf-8")
    assert has_matrix_units(facts)


def test_factor_by_size() -> None:
    assert [factor_of(us) for us in (1.0, 100.0, 300.0, 5000.0)] == [5.0, 2.5, 1.25, 1.0]
    assert factor_of(None) is None


def test_statistics() -> None:
    assert geometric_mean([0.5, 2.0, 1.0]) == pytest.approx(1.0)
    assert middle([3.0, 1.0, 2.0]) == 2.0
    assert thread_counts()[0] == 1
    assert thread_counts() == sorted(set(thread_counts()))
    calls: list[int] = []
    assert len(called_us(lambda: calls.append(1), 0)) == 5
    assert len(calls) == 8


def test_words_of_tables() -> None:
    assert [number(value, 2) for value in (None, float("nan"), 1.005)] == ["-", "-", "1.00"]
    assert [mark(1.0, 1.0), mark(1.1, 1.0), mark(None, 1.0)] == ["yes", "no", ""]
    assert [mark(1.0, 1.2, at_least=True), mark(1.3, 1.2, at_least=True)] == ["no", "yes"]


def test_how_quiet_the_machine_was(tmp_path: Path) -> None:
    facts = tmp_path / "stat"
    assert "not known" in Quiet(facts).told()
    facts.write_text("cpu  0 0 0 0 0 0 0 0 0 0\n", encoding="utf-8")
    quiet = Quiet(facts)
    assert "too short" in quiet.told()
    facts.write_text("cpu  0 0 0 990000 0 0 0 10000 0 0\n", encoding="utf-8")
    assert "other processes 0.0 %, taken by a hypervisor 1.0 %" in quiet.told()
    facts.write_text("cpu  500000 0 0 500000 0 0 0 0 0 0\n", encoding="utf-8")
    assert "too much to trust" in quiet.told()


# -- children


@pytest.fixture
def task(tmp_path: Path) -> dict[str, Any]:
    path = tmp_path / "doubler.nnm"
    nn.save(doubler(), path)
    return {
        "name": "doubler",
        "path": str(path),
        "rounds": 1,
        "seconds": 0.001,
        "skip": [],
        "devices": [REFERENCE],
    }


def test_child_answers(task: dict[str, Any]) -> None:
    told: list[str] = []
    outcome = children.measure("first", task, timeout_s=60, tell=told.append)
    assert outcome.failure == ""
    assert outcome.figures is not None
    (found,) = outcome.figures[REFERENCE]
    assert found["first_us"] > 0
    assert told == [REFERENCE]


def test_child_that_fails_says_why(task: dict[str, Any]) -> None:
    del task["path"]
    outcome = children.measure("first", task, timeout_s=60, tell=lambda doing: None)
    assert outcome.figures is None
    assert "KeyError" in outcome.failure


def test_child_that_takes_too_long_is_ended(task: dict[str, Any]) -> None:
    outcome = children.measure("first", task, timeout_s=0, tell=lambda doing: None)
    assert outcome.failure == "did not end within 0 s"


SECTIONS: dict[str, tuple[dict[str, Any], set[str]]] = {
    "awaited": ({"crowded": True}, {"turns", "refused", "bare_us"}),
    "calls": ({}, {"bursts", "memory", "refused"}),
    "compute": ({"skip": {}, "bf16": True}, {"samples", "agreement", "nnasync", "refused"}),
    "idle": ({"idle_s": 0.01}, {"alone_us", "among_us", "cpu_percent", "python_threads"}),
}


@pytest.mark.bench
@pytest.mark.parametrize("section", list(SECTIONS))
def test_sections_on_a_model_that_no_peer_reads(section: str, task: dict[str, Any]) -> None:
    more, names = SECTIONS[section]
    task |= {"paths": {"doubler": task["path"]}, **more}
    outcome = children.measure(section, task, timeout_s=60, tell=lambda doing: None)
    assert outcome.failure == ""
    assert outcome.figures is not None
    assert set(outcome.figures) == names
    if section == "compute":
        budgets = {f"nnasync|{budget}" for budget in (ONE_CORE, ALL_CORES, BF16)}
        assert budgets <= set(outcome.figures["samples"])
        assert {"LiteRT", "OpenVINO"} <= set(outcome.figures["refused"]) <= set(PEERS)
    if section == "awaited":
        turns = outcome.figures["turns"]["nnasync"]
        assert min(turns[flight][0]["per_second"] for flight in ("1", "8")) > 0


@pytest.mark.bench
@pytest.mark.slow
def test_qos_counts_every_release(task: dict[str, Any], tmp_path: Path) -> None:
    heavy = tmp_path / "heavy.nnm"
    nn.save(products(), heavy)
    task |= {"high": task["path"], "low": str(heavy), "quantum_ms": None, "seconds": 0.1}
    outcome = children.measure(
        "qos", {**task, "contestant": "nnasync"}, timeout_s=60, tell=lambda doing: None
    )
    found = outcome.figures
    assert found is not None, outcome.failure
    assert 0 <= found["within_1ms"] <= found["within_2ms"] <= found["within_10ms"] <= 100
    assert found["p50_ms"] <= found["p99_ms"] <= found["worst_ms"]
    assert found["low_per_s"] > 0


def test_qos_names_a_peer_that_refuses(task: dict[str, Any]) -> None:
    pytest.importorskip("ai_edge_litert")
    task |= {"high": task["path"], "low": task["path"], "quantum_ms": None, "seconds": 0.01}
    outcome = children.measure(
        "qos", {**task, "contestant": "OpenVINO, two queues"}, timeout_s=60, tell=lambda doing: None
    )
    assert outcome.figures is not None, outcome.failure
    assert outcome.figures["refused"]


def test_context_stops_when_the_time_is_over() -> None:
    context = Context([Entry("a", "a.tflite")], 1, Progress())
    assert context.is_over()
    context.begin(3600)
    assert not context.is_over()
    assert context.entry("a") is not None
    assert context.entry("b") is None


# -- the whole


def test_plot(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")

    def row(model: str, budget: str, peer_us: float, ratio: float) -> Ratio:
        ours = peer_us * ratio
        return Ratio(model, budget, "LiteRT 2", peer_us, peer_us, ours, ratio, 1.05, "", "")

    rows = [
        row(model, budget, peer_us, ratio)
        for model, peer_us, ratio in (("tiny", 0.5, 10.0), ("slow", 90.0, 3.0), ("fast", 900, 0.3))
        for budget in (ONE_CORE, ALL_CORES, BF16)
    ]
    for name, some in {"all": rows, "tiny": rows[:2], "fast": rows[6:8]}.items():
        path = tmp_path / f"{name}.png"
        draw(some, path, machine="2 cores")
        assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.bench
@pytest.mark.slow
def test_command(shared: Path, tmp_path: Path) -> None:
    environment = dict(os.environ, NNASYNC_MODELS=str(shared / "models"))
    path = tmp_path / "figures.json"
    command = [sys.executable, "-m", "benchmarks.peers", "--rounds", "1", "--json", str(path)]
    command += ["--models", "hello_world_float", "--device", REFERENCE]
    command += ["--only", "compute", "--only", "first"]
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "## Compute" in done.stdout
    found = json.loads(path.read_text(encoding="utf-8"))["sections"]
    assert set(found) == {"Compute", "First execution"}
    samples = found["Compute"]["models"]["hello_world_float"]["samples"]
    assert samples[f"nnasync|{ONE_CORE}"][0]["us"] > 0
    for ratio in found["Compute"]["ratios"]:
        assert ratio["ratio"] == pytest.approx(ratio["nnasync_us"] / ratio["peer_us"])
