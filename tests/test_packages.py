"""Versions and entry points: what importlib.metadata says, without asking it where it is plain."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from nnasync._core.packages import (
    EntryPoint,
    entry_points,
    is_importable,
    version_of,
)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the library was asked; it answers as always."""
    questions: list[str] = []
    version, points = metadata.version, metadata.entry_points

    def ask_version(name: str) -> str:
        questions.append(name)
        return version(name)

    def ask_entry_points(**wanted: Any) -> Any:
        questions.append(wanted["group"])
        return points(**wanted)

    monkeypatch.setattr(metadata, "version", ask_version)
    monkeypatch.setattr(metadata, "entry_points", ask_entry_points)
    return questions


def add(folder: Path, info: str, name: str, version: str, points: str = "") -> None:
    (folder / info).mkdir()
    (folder / info / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n")
    if points:
        (folder / info / "entry_points.txt").write_text(points)


def test_versions_are_those_of_the_library_without_asking_it(asked: list[str]) -> None:
    installed = {each.name: each.version for each in metadata.distributions()}
    assert {name: version_of(name) for name in installed} == installed
    assert asked == []
    assert version_of("no-such-distribution") is None
    assert asked == []


@pytest.mark.parametrize("name", ["acme-thing", "acme_thing", "Acme.Thing"])
def test_spellings_of_a_name(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add(tmp_path, "acme_thing-1.2+cpu.dist-info", "acme-thing", "1.2+cpu")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert version_of(name) == "1.2+cpu"
    assert version_of("acme") is None


def test_the_first_place_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: list[str]
) -> None:
    for number in (1, 2):
        (tmp_path / f"{number}").mkdir()
        add(tmp_path / f"{number}", f"acme-{number}.dist-info", "acme", f"{number}")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "2"), "/no/such/place", str(tmp_path / "1")])
    assert (version_of("acme"), asked) == ("2", [])


def test_what_was_installed_meanwhile_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    assert version_of("acme") is None
    add(tmp_path, "acme-1.dist-info", "acme", "1")
    assert version_of("acme") == "1"


@pytest.mark.parametrize(
    "infos",
    [
        ("acme-1.0_rc1.dist-info",),
        ("acme-1.egg-info",),
        ("acme-2.dist-info", "Acme-1.dist-info"),
        ("acme-1-py3.dist-info",),
        ("acme.dist-info",),
    ],
)
def test_the_library_is_asked_where_names_do_not_tell(
    infos: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: list[str]
) -> None:
    for info in infos:
        add(tmp_path, info, "acme", "1.0.rc1")
        (tmp_path / info / "PKG-INFO").write_text("Name: acme\nVersion: 1.0.rc1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert (version_of("acme"), asked) == ("1.0.rc1", ["acme"])


@pytest.mark.parametrize("place", ["archive", "egg", "finder"])
def test_places_into_which_only_the_library_can_look(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: list[str]
) -> None:
    if place == "finder":
        finder = type("Finder", (), {"find_distributions": lambda *_: [], "find_spec": print})
        monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, finder])
    else:
        (tmp_path / "thing.egg").mkdir()
        (tmp_path / "thing.zip").touch()
        name = {"archive": "thing.zip", "egg": "thing.egg"}[place]
        monkeypatch.setattr(sys, "path", [str(tmp_path / name)])
    assert version_of("no-such-distribution") is None
    assert entry_points("acme.things") == ()
    assert asked == ["no-such-distribution", "acme.things"]


def test_entry_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: list[str]) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    add(tmp_path, "other-1.dist-info", "other", "1", "[console_scripts]\nthing = other:main\n")
    assert (entry_points("acme.things"), asked) == ((), [])
    add(tmp_path, "acme-1.dist-info", "acme", "1", "[acme.things]\nb = m:f\na = n:g\n")
    assert entry_points("acme.things") == (
        EntryPoint("a", "n:g", "acme 1"),
        EntryPoint("b", "m:f", "acme 1"),
    )
    assert asked == ["acme.things"]


def test_opening_a_runtime_does_not_import_the_library() -> None:
    program = (
        "import sys, nnasync as nn\n"
        "async def main():\n"
        "    async with nn.open_runtime():\n"
        "        sys.exit('importlib.metadata' in sys.modules)\n"
        "nn.run(main)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], check=False)
    assert done.returncode == 0


def test_what_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_importable("sys")
    assert is_importable("sqlite3")
    assert not is_importable("no_such_module")
    monkeypatch.setitem(sys.modules, "sqlite3", None)
    assert not is_importable("sqlite3")


def test_versions_of_names_that_are_spelled_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: list[str]
) -> None:
    for name in ("Acme_Extra.Things", "acme"):
        add(tmp_path, f"{name}-2.5.dist-info", name, "2.5")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert [version_of(name) for name in ("acme-extra_things", "ACME", "acme.extra")] == [
        "2.5",
        "2.5",
        None,
    ]
    assert asked == []
