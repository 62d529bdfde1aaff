"""Packages that exist for the time of a test: files in a folder on the path, with entry points."""

from __future__ import annotations

import importlib
import os
import sys
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from nnasync._core.drivers.entry_points import GROUP

__all__ = ["EXAMPLE", "install", "install_example", "installing"]

EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "driver_package"


def install(
    folder: Path,
    entry_points: Mapping[str, str],
    modules: Mapping[str, str],
    *,
    name: str = "nnasync-acme",
    version: str = "1.0",
    group: str = GROUP,
) -> None:
    """Put modules and the metadata of their distribution into a folder, as pip would."""
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    lines = [f"{device} = {target}" for device, target in entry_points.items()]
    (info / "entry_points.txt").write_text("\n".join([f"[{group}]", *lines, ""]))
    for module, source in modules.items():
        (folder / f"{module}.py").write_text(source)


def install_example(folder: Path) -> None:
    """Install the example's package by what its pyproject.toml says."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    install(
        folder,
        project["entry-points"][GROUP],
        {path.stem: path.read_text() for path in EXAMPLE.glob("*.py")},
        name=project["name"],
        version=project["version"],
    )


@contextmanager
def installing(folder: Path) -> Iterator[None]:
    """Have a folder on the path, in child processes too; its modules are forgotten afterwards."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
        patch.setenv("PYTHONPATH", os.pathsep.join(paths))
        try:
            yield
        finally:
            for name, module in list(sys.modules.items()):
                if str(getattr(module, "__file__", None) or "").startswith(str(folder)):
                    del sys.modules[name]
    importlib.invalidate_caches()
