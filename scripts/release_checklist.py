"""What is not ready yet for a release; changes and publishes nothing.

    python -m scripts.release_checklist 0.2.0

Looks at the tree alone. What takes longer has commands of its own, which are named at the end.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

__all__ = ["main", "open_points"]

ROOT = Path(__file__).resolve().parent.parent
_VERSION = re.compile(r"\d+\.\d+\.\d+(?:rc\d+)?")
_BY_HAND = (
    "scripts/check && scripts/test",
    "scripts/nightly",
    "python -m scripts.check_packages, with each Python of the classifiers",
    "scripts/bench, and its figures beside those of the last release",
    "examples/apps, each once on a machine with a camera and a microphone",
)


def main() -> int:
    """Print the points that are open, and the commands to run by hand; 1 where a point is open."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("version", help="the version to be released, such as 0.2.0")
    version = parser.parse_args().version
    points = [*open_points(ROOT, version), *_unclean(ROOT, version)]
    for point in points:
        print(f"open: {point}")
    print("\n".join(["by hand:", *(f"  {each}" for each in _BY_HAND)]))
    return 1 if points else 0


def open_points(root: Path, version: str) -> Iterator[str]:
    """What the files of a tree lack for a release of this version."""
    if not _VERSION.fullmatch(version):
        yield f"{version} is no version such as 0.2.0 or 0.2.0rc1"
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    if project["version"] != version:
        yield f"pyproject.toml: the version is {project['version']}"
    module = (root / "nnasync/_core/packages.py").read_text(encoding="utf-8")
    if f'VERSION = "{version}"' not in module:
        yield "nnasync/_core/packages.py: VERSION is another one"
    yield from _changes(root, version)
    yield from _pythons(root, project["classifiers"])
    for name in ("LICENSE", "README.md", "SECURITY.md", "nnasync/py.typed"):
        if not (root / name).is_file():
            yield f"{name} is not there"


def _changes(root: Path, version: str) -> Iterator[str]:
    text = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    sections = {}
    for part in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        head, _, body = part.partition("\n")
        sections[head.split()[0].strip("[],:")] = (head, body.strip())
    head, body = sections.get(version, ("", ""))
    if not body:
        yield f"CHANGELOG.md: nothing under {version}"
    elif not re.search(r"\d{4}-\d\d-\d\d", head):
        yield f"CHANGELOG.md: {version} has no date"
    if sections.get("Unreleased", ("", ""))[1]:
        yield "CHANGELOG.md: there are changes under Unreleased"


def _pythons(root: Path, classifiers: list[str]) -> Iterator[str]:
    """Each version that is claimed is one that continuous integration runs."""
    workflow = (root / ".github/workflows/ci.yml").read_text(encoding="utf-8")
    for classifier in classifiers:
        named = re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", classifier)
        if named is not None and f'"{named[1]}"' not in workflow:
            yield f"Python {named[1]} is a classifier, and not in .github/workflows/ci.yml"


def _unclean(root: Path, version: str) -> Iterator[str]:
    def git(*words: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(root), *words], capture_output=True, text=True, check=False
        )
        return done.stdout.strip()

    if git("status", "--porcelain"):
        yield "there are changes that are not committed"
    if git("tag", "--list", f"v{version}"):
        yield f"there is a tag v{version} already"


if __name__ == "__main__":
    sys.exit(main())
