"""What is published: a wheel with the package and its license, an sdist with its sources."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import nnasync
from scripts.check_packages import PROGRAMS

wheel = pytest.importorskip("hatchling.builders.wheel", reason="the build backend is not here")
sdist = pytest.importorskip("hatchling.builders.sdist", reason="the build backend is not here")

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
IMPORTED_AS = {
    "ai-edge-litert": "ai_edge_litert",
    "grpcio": "grpc",
    "opentelemetry-api": "opentelemetry",
    "protobuf": "google",
}
"""What a package is imported as, where that is not its name."""
TOLD_TO_TYPE_CHECKERS = {"typing_extensions"}
SOURCES = ("nnasync", "tests", "docs", "examples", "benchmarks", "scripts")


def tracked(*folders: str) -> set[str]:
    done = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", *folders], capture_output=True, text=True, check=False
    )
    if done.returncode or not done.stdout:
        pytest.skip("this is no clone, so nothing says what belongs to it")
    return {name for name in done.stdout.splitlines() if (ROOT / name).exists()}


def test_the_wheel_is_the_package(tmp_path: Path) -> None:
    (made,) = wheel.WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    assert Path(made).name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(made) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
        info = f"nnasync-{PROJECT['version']}.dist-info"
        metadata = archive.read(f"{info}/METADATA").decode()
        points = archive.read(f"{info}/entry_points.txt").decode()
    package = {name for name in names if not name.startswith(info)}
    assert tracked("nnasync") <= package
    assert {name for name in package if not name.startswith("nnasync/")} == set()
    assert {"nnasync/py.typed", f"{info}/licenses/LICENSE"} <= names
    assert "nnasync = nnasync.cli:main" in points
    assert "License-Expression: Apache-2.0" in metadata
    for extra in PROJECT["optional-dependencies"]:
        assert f"Provides-Extra: {extra}" in metadata


def test_the_sdist_has_what_a_distributor_needs(tmp_path: Path) -> None:
    (made,) = sdist.SdistBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    with tarfile.open(made) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert tracked(*SOURCES) <= names
    assert {"pyproject.toml", "LICENSE", "README.md", "Makefile", "PKG-INFO"} <= names
    assert not [name for name in names if name.startswith((".venv", "shared", "dist"))]


def test_the_version_is_one() -> None:
    assert PROJECT["version"] == nnasync.__version__


def test_each_extra_is_tried_in_an_environment_of_its_own() -> None:
    assert set(PROGRAMS) == {"", *PROJECT["optional-dependencies"]}


def test_what_is_imported_is_what_is_installed() -> None:
    """A package that only others of a developer's packages bring is missing at a user's."""
    declared = [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]
    wanted = {re.split(r"[\[<>=; ]", each)[0] for group in declared for each in group}
    known = {IMPORTED_AS.get(name, name) for name in wanted} | {"nnasync"}
    assert imported() - known - TOLD_TO_TYPE_CHECKERS == set()


def imported() -> set[str]:
    """The packages that the sources name in statements, but those of Python."""
    statement = re.compile(
        r"^ *(?:import (\w+)[\w.]*(?: as \w+)?(?:  #.*)?$|from (\w+)[\w.]* import )", re.MULTILINE
    )
    found = set()
    for path in (ROOT / "nnasync").rglob("*.py"):
        found |= {name for names in statement.findall(path.read_text("utf-8")) for name in names}
    return found - set(sys.stdlib_module_names) - {""}
