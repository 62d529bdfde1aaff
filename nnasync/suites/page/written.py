"""The page of a result, alone or beside an older result, as a file."""

from __future__ import annotations

from pathlib import Path

from nnasync.suites.files import replace_file
from nnasync.suites.page.whole import page
from nnasync.suites.results import SuiteResult


def write_page(result: SuiteResult, path: Path, old: SuiteResult | None = None) -> None:
    """Write the page of a result, beside `old` where there is one; raises OSError.

    The file is whole or not there.
    """
    replace_file(path, page(result, old).encode(errors="backslashreplace"))
