"""Which packages are wanted, and which versions of them fit."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnasync.machine import installation
from nnasync.machine.installation import NEWEST, OLDEST, PackageFacts, fits, read_installation

PROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"
VERSIONS = st.lists(st.integers(0, 30), min_size=1, max_size=4).map(tuple)


def packages(*requirements: str) -> list[PackageFacts]:
    return installation._packages(requirements)


@pytest.fixture
def versions(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    found = {"there": "2.1.0"}
    monkeypatch.setattr(installation, "version_of", found.get)
    return found


@pytest.mark.parametrize(
    ("version", "wanted", "does"),
    [
        ("2.60.1", ">=2.60,<2.61", True),
        ("2.61", ">=2.60,<2.61", False),
        ("2.61.0", "<2.61", False),
        ("2", ">=2.0", True),
        ("2.9", ">=2.10", False),
        ("3.0rc1+cpu", ">=2", True),
        ("1.5", "!=1.5.0", False),
        ("1.5", "==1.5.0", True),
        ("1.5", "~=9.9", True),
        ("nonsense", ">=9", True),
        ("1.0", "", True),
    ],
)
def test_versions(version: str, wanted: str, does: bool) -> None:
    assert fits(version, wanted) is does


@given(VERSIONS, VERSIONS)
def test_bounds_agree_with_the_order_of_numbers(
    ours: tuple[int, ...], bound: tuple[int, ...]
) -> None:
    def text(numbers: tuple[int, ...]) -> str:
        return ".".join(map(str, numbers))

    padded = [(*each, 0, 0, 0, 0)[:4] for each in (ours, bound)]
    assert fits(text(ours), f">={text(bound)}") == (padded[0] >= padded[1])
    assert fits(text(ours), f"<{text(bound)}") != fits(text(ours), f">={text(bound)}")


@given(st.text(max_size=40), st.text(max_size=20))
def test_whatever_metadata_says_is_survived(requirement: str, version: str) -> None:
    installation._parsed(requirement)
    assert fits(version, requirement) in (True, False)


@pytest.mark.usefixtures("versions")
def test_each_package_is_told_once_with_its_extras() -> None:
    assert packages("there>=2", 'there>=2; extra == "b"', 'there>=2; extra == "a"') == [
        PackageFacts("there", ">=2", ("a", "b"), "2.1.0", True)
    ]


@pytest.mark.usefixtures("versions")
def test_what_is_absent_fits_where_it_is_optional() -> None:
    assert [each.fits for each in packages("gone>=1", "also-gone>=1; extra == 'x'")] == [
        False,
        True,
    ]


@pytest.mark.usefixtures("versions")
def test_an_optional_package_of_an_old_version_does_not_fit() -> None:
    assert [each.fits for each in packages("there[more]>=3 ; extra == 'x'")] == [False]


@pytest.mark.usefixtures("versions")
def test_what_is_for_other_systems_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    wanted = ("a; sys_platform == 'win32'", "b; sys_platform != 'win32'", "c; os_name < '4'")
    assert [each.name for each in packages(*wanted)] == ["b"]


@pytest.mark.usefixtures("versions")
def test_what_is_for_other_versions_of_python_is_left_out() -> None:
    wanted = ("a; python_version < '3.2'", "b; python_version < '4' and extra == 'x'")
    assert [(each.name, each.extras) for each in packages(*wanted)] == [("b", ("x",))]


def test_the_packages_here_are_those_of_the_project() -> None:
    """The extras that are known here are ones that the project has."""
    project = tomllib.loads(PROJECT.read_text())["project"]
    found = read_installation()
    if not found.packages:
        pytest.skip("nnasync is not installed here")
    names = {name for each in found.packages for name in each.extras}
    assert names <= set(project["optional-dependencies"])
    assert {each.name for each in found.packages if not each.extras} >= {"numpy", "anyio"}


def test_the_oldest_python_is_that_of_the_project() -> None:
    project = tomllib.loads(PROJECT.read_text())["project"]
    assert project["requires-python"] == f">={OLDEST[0]}.{OLDEST[1]}"
    assert OLDEST <= installation.running_python() <= NEWEST
