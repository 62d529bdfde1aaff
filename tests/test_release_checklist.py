"""The release checklist: what it finds open, in a tree that lacks one thing after the other."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.release_checklist import ROOT, open_points

CI = 'python: ["3.11"]'
PROJECT = '[project]\nversion = "0.2.0"\nclassifiers = ["Programming Language :: Python :: 3.11"]\n'
READY = {
    "pyproject.toml": PROJECT,
    "CHANGELOG.md": "# Changes\n\n## Unreleased\n\n## 0.2.0, 2026-12-01\n\n* A thing.\n",
    "nnasync/_core/packages.py": 'VERSION = "0.2.0"\n',
    "nnasync/py.typed": "",
    ".github/workflows/ci.yml": CI,
    "LICENSE": "",
    "README.md": "",
    "SECURITY.md": "",
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, text in READY.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_nothing_is_open(tree: Path) -> None:
    assert list(open_points(tree, "0.2.0")) == []


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("pyproject.toml", PROJECT.replace("0.2.0", "0.1.0"), "the version is 0.1.0"),
        ("pyproject.toml", PROJECT.replace("3.11", "3.15"), "Python 3.15 is a classifier"),
        ("nnasync/_core/packages.py", 'VERSION = "0.1.0"', "VERSION is another one"),
        ("CHANGELOG.md", "## Unreleased\n", "nothing under 0.2.0"),
        ("CHANGELOG.md", "## 0.2.0\n\n* A thing.\n", "has no date"),
        (
            "CHANGELOG.md",
            "## Unreleased\n\n* More.\n\n## [0.2.0] 2026-12-01\n\n* A thing.\n",
            "under Unreleased",
        ),
    ],
)
def test_each_point_is_found(tree: Path, name: str, text: str, told: str) -> None:
    (tree / name).write_text(text)
    (point,) = open_points(tree, "0.2.0")
    assert told in point


@pytest.mark.parametrize("name", ["LICENSE", "SECURITY.md", "nnasync/py.typed"])
def test_a_file_that_is_missing_is_found(tree: Path, name: str) -> None:
    (tree / name).unlink()
    assert list(open_points(tree, "0.2.0")) == [f"{name} is not there"]


def test_a_version_that_is_none(tree: Path) -> None:
    assert "is no version" in next(open_points(tree, "two"))


def test_this_tree_can_be_read_and_claims_no_python_that_is_not_tested() -> None:
    assert [
        point for point in open_points(ROOT, "0.1.0") if "Python" in point or "not there" in point
    ] == []
