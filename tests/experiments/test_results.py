"""Results as files, rows and pieces of notebooks."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from nnasync.errors import InvalidArgument
from nnasync.experiments.costs import Network
from nnasync.experiments.experiment import Experiment
from nnasync.experiments.fidelity import Fidelity
from nnasync.experiments.results import Machine, Results, read_results
from tests.experiments.rigs import WORKLOAD, runs

MACHINE = Machine("Linux", "CPython 3.11", "a processor", 2, "0.1.0")


def results(kinds: tuple[str, ...] = ("simulated",)) -> Results:
    experiment = Experiment(
        streams=WORKLOAD.streams, title="A & B", cores=2, repeats=2, sweep={"load": [0.5, 1.0]}
    )
    began_at = "2026-01-01T00:00:00+00:00"
    return Results(
        experiment=experiment, machine=MACHINE, began_at=began_at, took_s=1.5, runs=runs(kinds)
    )


def test_what_is_saved_is_read_again(tmp_path: Path) -> None:
    saved = results(("simulated", "real"))
    paths = saved.save(tmp_path / "new" / "folder")
    assert {path.name for path in paths} >= {"results.json", "results.csv"}
    assert read_results(tmp_path / "new" / "folder") == saved
    assert read_results(tmp_path / "new" / "folder" / "results.json") == saved


def test_settings_and_machine_are_there_in_words(tmp_path: Path) -> None:
    results().save(tmp_path)
    told = json.loads((tmp_path / "results.json").read_text())
    assert told["machine"]["processor"] == "a processor"
    assert told["experiment"]["streams"][0]["name"] == "wake word"


def test_rows_are_those_of_the_table(tmp_path: Path) -> None:
    results().save(tmp_path)
    with (tmp_path / "results.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 8
    assert rows[0]["policy"] == "slow"
    assert float(rows[0]["p99_ms"]) == pytest.approx(results().rows()[0]["p99_ms"])
    assert int(rows[0]["submitted"]) == sum(
        int(rows[0][name])
        for name in ("met", "late", "expired", "refused", "displaced", "cancelled", "pending")
    )


def test_parquet_has_the_same_columns(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="needs the extra parquet")
    results().save(tmp_path)
    table = parquet.read_table(tmp_path / "results.parquet").to_pylist()
    assert table == results().rows()


def test_a_dataframe() -> None:
    pytest.importorskip("pandas", reason="pandas is not installed")
    frame = results().to_pandas()
    assert len(frame) == 8
    assert frame.p99_ms.iloc[0] == pytest.approx(results().rows()[0]["p99_ms"])


def test_a_dataframe_needs_pandas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InvalidArgument, match=r"nnasync\[experiments\]"):
        results().to_pandas()


def test_notebooks_show_charts_and_the_table() -> None:
    html = results()._repr_html_()
    assert "A &amp; B" in html
    assert html.count("<svg") == 5
    assert "<script" not in html


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b'{"runs": 1}', b"\xff"])
def test_other_files_are_told_from_results(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "results.json").write_bytes(content)
    with pytest.raises(InvalidArgument, match="results.json: no results"):
        read_results(tmp_path)


def test_results_of_another_format_are_told(tmp_path: Path) -> None:
    results().save(tmp_path)
    path = tmp_path / "results.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 99}))
    with pytest.raises(InvalidArgument, match="format 99, and this version reads format 1"):
        read_results(tmp_path)


def test_others_on_the_machine_are_told_where_they_disturbed_real_runs() -> None:
    quiet = results(("simulated", "real"))
    assert quiet.disturbance() == ""
    *rest, last = quiet.runs
    busy = replace(quiet, runs=(*rest, replace(last, others=0.3, stolen=0.12)))
    assert busy.disturbance() == "1 that others disturbed are left out."
    *_, before, _ = quiet.runs
    both = [replace(run, others=0.3, stolen=0.12) for run in (before, last)]
    busy = replace(quiet, runs=(*quiet.runs[:-2], *both))
    assert "During 2 real runs others had up to 30% of the machine's cores" in busy.disturbance()
    assert "(other virtual machines up to 12%)" in busy.disturbance()


def test_real_networks_may_be_further_off() -> None:
    found = results(("simulated", "real"))
    word, photos = found.experiment.streams
    network = replace(photos, cost=Network("photos.nnm", (20.0,)))
    limits = {
        each.stream: each.limit
        for each in replace(
            found, experiment=replace(found.experiment, streams=(word, network))
        ).fidelity()
    }
    assert limits == {"wake word": 0.1, "photos": 0.2}
    off = Fidelity(0, {}, "photos", mean=0.15, p99=-0.19, attainment=0.0, limit=0.2)
    assert off.is_near
    assert not replace(off, p99=-0.21).is_near


def test_a_folder_without_results(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_results(tmp_path)


def test_remarks_are_the_notes_of_all_runs_once() -> None:
    quiet = results(("real",))
    noted = [replace(r, result=replace(r.result, notes=("the policy failed",))) for r in quiet.runs]
    assert quiet.remarks() == ()
    assert replace(quiet, runs=tuple(noted)).remarks() == ("the policy failed",)


def test_representations_are_short_and_notebooks_show_verdicts() -> None:
    both = results(("simulated", "real"))
    assert repr(both) == "<Results of 'A & B': 8 simulated and 8 real runs of 4 points>"
    run = both.runs[0].result
    assert repr(run).startswith("<RunResult: simulated, fifo, seed 0: wake word ")
    assert "p99" in repr(run.streams[0].latency)
    assert len(repr(both.runs[0])) < 500
    assert "Simulated beside real: " in both._repr_html_()
    assert "Simulated beside real: " not in results()._repr_html_()
