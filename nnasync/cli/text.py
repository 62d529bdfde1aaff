"""Plain text for terminals: tables, durations, the help of a command."""

from __future__ import annotations

import argparse
import itertools
import textwrap
from collections.abc import Iterator, Sequence

import msgspec


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Wraps a description at the width of the terminal, and leaves examples as they are."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if "\n" in text:
            return super()._fill_text(text, width, indent)
        return textwrap.fill(text, width, initial_indent=indent, subsequent_indent=indent)


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], *, wide: int = 0) -> str:
    """Columns under their heads; with `wide` the first column is wrapped at that width.

    A cell may have several lines.
    """
    wrapped = [line for row in rows for line in _lines(row, wide)]
    widths = [max(len(cell) for cell in column) for column in zip(heads, *wrapped, strict=True)]
    lines = [heads, ["-" * width for width in widths], *wrapped]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def _lines(row: Sequence[str], wide: int) -> Iterator[tuple[str, ...]]:
    cells = [cell.split("\n") for cell in row]
    if wide:
        cells[0] = textwrap.wrap(row[0], wide)
    return itertools.zip_longest(*cells, fillvalue="")


def json_text(value: object) -> str:
    """A value as JSON on several lines, for people and programs."""
    return msgspec.json.format(msgspec.json.encode(value)).decode()


def hanging(line: str) -> str:
    """A line wrapped between words, where it goes on two columns further in than it begins."""
    indent = " " * (len(line) - len(line.lstrip()) + 2)
    return textwrap.fill(
        line, 80, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def milliseconds(duration_ns: float) -> str:
    """A duration as text in milliseconds, with three significant digits below ten."""
    value = duration_ns / 1e6
    return f"{value:.3f} ms" if value < 10 else f"{value:.1f} ms"
