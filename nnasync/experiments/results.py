"""What came of an experiment: all runs, the machine, and tables of them; kept as files.

A folder of results has `results.json` (settings, machine and every run, from which it is read
again), `results.csv`, and `results.parquet` where pyarrow is installed: one row for each point,
kind of run and stream.
"""

from __future__ import annotations

import collections
import csv
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from nnasync.errors import InvalidArgument
from nnasync.experiments.deciding import confidence_of
from nnasync.experiments.experiment import Experiment
from nnasync.experiments.fidelity import Fidelity, fidelity_of
from nnasync.experiments.figures import COUNTS, MEASURES, Figures, figures_of
from nnasync.experiments.report.summary import summary
from nnasync.experiments.run_of_point import Run, trusted

JSON, CSV, PARQUET = "results.json", "results.csv", "results.parquet"
FORMAT = 1
_PARTIAL = "The experiment ended early: these are the {} runs that had ended, others are missing."


class Machine(msgspec.Struct, frozen=True):
    """The machine on which an experiment was run."""

    system: str
    python: str
    processor: str
    cores: int
    nnasync: str


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """All runs of an experiment, in the order of its points; `began_at` is in UTC, ISO 8601.

    `is_partial` is set where it ended early, so that runs are missing.
    """

    experiment: Experiment
    machine: Machine
    began_at: str
    took_s: float
    runs: tuple[Run, ...]
    is_partial: bool = False
    format: int = FORMAT

    def figures(self) -> tuple[Figures, ...]:
        """Returns means and confidence intervals over the repeats of each stream at each point.

        Real runs that others disturbed are left out where others of the same point were not.
        """
        return figures_of(trusted(self.runs))

    def fidelity(self) -> tuple[Fidelity, ...]:
        """Returns how far the simulation was from the real runs, where there are both."""
        confidence = confidence_of(self.experiment)
        return fidelity_of(self.runs, self.experiment.networks, confidence=confidence)

    def disturbance(self) -> str:
        """Returns what to say of other programs during real runs; empty if they took little."""
        real = [run for run in self.runs if run.result.kind == "real"]
        disturbed = [run for run in real if run.is_disturbed]
        again = sum(run.attempts > 1 for run in real)
        told = [f"{again} of {len(real)} real runs were repeated, as others disturbed them."]
        if not disturbed:
            return told[0] if again else ""
        left_out = len(self.runs) - len(trusted(self.runs))
        if left_out:
            told.append(f"{left_out} that others disturbed are left out.")
        if len(disturbed) > left_out:
            told.append(_company(disturbed, len(disturbed) - left_out))
        return " ".join(told if again else told[1:])

    def remarks(self) -> tuple[str, ...]:
        """Returns remarks for the reader.

        They say that runs are missing, and how others disturbed them, and have the runs' notes.
        """
        notes = dict.fromkeys(note for run in self.runs for note in run.result.notes)
        partial = _PARTIAL.format(len(self.runs)) if self.is_partial else ""
        return tuple(filter(None, (partial, self.disturbance(), *notes)))

    def rows(self) -> list[dict[str, Any]]:
        """Returns the figures as flat rows; half-widths of 95 % intervals end in `_half`."""
        return [_row(figures) for figures in self.figures()]

    def to_pandas(self) -> Any:
        """The rows as a DataFrame.

        Raises:
            InvalidArgument: pandas is not installed.
        """
        return to_pandas(self.rows())

    def save(self, folder: str | Path) -> list[Path]:
        """Write the files of a folder of results, and return their paths."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        rows = self.rows()
        (folder / JSON).write_bytes(msgspec.json.encode(self))
        with (folder / CSV).open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0]) if rows else [])
            writer.writeheader()
            writer.writerows(rows)
        return [folder / JSON, folder / CSV, *_write_parquet(folder / PARQUET, rows)]

    def __repr__(self) -> str:
        kinds = collections.Counter(run.result.kind for run in self.runs)
        runs = " and ".join(f"{count} {kind}" for kind, count in kinds.items())
        points = len({run.point for run in self.runs})
        return f"<Results of {self._title!r}: {runs or 'no'} runs of {points} points>"

    # Notebooks show what this returns.
    def _repr_html_(self) -> str:
        return summary(self._title, trusted(self.runs), self.experiment.x, self.fidelity())

    @property
    def _title(self) -> str:
        return self.experiment.title or self.experiment.name


def _company(disturbed: Sequence[Run], kept: int) -> str:
    """Returns a sentence on what others took during disturbed runs, `kept` of which count."""
    worst = max(disturbed, key=lambda run: run.disturbance)
    stolen = max(run.stolen for run in disturbed)
    hypervisor = f" (other virtual machines up to {stolen:.0%})" if stolen >= 0.005 else ""
    waited = worst.result.waited
    waits = "" if waited is None else f", and threads waited in {waited:.0%} of their time"
    return (
        f"During {kept} real runs others had up to {worst.others:.0%} of the machine's cores"
        f"{hypervisor}{waits}: their latencies are longer than those of a quiet machine."
    )


def to_pandas(rows: list[dict[str, Any]]) -> Any:
    """Returns rows as a DataFrame; raises InvalidArgument where pandas is not installed."""
    if importlib.util.find_spec("pandas") is None:
        raise InvalidArgument(
            "to_pandas needs pandas, which is not installed: pip install 'nnasync[experiments]'"
        )
    import pandas as pd

    return pd.DataFrame(rows)


class _Written(msgspec.Struct):
    """The part of a file of results that says how to read the rest."""

    format: int = FORMAT


def read_results(folder: str | Path) -> Results:
    """Reads the results in a folder.

    Raises:
        InvalidArgument: What is there are no results of this version; the message has the file.
        OSError: The file cannot be read.
    """
    path = Path(folder)
    path = path / JSON if path.is_dir() else path
    content = path.read_bytes()
    try:
        written = msgspec.json.decode(content, type=_Written).format
        if written != FORMAT:
            raise InvalidArgument(
                f"{path}: results of format {written}, and this version reads format {FORMAT}"
            )
        return msgspec.json.decode(content, type=Results)
    except msgspec.DecodeError as error:
        raise InvalidArgument(f"{path}: no results of an experiment: {error}") from None


def _row(figures: Figures) -> dict[str, Any]:
    row: dict[str, Any] = {"kind": figures.kind, **figures.values, "stream": figures.stream}
    row |= {"priority": figures.priority, "deadline_ms": figures.deadline_ms}
    row["repeats"] = figures.repeats
    for name in MEASURES:
        found = figures.measures.get(name)
        row[name] = None if found is None else found.mean
        row[f"{name}_half"] = None if found is None else found.half
    return row | {name: figures.counts[name] for name in COUNTS}


def _write_parquet(path: Path, rows: list[dict[str, Any]]) -> list[Path]:
    """Writes the Parquet file.

    Columns of numbers stay numbers; a swept key that has words among its values becomes text.
    """
    if importlib.util.find_spec("pyarrow") is None:
        return []
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns: dict[str, list[Any]] = {name: [row[name] for row in rows] for name in rows[0]}
    for name, values in columns.items():
        if any(isinstance(value, str) for value in values):
            columns[name] = [None if value is None else str(value) for value in values]
    pq.write_table(pa.table(columns), path)
    return [path]
