"""Pictures of the gallery of experiments for docs/images, taken in a headless Chromium.

    python -m scripts.experiment_pictures [FILE ...]

Simulates these files, else all of examples/experiments, and takes the charts along the sweep.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import tempfile
from pathlib import Path

from nnasync.experiments import read_experiment, run, write_report

ROOT = Path(__file__).resolve().parents[1]
FILES = ROOT / "examples" / "experiments"
SECTION = "sweep"


def main() -> None:
    """Take all of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images")
    parser.add_argument("files", type=Path, nargs="*", metavar="FILE")
    arguments = parser.parse_args()
    for file in arguments.files or sorted(FILES.glob("*.toml")):
        results = asyncio.run(run(read_experiment(file)))
        with tempfile.TemporaryDirectory() as folder:
            written = write_report(results, folder, sections=(SECTION,))
            if written.no_pictures:
                raise SystemExit(written.no_pictures)
            for picture in written.pictures:
                path = arguments.out / f"experiment-{file.stem.replace('_', '-')}.png"
                shutil.copy(picture, path)
                print(f"{path.relative_to(ROOT)}: {results.took_s:.1f} s simulated")


if __name__ == "__main__":
    main()
