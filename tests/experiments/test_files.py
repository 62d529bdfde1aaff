"""Experiments in TOML: what is read, and how what is wrong is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from nnasync.errors import InvalidArgument
from nnasync.experiments.files import read_experiment

GOOD = """
title = "A wake word beside photographs"
cores = 2
duration_s = 5
repeats = 3

[[streams]]
name = "wake word"
priority = "high"
deadline_ms = 10
arrivals = { kind = "periodic", period_ms = 10 }
cost = { kind = "constant", ms = 1 }

[[streams]]
name = "photos"
arrivals = { kind = "gamma", rate_hz = 20, cv = 2 }
cost = { kind = "lognormal", mean_ms = 30, cv = 0.5 }

[sweep]
load = [0.5, 0.9]
policy = ["fifo", { label = "by deadline", name = "edf", preempts = false }]
"streams.photos.arrivals.cv" = [1, 4]
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "photos.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_file_is_read(tmp_path: Path) -> None:
    experiment = read_experiment(written(tmp_path, GOOD))
    assert experiment.name == "photos"
    points = experiment.points()
    assert len(points) == 8
    last = points[-1]
    assert last.values == {"load": 0.9, "policy": "by deadline", "streams.photos.arrivals.cv": 4}
    policy = last.experiment.make_policy()
    assert policy is not None
    assert policy.name == "edf-non-preemptive"
    assert [point.index for point in points] == list(range(8))


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("cores = 2", "coers = 2", "unknown field `coers`; did you mean cores?"),
        ("cores = 2", "cores = 0", "cores: Expected `int` >= 1"),
        ("cores = 2", 'cores = "two"', "cores: Expected `int`"),
        ("cores = 2", "cores = ", "Invalid value"),
        ("duration_s = 5", "duration_s = -5", "duration_s: Expected `float` > 0.0"),
        ("period_ms = 10", "period = 10", "streams[0].arrivals"),
        (
            'kind = "gamma"',
            'kind = "gama"',
            "streams[1].arrivals.kind: Invalid value 'gama'; there are periodic, poisson, gamma",
        ),
        ("rate_hz = 20", "rate_hz = -20", "streams[1].arrivals"),
        ('priority = "high"', 'priority = "urgent"', "streams[0].priority"),
        ('name = "photos"', 'name = "wake word"', "another stream is called"),
        ("load = [0.5, 0.9]", "load = [0.5, 0]", "load: Expected `float` > 0.0 (where load = 0"),
        (
            "load = [0.5, 0.9]",
            "lod = [0.5, 0.9]",
            "unknown field `lod`; did you mean load? (where lod = 0.5",
        ),
        ('["fifo", ', '["fifth", ', "there is no policy 'fifth'; there are default, fifo"),
        ("preempts = false", "preemption = false", "policy 'edf' cannot be made"),
        ("streams.photos.arrivals.cv", "streams.pictures.arrivals.cv", "there is no 'pictures'"),
    ],
)
def test_what_is_wrong_is_told_by_file_and_key(
    tmp_path: Path, old: str, new: str, told: str
) -> None:
    assert old in GOOD
    path = written(tmp_path, GOOD.replace(old, new))
    with pytest.raises(InvalidArgument) as raised:
        read_experiment(path)
    assert str(raised.value).startswith(f"{path}: ")
    assert told in str(raised.value)


def test_bytes_that_are_no_text_are_told(tmp_path: Path) -> None:
    path = tmp_path / "broken.toml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidArgument, match="broken.toml"):
        read_experiment(path)


def test_traces_and_models_are_found_from_the_file(tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text("time\n0\n1\n2\n")
    text = GOOD.replace(
        '{ kind = "periodic", period_ms = 10 }', '{ kind = "trace", path = "trace.csv" }'
    )
    (stream, _) = read_experiment(written(tmp_path, text)).streams
    assert str(tmp_path / "trace.csv") == getattr(stream.arrivals, "path", "")
