"""Without an extra, each part that needs it says which command installs it.

What is blocked would have been imported by tests before, so each case has a process of its own.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

from scripts.check_packages import PROGRAMS

PROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"

BLOCKED = """
import sys

sys.modules[sys.argv[1]] = None
import nnasync as nn
try:
    exec(sys.argv[2])
except (nn.errors.InvalidArgument, ImportError) as error:
    print(f"{type(error).__name__}: {error}")
"""

CASES = [
    ("starlette", "from nnasync.asgi import Networks", "asgi"),
    ("starlette", "from nnasync import asgi; asgi.HangUps", "asgi"),
    ("starlette", "from nnasync.serving import http_app", "serve"),
    ("ray", "from nnasync import ray; ray.app(print)", "ray"),
    ("ray", "from nnasync import ray; ray.device('litert-cpu')", "ray"),
    (
        "av",
        "from nnasync.streaming import open_audio; open_audio()",
        "media",
    ),
    ("av", "from nnasync.cli import main; main(['demo'])", "demo"),
    ("uvicorn", "from nnasync.cli import main; main(['serve', 'x.tflite'])", "serve"),
    ("google", "from nnasync.cli import main; main(['serve', 'x.tflite'])", "serve"),
    ("uvicorn", "from nnasync.cli import main; main(['live'])", "live"),
    ("pyarrow", "from nnasync.streaming import results_file; results_file('x.parquet')", "parquet"),
    ("ai_edge_litert", "nn.sync.open_runtime(devices=['litert-cpu']).__enter__()", "litert"),
    ("ai_edge_litert", "nn.sync.open_runtime(isolate=['litert-cpu']).__enter__()", "litert"),
]


@pytest.mark.parametrize(("package", "code", "extra"), CASES)
def test_what_is_missing_is_named_with_the_line_that_installs_it(
    package: str, code: str, extra: str
) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", BLOCKED, package, code], capture_output=True, text=True, timeout=60
    )
    told = ran.stdout + ran.stderr
    assert f"pip install 'nnasync[{extra}]'" in told
    assert "Traceback" not in told


def test_what_needs_no_package_is_there_without_it() -> None:
    code = "from nnasync import asgi, serving; print(asgi.Limits(), serving.ModelServer)"
    ran = subprocess.run(
        [sys.executable, "-c", BLOCKED, "starlette", code],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "Limits(" in ran.stdout


ALONE = """
import sys
sys.modules.update(dict.fromkeys(sys.argv[1].split(",")))
exec(sys.argv[2])
"""

_REQUIREMENT = re.compile(r"([\w.-]+)\s*(?:\[([^\]]*)\])?[^;]*(?:;(.*))?")
_EXTRA = re.compile(r"""extra\s*==\s*['"]([\w.-]+)['"]""")


def requirements(name: str, extras: set[str]) -> Iterator[tuple[str, set[str]]]:
    """The distributions, with extras of theirs, that one asks for with these extras."""
    if name == "nnasync":
        project = tomllib.loads(PROJECT.read_text())["project"]
        lines = [*project["dependencies"]]
        lines += [line for each in extras for line in project["optional-dependencies"][each]]
    else:
        lines = metadata.requires(name) or []
    for line in lines:
        found = _REQUIREMENT.fullmatch(line.strip())
        assert found is not None, line
        wanted = _EXTRA.search(found[3] or "")
        if wanted is None or wanted[1] in extras:
            yield normal(found[1]), {each.strip() for each in (found[2] or "").split(",") if each}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def is_installed(distribution: str) -> bool:
    with contextlib.suppress(metadata.PackageNotFoundError):
        return bool(metadata.version(distribution))
    return False


def brought_by(extra: str) -> set[str]:
    """All distributions that are there once `nnasync[extra]` is installed."""
    found: dict[str, set[str]] = {}
    waiting = [("nnasync", {extra} - {""})]
    while waiting:
        name, extras = waiting.pop()
        if name in found and extras <= found[name]:
            continue
        found[name] = found.get(name, set()) | extras
        with contextlib.suppress(metadata.PackageNotFoundError):  # for other systems
            waiting += requirements(name, found[name])
    return set(found)


@pytest.mark.parametrize("extra", sorted(PROGRAMS.keys() - {"testing"}))
def test_an_extra_brings_all_that_its_part_imports(extra: str) -> None:
    """Not `testing`: hypothesis loads what any installed package offers it."""
    brought = brought_by(extra)
    own = [name for name, _ in requirements("nnasync", {extra} - {""})]
    if missing := [name for name in own if name != "nnasync" and not is_installed(name)]:
        pytest.skip(f"{', '.join(missing)}: not installed")
    absent = [
        module
        for module, distributions in metadata.packages_distributions().items()
        if not brought & {normal(each) for each in distributions} and module.isidentifier()
    ]
    assert "pytest" in absent
    ran = subprocess.run(
        [sys.executable, "-c", ALONE, ",".join(absent), PROGRAMS[extra]],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stderr
