"""The settings in documents, of TOML and YAML, are read by what they are for."""

from __future__ import annotations

import importlib.metadata
import re
import tomllib
from collections.abc import Callable

import msgspec
import pytest

import nnasync as nn
from nnasync.errors import REASONS
from nnasync.experiments import Constant, Experiment, Poisson, Stream, experiment_of
from nnasync.serving.model_settings import settings_from
from nnasync.suites.benchmark.model_list import ModelList
from nnasync.tracing.metrics import render
from tests import rigs
from tests.documents.blocks import DOCUMENTS, blocks_of, name_of
from tests.installing import EXAMPLE

Check = Callable[[str], object]


def experiment(text: str) -> None:
    points = list(experiment_of(tomllib.loads(text)).points())
    assert len(points) > 1


def a_sweep_of_requests(text: str) -> None:
    requests = Stream(name="requests", arrivals=Poisson(rate_hz=10), cost=Constant(1))
    sweep = tomllib.loads(text)
    swept = Experiment(streams=(requests,), sweep=sweep)
    assert len(list(swept.points())) == len(sweep["variant"])


def entry_points(text: str) -> None:
    (group, points), *_ = tomllib.loads(text)["project"]["entry-points"].items()
    assert group == "nnasync.policies"
    for name, value in points.items():
        assert importlib.metadata.EntryPoint(name, value, group).attr


def of_the_example(text: str) -> None:
    assert text == (EXAMPLE / "pyproject.toml").read_text("utf-8")


CHECKS: dict[str, list[Check]] = {
    "docs/experiments.md": [experiment, a_sweep_of_requests],
    "docs/policies.md": [entry_points],
    "docs/serving.md": [lambda text: settings_from(text, "serving.md")],
    "docs/suites.md": [lambda text: msgspec.toml.decode(text, type=ModelList)],
    "docs/write_a_driver.md": [of_the_example],
}
"""What reads each block of TOML."""


def test_all_settings_are_read() -> None:
    found = {name_of(path): len(blocks_of(name_of(path), "toml")) for path in DOCUMENTS}
    assert {name: n for name, n in found.items() if n} == {n: len(c) for n, c in CHECKS.items()}


@pytest.mark.parametrize("name", CHECKS)
def test_settings_are_read(name: str) -> None:
    for check, block in zip(CHECKS[name], blocks_of(name, "toml"), strict=True):
        check(block.text)


def test_alerts_are_about_metrics_that_there_are() -> None:
    """Prometheus reads the rules; what they name is in what a runtime tells after a call."""
    (block,) = blocks_of("docs/tracing.md", "yaml")
    selectors = re.findall(r"(nnasync_\w+)\{(.*?)\}", block.text)
    assert len(selectors) == 4
    told = nn.run(metrics_of_a_call)
    for name, labels in selectors:
        for label, values in re.findall(r'(\w+)[=!]~?"(.*?)"', labels):
            assert re.search(rf"^{name}{{.*\b{label}=", told, re.MULTILINE), (name, label)
            known = {"reason": REASONS | {"INVALID_ARGUMENT"}}.get(label)
            assert known is None or set(values.split("|")) <= known


async def metrics_of_a_call() -> str:
    async with rigs.runtime("nnasync-reference") as rt:
        net = await rt.compile(rigs.doubler())
        with pytest.raises(nn.MissedDeadline):
            await net(rigs.ROW, deadline=nn.within(ms=-1))
        return render(rt.statistics(), rt.calls)
