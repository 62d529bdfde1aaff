"""The gallery: every file is read, can be simulated, and has its place in the document."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from nnasync.experiments import read_experiment, run

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "examples" / "experiments").glob("*.toml"))
PAGE = (ROOT / "docs" / "experiments.md").read_text("utf-8")

pytestmark = pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)


@pytest.mark.anyio
@pytest.mark.one_loop("threads do the work; loops only wait for them")
async def test_every_point_can_be_simulated(file: Path) -> None:
    experiment = replace(read_experiment(file), duration_s=0.2, repeats=1, overheads="none")
    results = await run(experiment)
    assert len(results.runs) == len(experiment.points())
    names = [stream.name for stream in experiment.streams]
    for each in results.runs:
        assert [stream.name for stream in each.result.streams] == names
        assert any(stream.submitted for stream in each.result.streams)


def test_it_has_a_title_a_paragraph_and_a_picture(file: Path) -> None:
    experiment = read_experiment(file)
    assert experiment.title
    assert len(experiment.about) > 100
    picture = f"images/experiment-{file.stem.replace('_', '-')}.png"
    assert f"({picture})" in PAGE
    assert (ROOT / "docs" / picture).exists()
    assert f"(../examples/experiments/{file.name}):" in PAGE
