"""The architecture, executable: imports of nnasync's modules point down the list of layers."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import nnasync

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "nnasync"
CORE = "_core"

LAYERS = [  # from the top; a module may import modules of the rows below its own
    {"cli"},
    {"ray"},
    {"asgi"},
    {"suites"},
    {"experiments"},
    {"serving"},
    {"streaming", "conformance", "devices", "service", "sync"},
    {"batching"},
    {"vision", "audio"},
    {"runtime"},
    {"execution"},
    {"dump"},
    {"compilation"},
    {"partition"},
    {"drivers", "importers"},
    {"formats", "engine_device", "versions"},
    {"plans"},
    {"engine"},
    {"device_helpers", "wire", "request_headers"},
    {"device"},
    {"model"},
    {"validation"},
    {"kernels"},
    {"extensions", "accuracy"},
    {"burst"},
    {"message_queue", "workers"},
    {"fences", "memory", "cache", "scheduler", "machine"},
    {"wakeup"},
    {"giving_way", "due_turn"},
    {
        *("tracing", "clock", "lag", "timeslice", "os_threads", "packages", "engine_packages"),
        *("kin", "child_process", "heap"),
    },
    {"real_time", "sole_wait"},
    {"arguments"},
    {"errors", "callbacks"},
    {"hal"},
    {
        *("collecting", "deferred", "endings", "notebook", "pages", "pickling"),
        *("state_files", "words"),
    },
]
HEIGHT = {name: -row for row, names in enumerate(LAYERS) for name in names}
FACADE = {"__init__", "__main__"}


def modules() -> Iterator[tuple[str, Path]]:
    """Each file of the package with the name of its layer's module."""
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = without_core(path.relative_to(PACKAGE).with_suffix("").parts)
        if parts[0] not in FACADE:
            yield parts[0], path


def without_core(parts: tuple[str, ...]) -> tuple[str, ...]:
    """A module is known by its name, whether it is public or in `_core`."""
    return parts[1:] if parts[0] == CORE and len(parts) > 1 else parts


@functools.cache
def imported(source: str) -> tuple[tuple[str, ...], ...]:
    """Path below nnasync of each import of ours in `source`, those inside functions included."""
    return tuple(_imported(source))


def _imported(source: str) -> Iterator[tuple[str, ...]]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            parts = (node.module or "").split(".")
            if parts == ["nnasync"] or parts == ["nnasync", CORE]:
                yield from ((alias.name,) for alias in node.names)
            elif parts[0] == "nnasync":
                for alias in node.names:
                    yield without_core((*parts[1:], alias.name))
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "nnasync":
                    yield without_core(tuple(alias.name.split(".")[1:]) or ("__init__",))


def wrong_imports(layer: str, source: str) -> list[str]:
    """Imports that do not point down from `layer`; a layer may import itself."""
    return [
        ".".join(path)
        for path in imported(source)
        if path[0] != layer
        and not (path[0] in HEIGHT and HEIGHT[path[0]] < HEIGHT[layer])
        and not (layer == "cli" and path[0] in {*nnasync.__all__, "__version__"})
    ]


def hidden_imports(source: str) -> list[int]:
    """Lines of imports of ours that stand inside a function."""
    if not re.search(r"^ +(?:from|import) nnasync", source, re.MULTILINE):
        return []
    return [
        part.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for part in ast.walk(node)
        if isinstance(part, ast.Import | ast.ImportFrom) and list(imported(ast.unparse(part)))
    ]


@pytest.mark.parametrize("layer", sorted({layer for layer, _ in modules()}))
def test_imports_point_down(layer: str) -> None:
    """And stand at the top: only slow packages of others may wait, and a command's own modules."""
    assert layer in HEIGHT, f"{layer} has no row in LAYERS"
    found: dict[str, list[str] | list[int]] = {}
    for name, path in modules():
        if name != layer:
            continue
        source = path.read_text(encoding="utf-8")
        if wrong := wrong_imports(layer, source):
            found[f"{path.relative_to(PACKAGE)}: imports"] = wrong
        if layer != "cli" and (hidden := hidden_imports(source)):
            found[f"{path.relative_to(PACKAGE)}: inside functions in lines"] = hidden
    assert found == {}


