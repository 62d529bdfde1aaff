"""The boundary: examples, documents, the command line and drivers of others import no internals."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import nnasync

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "nnasync"

CODE = re.compile(r"^```(?:py|python)\n(.*?)^```", re.MULTILINE | re.DOTALL)

PUBLIC = {
    "asgi",
    "audio",
    "batching",
    "conformance",
    "device",
    "devices",
    "dump",
    "engine",
    "errors",
    "experiments",
    "extensions",
    "fences",
    "hal",
    "machine",
    "memory",
    "ray",
    "serving",
    "streaming",
    "suites",
    "sync",
    "tracing",
    "vision",
}
IMPORTABLE = {"burst", "kernels", "scheduler"}
"""Not promised to stay as they are, but parts of the project's stated shape."""

COMMANDS = {"__main__", "cli"}

LOOKS_INSIDE = {
    "benchmarks/borders.py": "lays a border of a partition by hand",
    "benchmarks/call_cost.py": "counts wake-ups of the loop",
    "benchmarks/clients.py": "plays a client that breaks the rules of the wire",
    "benchmarks/compile_floor.py": "loads a file in the steps of its importer and its driver",
    "benchmarks/kernels.py": "times the steps of a plan of the reference",
    "benchmarks/message_queue.py": "times the rings between processes",
    "benchmarks/scheduling.py": "times workers and the thread of deadlines alone",
    "benchmarks/service_bursts.py": "takes the pinning of a burst's thread away",
    "scripts/devices_doc.py": "asks engines, without devices around them",
    "scripts/onnx_nodes.py": "runs what the importer makes of ONNX's own tests",
    "scripts/tflite_doc.py": "writes down the tables of the importer",
}
"""Of benchmarks and scripts, those that measure or write down what is inside."""

SHOWN = {"cli.demo_data", "cli.recognition"}
"""Of the command line, what examples show: networks that come with the package, and words."""


def modules() -> set[str]:
    """What lies in the package's folder, other than the internal folder."""
    files = {path.stem for path in PACKAGE.glob("*.py")}
    folders = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    return (files | folders) - {"__init__", "_core"}


def imported(source: str) -> Iterator[str]:
    """The modules of ours, and names of theirs, that some code imports."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("nnasync"))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("nnasync"):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def internal(source: str, *own: str) -> list[str]:
    """Those imports of some code that are not public; `own` are modules that it is a part of."""
    allowed = PUBLIC | IMPORTABLE | set(nnasync.__all__) | {"__version__", *own}
    found = []
    for name in imported(source):
        top, *rest = name.split(".")
        if top == "nnasync" and rest and rest[0] not in allowed and not is_shown(rest):
            found.append(name)
    return found


def is_shown(path: list[str]) -> bool:
    """Whether it is `demo_data`, or a name of one of those modules."""
    return ".".join(path[:2]) in SHOWN


def programs() -> list[object]:
    """Each example and driver for others, and each page with its pieces of code."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    found = [(path, path.read_text("utf-8")) for path in sorted((ROOT / "examples").rglob("*.py"))]
    for page in pages:
        blocks = re.findall(
            r"^```(?:py|python)\n(.*?)^```", page.read_text("utf-8"), re.MULTILINE | re.DOTALL
        )
        found += [(page, block) for block in blocks if is_code(block)]
    return [pytest.param(text, id=f"{path.name}-{n}") for n, (path, text) in enumerate(found)]


def is_code(block: str) -> bool:
    """Whether it is whole: some pages show parts of statements."""
    try:
        ast.parse(block)
    except SyntaxError:
        return False
    return True


def test_public_modules_and_no_others_lie_beside_the_internal_folder() -> None:
    assert modules() == PUBLIC | IMPORTABLE | COMMANDS


@pytest.mark.parametrize("name", sorted(PUBLIC | IMPORTABLE))
def test_public_modules_list_their_names(name: str) -> None:
    module = importlib.import_module(f"nnasync.{name}")
    if name != "errors":  # every name of it is public
        assert all(getattr(module, each) is not None for each in module.__all__)


@pytest.mark.parametrize("source", programs())
def test_programs_import_public_modules_only(source: str) -> None:
    assert internal(source) == []


@pytest.mark.parametrize("path", sorted((PACKAGE / "cli").rglob("*.py")), ids=lambda p: p.stem)
def test_the_command_line_imports_public_modules_only(path: Path) -> None:
    assert internal(path.read_text("utf-8"), "cli") == []


def test_benchmarks_and_scripts_that_look_inside_are_listed() -> None:
    found = [path for folder in ("benchmarks", "scripts") for path in (ROOT / folder).rglob("*.py")]
    inside = {path for path in found if internal(path.read_text("utf-8"), "cli")}
    assert {str(path.relative_to(ROOT)) for path in inside} == set(LOOKS_INSIDE)


def test_the_package_says_which_modules_are_public() -> None:
    text = " ".join((nnasync.__doc__ or "").split())
    sentence = text.partition("Public are")[2].partition(";")[0]
    assert set(re.findall(r"[a-z]+", sentence)) & modules() == PUBLIC


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import nnasync as nn", []),
        ("from nnasync import open_runtime, hal", []),
        ("from nnasync.engine import Engine", []),
        ("from nnasync._core.clock import now_ns", ["nnasync._core.clock.now_ns"]),
        ("from nnasync import _core", ["nnasync._core"]),
        ("import nnasync.cli", ["nnasync.cli"]),
        ("import nnasync_dense", []),
    ],
)
def test_internal_imports_are_seen(source: str, found: list[str]) -> None:
    assert internal(source) == found
