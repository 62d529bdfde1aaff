"""`nnasync experiment`: run, report, compare, and what is told of files that are not right."""

from __future__ import annotations

import io
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest

from nnasync.cli import main
from nnasync.experiments import Experiment, Run, read_results

FILE = """
title = "Two policies"
duration_s = 0.5
repeats = 2
overheads = "none"

[[streams]]
name = "requests"
deadline_ms = 20
arrivals = { kind = "poisson", rate_hz = 100 }
cost = { kind = "constant", ms = 8 }

[sweep]
policy = ["fifo", "edf"]
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "two.toml"
    path.write_text(FILE)
    return path


def test_run_writes_results_and_a_report(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["experiment", "run", str(file), "--jobs", "1", "--no-pictures"]) == 0
    told = capsys.readouterr()
    lines = told.out.splitlines()
    assert lines[0].split()[:3] == ["policy", "stream", "run"]
    assert [line.split()[0] for line in lines[2:4]] == ["fifo", "edf"]
    folder = tmp_path / "nnasync-two"
    assert len(read_results(folder).runs) == 4
    assert "Two policies" in (folder / "report.html").read_text()


def test_only_some_points_are_run(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = ["experiment", "run", str(file), "--jobs=1", "--no-pictures", f"--out={tmp_path}"]
    assert main([*run, "--only", "policy=edf"]) == 0
    assert {each.values["policy"] for each in read_results(tmp_path).runs} == {"edf"}
    assert main([*run, "--only", "policy=lifo"]) == 1
    assert "no value 'lifo' in the sweep; there is fifo, edf" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([*run, "--only", "policy"])
    assert "'policy' is not KEY=VALUE" in capsys.readouterr().err


def test_both_tells_how_far_apart_they_are(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(FILE.replace("duration_s = 0.5", "duration_s = 0.2"))
    out = tmp_path / "out"
    run = ["experiment", "run", str(file), "--both", "--jobs", "1", "--no-pictures"]
    assert main([*run, "--out", str(out)]) == 0
    assert "simulated beside real, 10% (mean and p99)" in capsys.readouterr().out
    kinds = [each.result.kind for each in read_results(out).runs]
    assert kinds == ["simulated"] * 4 + ["real"] * 2
    assert "Simulated beside real" in (out / "report.html").read_text()


@contextmanager
def ended_at_third_run(_experiment: Experiment) -> Iterator[Callable[[int, int, Run], None]]:
    def told(done: int, _count: int, _last: Run) -> None:
        if done == 3:
            signal.raise_signal(signal.SIGTERM)

    yield told


def test_what_there_is_when_it_is_ended_is_reported(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nnasync.cli.experiment.watch", ended_at_third_run)
    file.write_text(FILE.replace("repeats = 2", "repeats = 100"))
    run = ["experiment", "run", str(file), "--jobs=1", "--no-pictures", f"--out={tmp_path}"]
    assert main(run) == 143
    results = read_results(tmp_path)
    assert results.is_partial
    assert 3 <= len(results.runs) < 200
    assert "The experiment ended early" in capsys.readouterr().out
    assert "The experiment ended early" in (tmp_path / "report.html").read_text()


def test_nothing_is_written_when_it_is_ended_before_its_first_run(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ended(*_arguments: object, **_options: object) -> None:
        signal.raise_signal(signal.SIGINT)
        await anyio.sleep_forever()

    monkeypatch.setattr("nnasync.cli.experiment.run_experiment", ended)
    run = ["experiment", "run", str(file), f"--out={tmp_path / 'out'}"]
    assert main(run) == 130
    assert list((tmp_path / "out").iterdir()) == []
    assert "ended before the first run" in capsys.readouterr().err


class Terminal(io.StringIO):
    """Text that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("is_terminal", [True, False])
def test_progress_is_told(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_terminal: bool
) -> None:
    if is_terminal:
        pytest.importorskip("rich", reason="bars need rich")
    told = Terminal() if is_terminal else io.StringIO()
    monkeypatch.setattr("sys.stderr", told)
    monkeypatch.setenv("TERM", "xterm")
    file.write_text(FILE.replace("repeats = 2", "repeats = 10"))
    run = ["experiment", "run", str(file), "--jobs", "1", "--no-pictures", "--out", str(tmp_path)]
    assert main(run) == 0
    if is_terminal:
        assert "Two policies" in told.getvalue()
        assert "20/20" in told.getvalue()
    else:
        assert told.getvalue() == "20 of 20 runs, the last one policy edf, simulated\n"


def test_the_report_is_written_again(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    run = ["experiment", "run", str(file), "--simulate", "--jobs", "1", "--no-pictures"]
    assert main([*run, "--out", str(out)]) == 0
    (out / "report.html").unlink()
    assert main(["experiment", "report", str(out), "--no-pictures"]) == 0
    assert (out / "report.html").exists()
    assert str(out / "report.html") in capsys.readouterr().out


def test_compare_tells_what_is_clear(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slower = tmp_path / "slower.toml"
    slower.write_text(FILE.replace("ms = 8", "ms = 16"))
    for path in (file, slower):
        out = tmp_path / path.stem
        assert (
            main(["experiment", "run", str(path), "--jobs=1", "--no-pictures", f"--out={out}"]) == 0
        )
    capsys.readouterr()
    assert main(["experiment", "compare", str(tmp_path / "two"), str(tmp_path / "slower")]) == 0
    told = capsys.readouterr().out
    assert "deadlines met" in told
    assert not told.splitlines()[-1].startswith("0 of 8")
    assert (
        main(["experiment", "compare", "--all", str(tmp_path / "two"), str(tmp_path / "two")]) == 0
    )
    assert "0 of 8 differ by more" in capsys.readouterr().out


def test_what_runs_have_to_say_is_told_below_the_figures(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    late = FILE.replace("deadline_ms = 20", 'deadline_ms = 20\nlate = "finish"')
    file.write_text(late.replace("duration_s = 0.5", "duration_s = 0.2"))
    run = ["experiment", "run", str(file), "--real", "--no-pictures", "--only", "policy=edf"]
    assert main([*run, f"--out={tmp_path}"]) == 0
    assert "the policy is not told of its deadlines" in capsys.readouterr().out


def test_results_that_share_nothing_are_not_compared(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for policy in ("fifo", "edf"):
        run = ["experiment", "run", str(file), "--jobs=1", "--no-pictures"]
        assert main([*run, f"--only=policy={policy}", f"--out={tmp_path / policy}"]) == 0
    assert main(["experiment", "compare", str(tmp_path / "fifo"), str(tmp_path / "edf")]) == 1
    assert "have no stream at a point of the sweep" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("duration_s", "duration", "unknown field `duration`"),
        ("rate_hz = 100", "rate_hz = -1", "streams[0].arrivals"),
        ('"edf"]', '"earliest"]', "there is no policy 'earliest'"),
    ],
)
def test_what_is_wrong_with_a_file_is_one_line(
    file: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, told: str
) -> None:
    file.write_text(FILE.replace(old, new))
    assert main(["experiment", "run", str(file)]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"nnasync: error: {file}: ")
    assert told in error
    assert error.count("\n") == 1


def test_what_are_no_results_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "results.json").write_text("{}")
    assert main(["experiment", "report", str(tmp_path)]) == 1
    assert "no results of an experiment" in capsys.readouterr().err


def test_simulated_and_real_at_once_is_both(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["experiment", "run", "x.toml", "--simulate", "--real"])
    assert "not allowed with" in capsys.readouterr().err