@pytest.mark.parametrize("family", ["drivers", "importers"])
def test_plug_ins_of_a_family_do_not_know_each_other(family: str) -> None:
    """A driver may import parts of its own package, never another driver."""
    for layer, path in modules():
        if layer != family or path.relative_to(PACKAGE / CORE / family).name == "__init__.py":
            continue
        own = path.relative_to(PACKAGE / CORE / family).with_suffix("").parts[0]
        others = [
            ".".join(names)
            for names in imported(path.read_text())
            if names[0] == family and (len(names) < 2 or names[1] != own)
        ]
        assert others == [], path


def test_only_the_command_line_and_the_suites_of_devices_need_conformance() -> None:
    users = {
        layer
        for layer, path in modules()
        if any(names[0] == "conformance" for names in imported(path.read_text(encoding="utf-8")))
    }
    assert users == {"cli", "suites", "conformance"}


def files_in_circles() -> set[str]:
    """Files that import one another, directly or not, those imported for their types included."""
    files = {}
    for _, path in modules():
        parts = without_core(path.relative_to(PACKAGE).with_suffix("").parts)
        files[parts[:-1] if parts[-1] == "__init__" else parts] = path
    needs = {
        name: {
            names[:length]
            for names in imported(path.read_text(encoding="utf-8"))
            for length in [max((n for n in range(len(names) + 1) if names[:n] in files), default=0)]
            if length
        }
        - {name}
        for name, path in files.items()
    }
    while ends := [
        name for name, own in needs.items() if not own or not any(name in o for o in needs.values())
    ]:
        for name in ends:
            del needs[name]
        for own in needs.values():
            own.difference_update(ends)
    return {".".join(name) for name in needs}


def test_no_files_import_each_other() -> None:
    assert files_in_circles() == set()


def test_every_row_is_a_set_of_modules_named_once() -> None:
    names = [name for row in LAYERS for name in row]
    assert len(names) == len(set(names))
    assert set(names) == {layer for layer, _ in modules()}


def rows_of_the_docs() -> list[set[str]]:
    """The table of docs/architecture.md: module names of its second column."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = text.partition("\n## Layers\n")[2]
    cells = [line.split("|")[2] for line in table.splitlines() if line.startswith("| ")]
    return [names for cell in cells if (names := set(re.findall(r"`(\w+)`", cell)))]


def rows_of_a_picture(text: str) -> list[set[str]]:
    """Indented lines of names, each with what they are behind two spaces."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return [set(re.split(r", *", re.split(r" {2,}", line)[0])) for line in lines]


def rows_of_the_package() -> list[set[str]]:
    docstring = ast.get_docstring(ast.parse((PACKAGE / "__init__.py").read_text())) or ""
    return rows_of_a_picture(docstring.partition("its own:\n")[2].partition("\nThe names")[0])


@pytest.mark.parametrize("rows", [rows_of_the_docs(), rows_of_the_package()])
def test_tables_of_the_layers_are_these(rows: list[set[str]]) -> None:
    assert rows == LAYERS


@pytest.mark.parametrize(
    ("layer", "source", "wrong"),
    [
        ("fences", "from nnasync.errors import BadState", []),
        ("fences", "from nnasync.memory import Pool", ["memory.Pool"]),
        ("fences", "import nnasync._core.runtime", ["runtime"]),
        ("fences", "from nnasync import hal; from nnasync._core import runtime", ["runtime"]),
        ("fences", "def f():\n    from nnasync.cli import main", ["cli.main"]),
        ("fences", "import nnasync", ["__init__"]),
        ("fences", "import numpy, nnasynchronous", []),
        ("cli", "from nnasync.streaming.stage import Stage", []),
        ("streaming", "from nnasync.streaming.stage import Stage", []),
        ("hal", "from nnasync.nothing import x", ["nothing.x"]),
    ],
)
def test_wrong_imports_are_seen(layer: str, source: str, wrong: list[str]) -> None:
    assert wrong_imports(layer, source) == wrong


def test_hidden_imports_are_seen() -> None:
    assert hidden_imports("def f():\n    import av\n    from nnasync import hal\n") == [3]
    assert hidden_imports("from nnasync import hal\n") == []
