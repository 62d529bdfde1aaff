"""Where each public name is shown at work: in a page, in an example, in the command line.

`found()` has the file and the line by the name, such as "nnasync.streaming.Graph". A name that
several public modules hand out is one name. Nothing is imported: what a name stands for is read.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

__all__ = ["Place", "found", "home", "shown", "used"]

ROOT = Path(__file__).resolve().parent.parent
Place = tuple[str, int]
"""A file of the repository, and a line in it."""

_BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
_PROGRAMS = ("examples", "nnasync/cli")
"""Folders of programs that import public modules only."""


@functools.cache
def found() -> dict[str, Place]:
    """Where each name is shown first, by what it stands for (`home`); pages go before programs."""
    places: dict[str, Place] = {}
    for path in sorted((ROOT / "docs").glob("*.md")):
        _look(places, f"docs/{path.name}", _code_of_page(path.read_text("utf-8")))
    for folder in _PROGRAMS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            _look(places, path.relative_to(ROOT).as_posix(), path.read_text("utf-8"))
    return places


def shown(module: str, name: str) -> Place:
    """Where a name of a public module is shown; raises KeyError for one that nothing uses."""
    return found()[home(module, name)]


def _code_of_page(text: str) -> str:
    """The blocks of a page as one program, each in its lines; all of them know `nn`."""
    lines = ["import nnasync as nn"] + [""] * text.count("\n")
    for block in _BLOCK.finditer(text):
        first = text[: block.start(1)].count("\n")
        for number, line in enumerate(block[1].splitlines(), first):
            lines[number] = line
    return "\n".join(lines)


def _look(places: dict[str, Place], path: str, code: str) -> None:
    tree = compile(code, path, "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    for name, line in used(tree):
        module, _, own = name.rpartition(".")
        places.setdefault(home(module, own), (path, line))


def used(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """The names of nnasync that a program uses, by what it imported, with the lines."""
    known: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for each in filter(lambda alias: _is_ours(alias.name), node.names):
                known |= {each.asname: each.name} if each.asname else {"nnasync": "nnasync"}
        elif isinstance(node, ast.ImportFrom) and _is_ours(node.module or ""):
            known |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute):
            name = _written(node, known)
            if name:
                yield name, node.lineno


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] == "nnasync"


def _written(node: ast.expr, known: dict[str, str]) -> str:
    """The whole name that an expression is, "" for what is none of nnasync."""
    if isinstance(node, ast.Name):
        return known.get(node.id, "")
    if isinstance(node, ast.Attribute):
        outer = _written(node.value, known)
        return outer and f"{outer}.{node.attr}"
    return ""


@functools.cache
def home(module: str, name: str) -> str:
    """Where a name is made that a module may only hand out: both are the same thing."""
    for node in _imports(_read(module)):
        for alias in node.names:
            source = (node.module or "", alias.name)
            if (alias.asname or alias.name) == name and source != (module, name):
                return home(*source)
    return f"{module}.{name}"


def _imports(body: list[ast.stmt]) -> Iterator[ast.ImportFrom]:
    """The imports of a module that it makes itself, those for type checkers too."""
    for node in body:
        if isinstance(node, ast.ImportFrom):
            yield node
        elif isinstance(node, ast.If):
            yield from _imports(node.body)


@functools.cache
def _read(module: str) -> list[ast.stmt]:
    """What a module of this repository is made of; nothing for others."""
    place = ROOT.joinpath(*module.split("."))
    path = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    return ast.parse(path.read_text("utf-8")).body if path.is_file() else []
