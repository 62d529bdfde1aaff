"""Commands, importers and drivers are in each place that CONTRIBUTING names; what lacks is told."""

from __future__ import annotations

import argparse
import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nnasync import cli
from nnasync._core.drivers import DRIVERS, Driver
from nnasync._core.importers import LOADERS
from nnasync.cli import main

ROOT = Path(__file__).resolve().parents[1]
COMMANDS = ROOT / "nnasync" / "cli"
PAGES = "".join(
    path.read_text("utf-8") for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
)
TESTS = {
    path: path.read_text("utf-8")
    for path in sorted((ROOT / "tests").rglob("*.py"))
    if path != Path(__file__).resolve()
}
README = (ROOT / "README.md").read_text("utf-8")


def is_tested(pattern: str) -> bool:
    """Whether something of this kind stands in a test."""
    return any(re.search(pattern, text) for text in TESTS.values())


# -- commands


def parsers() -> dict[str, argparse.ArgumentParser]:
    """The parser of each command, by its name."""
    (found,) = (
        action
        for action in cli._parser()._actions
        if isinstance(action, argparse._SubParsersAction)
    )
    return dict(found.choices)


def modules_with_a_command() -> set[str]:
    """Modules and packages of the command line that add a command."""
    found = set()
    for path in [*COMMANDS.glob("*.py"), *COMMANDS.glob("*/__init__.py")]:
        names = {
            node.name
            for node in ast.parse(path.read_text("utf-8")).body
            if isinstance(node, ast.FunctionDef)
        }
        if "add_parser" in names:
            name = path.parent.name if path.stem == "__init__" else path.stem
            found.add(name.replace("_", "-"))
    return found


def lacking_of_a_command(name: str) -> list[str]:
    """Where a command is still missing."""
    parser = parsers().get(name)
    if parser is None:
        return ["_COMMANDS in nnasync/cli/__init__.py"]
    parts = {
        "a description": parser.description,
        "examples in its help": "examples:" in (parser.epilog or ""),
        "a test that calls main": is_tested(rf'\[\s*"{name}"|"nnasync", "{name}"|nnasync {name}\b'),
        "README or a page of docs/": f"nnasync {name}" in PAGES or f"make {name}" in PAGES,
    }
    return [part for part, is_there in parts.items() if not is_there]


@pytest.mark.parametrize("name", sorted(modules_with_a_command()))
def test_commands_are_complete(name: str) -> None:
    assert lacking_of_a_command(name) == []


def test_a_command_without_a_place_is_told() -> None:
    assert lacking_of_a_command("new") == ["_COMMANDS in nnasync/cli/__init__.py"]


@pytest.mark.parametrize("name", sorted(modules_with_a_command()))
def test_help_of_every_command_is_there(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    told = capsys.readouterr().out
    assert f"usage: nnasync {name}" in told
    assert "nnasync._core" not in told
    described, _, examples = told.partition("examples:")
    assert max(map(len, described.splitlines())) <= 80
    assert max(map(len, examples.splitlines())) <= 100


# -- importers


def lacking_of_an_importer(suffix: str) -> list[str]:
    """Where the files of a suffix are still missing."""
    kind = suffix.removeprefix(".")
    tests = ROOT / "tests" / "importers"
    parts = {
        "LOADERS in nnasync/_core/importers/__init__.py": suffix in LOADERS,
        f"docs/{kind}.md": (ROOT / "docs" / f"{kind}.md").exists(),
        "README": f"`{suffix}`" in README,
        "the help of `nnasync run`": suffix in (parsers()["run"].description or ""),
        f"tests in tests/importers/{kind}": suffix == ".nnm"
        or any(tests.glob(f"{kind}/test_*.py"))
        or any(tests.glob(f"test_{kind}*.py")),
    }
    return [part for part, is_there in parts.items() if not is_there]


@pytest.mark.parametrize("suffix", sorted(LOADERS))
def test_importers_are_complete(suffix: str) -> None:
    assert lacking_of_an_importer(suffix) == []


def test_an_importer_without_its_places_is_told() -> None:
    assert len(lacking_of_an_importer(".new")) == 5


@pytest.mark.parametrize("suffix", sorted(LOADERS))
@pytest.mark.parametrize("content", [b"", b"garbage\n", b"\x00" * 4096, bytes(range(256)) * 64])
def test_what_is_no_file_of_a_kind_is_told_by_its_name(
    suffix: str, content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / f"broken{suffix}"
    path.write_bytes(content)
    assert main(["run", str(path)]) == 1
    assert capsys.readouterr().err.startswith(f"nnasync: error: {path}: ")


@pytest.mark.parametrize("suffix", sorted(LOADERS))
def test_a_file_that_is_not_there(
    suffix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / f"nothing{suffix}"
    assert main(["dump", str(path)]) == 1
    assert capsys.readouterr().err == f"nnasync: error: {path}: No such file or directory\n"


# -- drivers


def extras() -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return dict(project["optional-dependencies"])


def lacking_of_a_driver(name: str, driver: Driver) -> Iterator[str]:
    """Where a driver that comes with nnasync is still missing."""
    folder = driver.target.partition(":")[0].rpartition(".")[2]
    if driver.extra and driver.extra not in extras():
        yield f"the extra {driver.extra} in pyproject.toml"
    if driver.extra and driver.extra not in " ".join(extras()["engines"]):
        yield "the extra engines in pyproject.toml"
    tests = ROOT / "tests" / "drivers"
    if not [*tests.glob(f"{folder}/test_*.py"), *tests.glob(f"test_{folder}.py")]:
        yield f"tests in tests/drivers/{folder}"
    if driver.extra and f"## {name}" not in (ROOT / "docs" / "devices.md").read_text("utf-8"):
        yield "docs/devices.md, which python -m scripts.devices_doc writes"


@pytest.mark.parametrize("name", sorted(DRIVERS))
def test_drivers_are_complete(name: str) -> None:
    assert list(lacking_of_a_driver(name, DRIVERS[name])) == []


def test_a_driver_without_its_places_is_told() -> None:
    new = Driver("nnasync._core.drivers.new:NewEngine", "new", "new", "new")
    assert len(list(lacking_of_a_driver("new-cpu", new))) == 4
