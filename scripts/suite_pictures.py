"""Pictures of a suite's page for docs/images, taken in a headless Chromium.

    nnasync suite benchmark --json benchmark.json
    python -m scripts.suite_pictures benchmark.json --subject detector

Takes the verdicts of the whole result, and one subject with its histograms.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path

from msgspec.structs import replace

from nnasync.experiments.report.pictures import take_pictures
from nnasync.suites import SuiteResult, read_suite, write_page

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    """Take both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images")
    parser.add_argument("--subject", required=True, help="the subject that is shown")
    parser.add_argument("result", type=Path, metavar="FILE.json")
    arguments = parser.parse_args()
    result = read_suite(arguments.result)
    rows = tuple(row for row in result.rows if row.subject == arguments.subject)
    if not rows:
        raise SystemExit(f"no row of {arguments.result} is of {arguments.subject}")
    _take(result, "verdicts", arguments.out / f"suite-{result.suite}-verdicts.png")
    path = arguments.out / f"suite-{result.suite}-subject.png"
    _take(replace(result, rows=rows), "subjects", path)


def _take(result: SuiteResult, section: str, path: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        write_page(result, page)
        (taken,) = take_pictures(page, Path(folder), (section,))
        shutil.copy(taken, path)
    print(path)


if __name__ == "__main__":
    main()
