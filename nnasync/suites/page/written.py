"""The page of a result, alone or beside an older result, as a file."""

from __future__ import annotations

import html
from pathlib import Path

from nnasync.suites.files import replace_file
from nnasync.suites.results import SuiteResult


def write_page(result: SuiteResult, path: Path, old: SuiteResult | None = None) -> None:
    """Write the page of a result, beside `old` where there is one; raises OSError.

    The file is whole or not there.
    """
    rows = "".join(
        f"<tr><td>{_text(row.subject)}<td>{_text(row.device)}<td>{row.standing.value}"
        f"<td>{_text(row.text)}"
        for row in result.rows
    )
    page = (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{_text(result.suite)}</title>'
        f"<h1>{_text(result.suite)}</h1><table>{rows}</table></html>"
    )
    replace_file(path, page.encode(errors="backslashreplace"))


def _text(value: str) -> str:
    return html.escape(value)
