"""PNGs of the sections of a report, taken by a headless browser, if there is one.

The page draws itself, so its pictures are what it shows: a browser opens it once to tell how high
each section is, and once for each to take it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from nnasync.errors import GeneralFailure
from nnasync.experiments.report.page import SECTIONS

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
WIDTH = 1240
_MARGIN = 30
_LIMIT_S = 60
_HEIGHT = re.compile(r'<section[^>]*\bid="([\w-]+)"[^>]*\bdata-height="(\d+)"')
_FLAGS = (
    "--headless",
    "--disable-gpu",
    "--hide-scrollbars",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
)


def browser() -> str | None:
    """Returns the program of a headless browser; None if none is installed."""
    found = (shutil.which(name) for name in BROWSERS)
    return next((path for path in found if path is not None), None)


def take_pictures(page: Path, folder: Path, sections: Sequence[str] = SECTIONS) -> list[Path]:
    """Write a PNG of each section that the page has, and return their paths; blocks.

    Raises:
        GeneralFailure: There is no browser, or it failed.
    """
    program = browser()
    if program is None:
        raise GeneralFailure(f"no browser for pictures: none of {', '.join(BROWSERS)} is installed")
    with tempfile.TemporaryDirectory() as profile:
        flags = [program, *_FLAGS, f"--user-data-dir={profile}"]
        if os.name == "posix" and os.geteuid() == 0:
            flags.append("--no-sandbox")  # the browser has none for root
        address = page.resolve().as_uri()
        told = _run([*flags, f"--window-size={WIDTH},900", "--dump-dom", address])
        heights = {name: int(height) for name, height in _HEIGHT.findall(told)}
        if not heights:
            raise GeneralFailure(f"{program} did not show {page}")
        taken = []
        for name in sections:
            if name in heights:
                path = folder.resolve() / f"{name}.png"
                size = f"--window-size={WIDTH},{heights[name] + _MARGIN}"
                _run([*flags, size, f"--screenshot={path}", f"{address}#only={name}"])
                taken.append(path)
    if missing := [path for path in taken if not path.exists()]:
        raise GeneralFailure(f"{program} wrote no {', '.join(path.name for path in missing)}")
    return taken


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_LIMIT_S, check=True, errors="replace"
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise GeneralFailure(f"{command[0]} took no picture: {error}") from error
    return done.stdout
