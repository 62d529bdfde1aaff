"""Results to be written and shown."""

from __future__ import annotations

from nnasync.suites import Bars, Better, Finding, Standing, SuiteFigure, SuiteResult, SuiteRow


def row(
    standing: Standing = Standing.SUCCESS, subject: str = "digits", device: str = "null"
) -> SuiteRow:
    """A row with all that rows can have."""
    return SuiteRow(
        subject,
        device,
        standing,
        1.5,
        "off by 3 %",
        (SuiteFigure("top_1", 0.9, low=0.8, high=0.95, better=Better.MORE, is_worse=False),),
        (Bars("latency", "ms", 0.5, 0.1, (1, 0, 3)),),
        (Finding("an output is wrong", "nnasync run digits.nnm", "digits.nnm"),),
    )


def result(*rows: SuiteRow, is_partial: bool = False) -> SuiteResult:
    """A result of these rows."""
    return SuiteResult(
        "benchmark",
        "nnasync suite benchmark",
        "2026-01-01T00:00:00+00:00",
        2.0,
        rows,
        {"processor": "x"},
        {"nnasync": "1"},
        is_partial,
    )
