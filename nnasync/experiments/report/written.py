"""The report of results as files: the page, and pictures of its sections."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from nnasync._core.arguments import check_kind, words
from nnasync.errors import GeneralFailure, InvalidArgument
from nnasync.experiments.report.page import SECTIONS, page
from nnasync.experiments.report.pictures import take_pictures
from nnasync.experiments.results import Results

PAGE = "report.html"


class WrittenReport(msgspec.Struct, frozen=True):
    """The files of a report; `no_pictures` says why there are none, where they were wanted."""

    page: Path
    pictures: tuple[Path, ...] = ()
    no_pictures: str = ""


def write_report(
    results: Results,
    folder: str | Path,
    *,
    pictures: bool = True,
    sections: Sequence[str] = SECTIONS,
) -> WrittenReport:
    """Write the page into a folder, and PNGs of these sections where a browser can take them.

    Blocks for some seconds where there are pictures to be taken. Raises InvalidArgument for a
    section that no report has.
    """
    check_kind("results", results, Results, "Results, as read_results gives them")
    sections = words("sections", sections)
    if unknown := set(sections) - set(SECTIONS):
        raise InvalidArgument(
            f"no report has a section {', '.join(sorted(unknown))}; there is {', '.join(SECTIONS)}"
        )
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / PAGE
    path.write_text(page(results), encoding="utf-8")
    if not pictures:
        return WrittenReport(path)
    try:
        return WrittenReport(path, tuple(take_pictures(path, folder, sections)))
    except GeneralFailure as error:
        return WrittenReport(path, no_pictures=str(error))
