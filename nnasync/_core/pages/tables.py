"""Tables that can be sorted by a click on a head, and copied."""

from __future__ import annotations

from collections.abc import Sequence

from nnasync._core.pages.escaping import text

_LONG = 24


def table(heads: Sequence[tuple[str, bool]], rows: Sequence[str], *, name: str = "") -> str:
    """A table of rows that are made of cells; heads say whether their column is of words."""
    head = "".join(f"<th{_kind(is_word)}>{text(title)}</th>" for title, is_word in heads)
    named = f' id="{name}"' if name else ""
    return (
        f'<div class="scroll"><table class="sorts"{named}><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def row(cells: Sequence[str]) -> str:
    """A row of cells."""
    return f"<tr>{''.join(cells)}</tr>"


def word(value: object, kind: str = "") -> str:
    """A cell with what somebody wrote; pointed at, it tells the whole of what is long."""
    told = text(value)
    whole = f' title="{told}"' if len(told) > _LONG else ""
    return f'<td class="{f"word {kind}".strip()}"{whole}>{told}</td>'


def remark(value: object, columns: int) -> str:
    """A cell with what somebody wrote, over so many columns that a row has no value for."""
    return f'<td class="word wide" colspan="{columns}" data-v="">{text(value)}</td>'


def number(shown: str, value: float | None = None, *, kind: str = "") -> str:
    """A cell of HTML that is sorted by `value`, else by the number that it begins with."""
    sorted_by = "" if value is None else f' data-v="{value!r}"'
    return f"<td{_class(kind)}{sorted_by}>{shown}</td>"


def _kind(is_word: bool) -> str:
    return _class("word" if is_word else "")


def _class(kind: str) -> str:
    return f' class="{kind}"' if kind else ""
