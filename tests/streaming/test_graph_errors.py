"""Errors of stages and sources: what each ends, and how it is told."""

from __future__ import annotations

from typing import Any

import pytest

from nnasync.errors import DeviceUnavailable
from nnasync.streaming import Account, Graph, Item
from tests.streaming.graph_rig import Collected, check, recording

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("is_async", [True, False])
async def test_an_error_ends_one_item_by_default(
    is_async: bool, caplog: pytest.LogCaptureFixture
) -> None:
    graph, seen = Graph(), Collected()

    def divided(value: int) -> float:
        return 6 / value

    async def later(value: int) -> float:
        return divided(value)

    recording(graph, 4).map(later if is_async else divided, name="divided").sink(seen)
    await graph.run()
    assert seen.data == [6, 3, 2]
    assert graph.account().stages["divided"] == Account(submitted=4, failed=1, passed=3)
    assert isinstance(graph.errors()["divided"], ZeroDivisionError)
    assert "divided failed at item 0" in caplog.text


@pytest.mark.parametrize("error", [DeviceUnavailable("no such camera"), ValueError("no such key")])
async def test_the_log_has_a_traceback_where_the_error_alone_says_too_little(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    graph = Graph()

    def broken(value: int) -> None:
        raise error

    recording(graph, 2).map(broken, name="broken")
    await graph.run()
    (record,) = [each for each in caplog.records if "broken failed" in each.getMessage()]
    assert str(error) in record.getMessage()
    assert (record.exc_info is None) == isinstance(error, DeviceUnavailable)


@pytest.mark.parametrize("is_async", [True, False])
async def test_an_error_may_end_what_is_behind_it(is_async: bool) -> None:
    graph, seen, others = Graph(), Collected(), Collected()

    def divided(value: int) -> float:
        return 6 / (value - 2)

    async def later(value: int) -> float:
        return divided(value)

    stream = recording(graph, 6)
    stream.map(later if is_async else divided, name="divided", on_error="stream").sink(seen)
    stream.sink(others)
    await graph.run()
    assert seen.data == [-3, -6]
    assert others.data == [0, 1, 2, 3, 4, 5]
    assert graph.account().stages["divided"] == Account(submitted=6, failed=4, passed=2)
    check(graph)


async def test_an_error_may_end_the_graph() -> None:
    graph = Graph()
    recording(graph, 4).map(lambda value: 1 / value, on_error="graph")
    with pytest.raises(ZeroDivisionError):
        await graph.run()
    check(graph)


async def test_a_source_that_fails_ends_the_graph_unless_told_otherwise() -> None:
    async def broken() -> Any:
        yield Item(0, 0, "first")
        raise OSError("the cable was pulled")

    graph = Graph()
    graph.source(broken(), name="camera")
    with pytest.raises(OSError, match="cable"):
        await graph.run()
    check(graph)
    patient, seen = Graph(), Collected()
    patient.source(broken(), name="camera", on_error="stream").sink(seen)
    recording(patient, 3).sink(seen)
    await patient.run()
    assert sorted(map(str, seen.data)) == ["0", "1", "2", "first"]
    assert "cable" in str(patient.errors()["camera"])
    check(patient)
