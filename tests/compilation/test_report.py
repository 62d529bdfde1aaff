"""A report as text."""

from __future__ import annotations

import pytest

import nnasync as nn
from nnasync._core.compilation import Candidate, Rejection, Report
from nnasync._core.compilation.report import Fallback, Partition, ranges
from nnasync._core.drivers.null import NullEngine
from tests.rigs import REFERENCE, calculator, runtime

REPORT = Report(
    partitions=(
        Partition("fast", (0, 1, 2), "fastest whose results agree"),
        Partition(
            "interpreter", (3,), "control flow", bodies=((Partition("slow", (0,), "only"),),)
        ),
    ),
    candidates=(
        Candidate("fast", "f32, 1 thread", 12.345, "max 1e-07", "chosen", 12.0),
        Candidate("slow", "whole model", None, "not measured", "does not support every operation"),
    ),
    rejections=(
        Rejection("slow", 4, "MUL: no products"),
        Rejection("slow", 2, "MUL: no products"),
        Rejection("slow", 3, "MUL: no products"),
        Rejection("slow", 7, "ADD: no sums"),
        Rejection("broken", -1, "prepare failed: no luck"),
    ),
    cache_hit=False,
    cache_reason="no entry",
    pin="a pin",
    fallbacks=(Fallback("fast", (0,), "partial", "no power", 3),),
)


def test_a_report_is_printed_as_tables() -> None:
    assert (
        str(REPORT)
        == """\
runs on      operations  why
-----------  ----------  ---------------------------
fast         0..2        fastest whose results agree
interpreter  3           control flow
  slow       0           only

considered  in which way   median   cold  agreement     verdict
----------  -------------  -------  ----  ------------  --------------------------------
fast        f32, 1 thread  12.3 us        max 1e-07     chosen
slow        whole model                   not measured  does not support every operation

not taken:
  slow: operations 2..4: MUL: no products
  slow: operation 7: ADD: no sums
  broken: prepare failed: no luck

fell back:
  fast: partial, 3 times, first: no power

cache: no entry"""
    )


def test_in_a_terminal_it_is_one_line_and_in_a_notebook_tables() -> None:
    assert repr(REPORT) == "<Report: runs on fast+interpreter; 2 considered, 5 rejections>"
    told = REPORT._repr_html_()
    assert told.count("<table>") == 2
    for words in ("max 1e-07", "slow: operation 7: ADD: no sums", "3 times, first: no power"):
        assert words in told


def test_a_large_report_is_cut() -> None:
    many = tuple(Rejection("slow", n, f"reason {n}") for n in range(1000))
    told = str(Report((), (), many, cache_hit=True, cache_reason="", pin=""))
    assert "... and 960 more" in told
    assert len(told.splitlines()) < 60
    assert told.endswith("cache: hit")


@pytest.mark.parametrize(
    ("numbers", "told"),
    [((), ""), ((5,), "5"), ((1, 0), "0..1"), ((9, 1, 2, 3, 7), "1..3, 7, 9"), ((4, 4), "4")],
)
def test_numbers_are_told_as_ranges(numbers: tuple[int, ...], told: str) -> None:
    assert ranges(numbers) == told


@pytest.mark.anyio
@pytest.mark.filterwarnings("ignore:network .* was dropped:ResourceWarning")
async def test_a_network_tells_it() -> None:
    adder = NullEngine("adder", operation_types=[nn.OperationType.ADD])
    async with runtime(adder, REFERENCE) as rt:
        told = str((await rt.compile(calculator())).report())
    assert "adder: operation 1: MUL is not supported as it is used here" in told
    assert f"{REFERENCE}  0..1" in told
    assert "-1" not in told
