"""`nnasync bench`."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

import nnasync as nn
from nnasync._core.drivers import DRIVERS
from nnasync.cli import main
from nnasync.cli.bench.contestant import Contestant
from tests.rigs import calculator, doubler

REFERENCE = "nnasync-reference"
SHORT = ("--seconds", "0.01", "--in-flight", "2")


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "doubler.nnm"
    nn.save(doubler(), path)
    return str(path)


def bench(*arguments: str) -> int:
    return main(["bench", *arguments, *SHORT])


def test_table(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(model, "--device", REFERENCE) == 0
    told = capsys.readouterr()
    assert "doubler on " in told.out
    assert "per second, 2 in flight" in told.out
    assert told.out.count(REFERENCE) == 1
    assert told.err == ""


def test_figures(model: str, tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    devices = ("--device", REFERENCE, "--device", "null")
    assert bench(model, *devices, "--threads", "1", "--json", str(path)) == 0
    found = msgspec.json.decode(path.read_bytes())
    assert (found["model"], found["cores"], found["not_run"]) == ("doubler", 1, [])
    assert [one["name"] for one in found["devices"]] == [REFERENCE, "null"]
    for one in found["devices"]:
        assert one["devices"] == one["name"]
        assert 0 < one["median_ns"] <= one["p90_ns"] <= one["p99_ns"]
        assert min(one["compile_ns"], one["first_ns"], one["runs"], one["per_second"]) > 0
        assert one["in_flight"] == 2


def test_all_installed_devices_and_their_competition(
    model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = (REFERENCE, "null")
    known = {name: msgspec.structs.replace(DRIVERS[name], computes=True) for name in names}
    monkeypatch.setattr("nnasync._core.drivers.DRIVERS", known)
    assert bench(model) == 0
    told = capsys.readouterr().out
    rows = [line.split("  ")[0] for line in told.splitlines()]
    assert [row for row in rows if row in (REFERENCE, "null", "all of them")] == [
        REFERENCE,
        "null",
        "all of them",
    ]
    assert "fastest one at a time: " in told


def test_several_inputs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "calculator.nnm"
    nn.save(calculator(), path)
    assert bench(str(path), "--device", REFERENCE) == 0
    assert "calculator on " in capsys.readouterr().out


def test_interrupted(
    model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def begin(self: Contestant, duration_ns: int) -> None:
        self.latencies_ns.append(duration_ns)
        signal.raise_signal(signal.SIGINT)
        await anyio.sleep_forever()

    monkeypatch.setattr(Contestant, "run_one_by_one", begin)
    assert bench(model, "--device", REFERENCE) == 130
    assert REFERENCE in capsys.readouterr().out


def test_open_shapes_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    builder = nn.ModelBuilder("open")
    x = builder.input("x", (0, 4))
    builder.output("y", builder.add(x, x))
    path = tmp_path / "open.nnm"
    nn.save(builder.build(), path)
    assert bench(str(path)) == 1
    assert "input 'x' has the open shape [0, 4]" in capsys.readouterr().err


def test_no_device_runs_it(
    model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    refuse: Any = lambda self, model: [False]  # noqa: E731
    monkeypatch.setattr("nnasync._core.drivers.null.NullEngine.supported_operations", refuse)
    assert bench(model, "--device", "null") == 1
    told = capsys.readouterr().err
    assert told.startswith(f"nnasync: error: no device runs {model}: null: ")
    assert "ADD is not supported" in told


def test_a_device_that_refuses_is_named_beside_the_others(
    model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    refuse: Any = lambda self, model: [False]  # noqa: E731
    monkeypatch.setattr("nnasync._core.drivers.null.NullEngine.supported_operations", refuse)
    assert bench(model, "--device", REFERENCE, "--device", "null") == 0
    assert "null does not run it: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["missing.nnm"], "missing.nnm: No such file"),
        (["MODEL", "--device", "nothing"], "no device 'nothing'"),
    ],
)
def test_errors(
    model: str, arguments: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(*(model if one == "MODEL" else one for one in arguments)) == 1
    assert line in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [[], ["m", "--seconds", "0"], ["m", "--seconds", "nan"], ["m", "--threads", "0"]],
)
def test_wrong_arguments(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["bench", *arguments])
    assert ended.value.code == 2
    assert "usage" in capsys.readouterr().err
