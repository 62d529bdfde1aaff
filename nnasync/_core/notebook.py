"""Objects as HTML, for notebooks: what `_repr_html_` returns.

Text comes from models and files of others, so everything is escaped. No styles of our own: the
notebook's are made for tables, in light and in dark.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def html_table(heads: Sequence[object], rows: Iterable[Sequence[object]], title: str = "") -> str:
    """Returns a table with these heads and rows, under a title if there is one."""
    caption = f"<caption>{_escaped(title)}</caption>" if title else ""
    body = "".join(_row("td", row) for row in rows)
    return f"<table>{caption}<thead>{_row('th', heads)}</thead><tbody>{body}</tbody></table>"


def html_lines(title: str, lines: Sequence[object]) -> str:
    """Returns a list of lines under a title; nothing where there are no lines."""
    items = "".join(f"<li>{_escaped(line)}</li>" for line in lines)
    return f"<p>{_escaped(title)}</p><ul>{items}</ul>" if lines else ""


def _row(cell: str, values: Sequence[object]) -> str:
    cells = "".join(f"<{cell}>{_escaped(value)}</{cell}>" for value in values)
    return f"<tr>{cells}</tr>"


def _escaped(value: object) -> str:
    from html import escape  # Takes milliseconds, which no program without a notebook should wait.

    return escape(str(value))
