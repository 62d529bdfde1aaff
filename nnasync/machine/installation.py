"""The interpreter, and the packages that nnasync asks for: which are there, and which do not fit.

What is asked for is read from the metadata of the installation, so that it is what pip was told.
Requirements are compared by the numbers of a release alone, which is all that ours use; one with an
operator or a marker that is not known here is left out rather than judged.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from importlib import metadata

from nnasync._core.packages import version_of
from nnasync.hal import Struct

OLDEST, NEWEST = (3, 11), (3, 14)
"""The versions of Python that nnasync is made for."""

_REQUIREMENT = re.compile(r"([\w.-]+)\s*(?:\[[^\]]*\])?\s*\(?([^;()]*)\)?\s*(?:;(.*))?")
_EXTRA = re.compile(r"""extra\s*==\s*['"]([\w.-]+)['"]""")
_PLATFORM = re.compile(r"""sys_platform\s*(==|!=)\s*['"](\w+)['"]""")
_VERSION = re.compile(r"""python_version\s*(>=|<=|<|>|==|!=)\s*['"]([\d.]+)['"]""")
_SPECIFIER = re.compile(r"(>=|<=|<|>|==|!=)\s*v?(\d+(?:\.\d+)*)$")


class PackageFacts(Struct, frozen=True):
    """A package that nnasync asks for: by which extras, "" for nnasync itself, and what is there.

    version: what is installed, empty where nothing is. fits: whether that is what is wanted; an
    absent package of an extra fits.
    """

    name: str
    wanted: str
    extras: tuple[str, ...]
    version: str
    fits: bool


class Installation(Struct, frozen=True):
    """The interpreter that runs, and the packages; none where nnasync itself is not installed."""

    python: tuple[int, int]
    implementation: str
    packages: tuple[PackageFacts, ...]

    def absent_extras(self) -> list[str]:
        """Extras of which something is not there, in the order of their names."""
        return sorted({name for each in self.packages if not each.version for name in each.extras})


def read_installation() -> Installation:
    """Returns the versions of Python, nnasync and packages that run here."""
    try:
        requirements = metadata.requires("nnasync") or []
    except metadata.PackageNotFoundError:
        requirements = []
    return Installation(running_python(), sys.implementation.name, tuple(_packages(requirements)))


def running_python() -> tuple[int, int]:
    """The version of the interpreter, to the minor one."""
    return sys.version_info[0], sys.version_info[1]


def _packages(requirements: Iterable[str]) -> list[PackageFacts]:
    """One of each name and what is wanted of it, with all extras that want it."""
    wanted: dict[tuple[str, str], set[str]] = {}
    for text in requirements:
        if (found := _parsed(text)) is not None:
            name, specifiers, extra = found
            wanted.setdefault((name, specifiers), set()).add(extra)
    return [
        _package(name, specifiers, tuple(sorted(extras)))
        for (name, specifiers), extras in wanted.items()
    ]


def _package(name: str, wanted: str, extras: tuple[str, ...]) -> PackageFacts:
    version = version_of(name) or ""
    does_fit = fits(version, wanted) if version else "" not in extras
    return PackageFacts(name, wanted, tuple(filter(None, extras)), version, does_fit)


def _parsed(text: str) -> tuple[str, str, str] | None:
    """Name, versions and extra of a requirement; None of one that is not for this system."""
    found = _REQUIREMENT.fullmatch(text.strip())
    if found is None:
        return None
    extra = ""
    for part in re.split(r"\band\b", found[3] or ""):
        marker = part.strip().strip("()").strip()
        if named := _EXTRA.fullmatch(marker):
            extra = named[1]
        elif system := _PLATFORM.fullmatch(marker):
            if (system[2] == sys.platform) != (system[1] == "=="):
                return None
        elif python := _VERSION.fullmatch(marker):
            if not fits(".".join(map(str, running_python())), python[1] + python[2]):
                return None
        elif marker:
            return None
    return found[1], found[2].strip(), extra


def fits(version: str, wanted: str) -> bool:
    """Returns whether a version is among those that are wanted, such as ">=2.60,<2.61"."""
    return all(_fits(version, each.strip()) for each in wanted.split(",") if each.strip())


def _fits(version: str, specifier: str) -> bool:
    asked, release = _SPECIFIER.match(specifier), re.match(r"\d+(?:\.\d+)*", version)
    if asked is None or release is None:
        return True
    ours, bound = _numbers(release[0]), _numbers(asked[2])
    length = max(len(ours), len(bound))
    ours, bound = (each + (0,) * (length - len(each)) for each in (ours, bound))
    return {
        ">=": ours >= bound,
        "<=": ours <= bound,
        "<": ours < bound,
        ">": ours > bound,
        "==": ours == bound,
        "!=": ours != bound,
    }[asked[1]]


def _numbers(release: str) -> tuple[int, ...]:
    return tuple(map(int, release.split(".")))
