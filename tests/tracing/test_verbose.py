"""VLOG: tags from text, lines on loggers, nothing where a tag is off."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnasync.tracing import ExecutionLog, Tracer, verbose, vlog
from nnasync.tracing.verbose import TAGS, Vlog
from tests.tracing.events import Task, answer, ran, start

CODE = """
from nnasync.tracing import vlog
vlog.compilation("%d partitions", 3)
vlog.driver("quiet")
"""


def on(chosen: Vlog) -> set[str]:
    return {tag for tag in TAGS if getattr(chosen, tag) is not verbose._nothing}


@given(st.sets(st.sampled_from(TAGS)), st.sampled_from([" ", ",", ":", ", ", "\t:"]))
def test_tags_are_separated_by_space_comma_or_colon(tags: set[str], by: str) -> None:
    chosen = Vlog(by.join(tags))
    assert on(chosen) == tags
    assert {tag for tag in TAGS if chosen.is_on(tag)} == tags


@pytest.mark.parametrize("text", ["all", "1", "driver all", "all,nonsense"])
def test_all_is_all(text: str) -> None:
    assert on(Vlog(text)) == set(TAGS)


@pytest.mark.parametrize("text", ["", " ", ",:"])
def test_empty_is_none(text: str) -> None:
    assert on(Vlog(text)) == set()


def test_unknown_tags_are_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    chosen = Vlog("drivr:model")
    chosen.select("model drivr")
    assert on(chosen) == {"model"}
    assert caplog.text.count("no tag 'drivr'") == 1


def test_lines_go_to_the_logger_of_their_tag(caplog: pytest.LogCaptureFixture) -> None:
    chosen = Vlog("compilation")
    with caplog.at_level(logging.INFO, logger="nnasync.vlog"):
        chosen.compilation("%s has %d", "net", 2)
        chosen.driver("%s", "unheard")
    assert [(each.name, each.getMessage()) for each in caplog.records] == [
        ("nnasync.vlog.compilation", "net has 2")
    ]
    chosen.select("")
    chosen.compilation("unheard")
    assert len(caplog.records) == 1


@pytest.mark.parametrize(("text", "lines"), [("compilation", 1), ("", 0), ("manager:model", 0)])
def test_the_environment_chooses_and_lines_are_seen(text: str, lines: int) -> None:
    environment = os.environ | {"NNASYNC_VLOG": text}
    done = subprocess.run(
        [sys.executable, "-c", CODE], env=environment, capture_output=True, text=True, check=True
    )
    assert len(done.stderr.splitlines()) == lines
    assert done.stderr.count("nnasync.vlog.compilation: 3 partitions") == lines


def test_the_narrator_tells_of_executions(caplog: pytest.LogCaptureFixture) -> None:
    tracer = Tracer([ExecutionLog()])
    task = Task("net on cpu")
    try:
        vlog.select("execution")
        with caplog.at_level(logging.INFO, logger="nnasync.vlog"):
            for hook in tracer.task_submitted:
                hook(task)
            start(tracer, task, 2_000_000)
            ran(tracer, task, 2_000_000, 5_500_000, finished=False)
            answer(tracer, task, ValueError("late"))
    finally:
        vlog.select("")
    told = [each.getMessage().partition(": ")[2] for each in caplog.records]
    assert told == [
        "queued, MEDIUM",
        "starts, 2.000 ms after it was ready",
        "stopped, 3.500 ms",
        "answered ValueError: late",
    ]


def test_the_documentation_has_every_tag() -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "tracing.md"
    text = page.read_text(encoding="utf-8")
    assert [tag for tag in (*TAGS, verbose.VARIABLE) if f"`{tag}`" not in text] == []
