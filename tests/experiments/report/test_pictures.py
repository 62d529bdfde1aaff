"""Pictures of a report are taken where there is a browser, and their absence is told."""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path

import pytest

from nnasync.errors import GeneralFailure, InvalidArgument
from nnasync.experiments.report import pictures
from nnasync.experiments.report.pictures import WIDTH, browser, take_pictures
from nnasync.experiments.report.written import write_report
from tests.experiments.test_results import results


def test_without_a_browser_the_page_is_written_and_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pictures, "BROWSERS", ("no-such-browser",))
    written = write_report(results(), tmp_path)
    assert written.page.read_text().startswith("<!doctype html>")
    assert written.pictures == ()
    assert "no-such-browser" in written.no_pictures


def test_none_are_taken_if_none_are_wanted(tmp_path: Path) -> None:
    written = write_report(results(), tmp_path, pictures=False)
    assert (written.pictures, written.no_pictures) == ((), "")
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_a_section_that_no_report_has_is_told(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="no report has a section swep; there is sweep, "):
        write_report(results(), tmp_path, sections=("swep", "cores"))


@pytest.mark.parametrize("script", ["exit 1", "echo '<p>nothing</p>'"])
def test_a_browser_that_fails_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    program = tmp_path / "browser"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setattr(pictures, "BROWSERS", (str(program),))
    page = tmp_path / "report.html"
    page.write_text("<p>a page</p>")
    with pytest.raises(GeneralFailure, match="took no picture|did not show"):
        take_pictures(page, tmp_path)


@pytest.mark.slow
def test_pictures_show_each_section(tmp_path: Path) -> None:
    if browser() is None:
        pytest.skip("no browser is installed")
    written = write_report(results(("simulated", "real")), tmp_path)
    assert written.no_pictures == ""
    names = [path.stem for path in written.pictures]
    assert names == ["sweep", "latency", "cores", "queue", "truth"]
    for path in written.pictures:
        content = path.read_bytes()
        assert content.startswith(b"\x89PNG")
        width, height = struct.unpack(">II", content[16:24])
        assert width == WIDTH
        assert 200 < height < 3000


@pytest.mark.slow
def test_the_script_of_the_page_runs_without_complaint(tmp_path: Path) -> None:
    program = browser()
    if program is None:
        pytest.skip("no browser is installed")
    page = write_report(results(), tmp_path, pictures=False).page
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--dump-dom"]
    profile = f"--user-data-dir={tmp_path / 'profile'}"
    done = subprocess.run(
        [program, *flags, profile, page.as_uri()], capture_output=True, text=True, timeout=60
    )
    assert "CONSOLE" not in done.stderr
    assert " ms recorded" in done.stdout  # the timeline was drawn
    assert done.stdout.count('class="at now"') == 2  # latencies and queues of one load
