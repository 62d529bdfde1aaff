"""House rules that no linter knows: sizes, public names, docstrings, one error per status."""

from __future__ import annotations

import ast
import io
import tokenize
from pathlib import Path

import pytest

from nnasync import errors, hal

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "nnasync"
MAX_FILE_LINES = 600
MAX_FUNCTION_LINES = 60
WORDS = {"hal.py", "errors.py"}
"""Modules whose every name is public, so that a list of them would only repeat the file."""
PUT_OFF = ("TO" + "DO", "FIX" + "ME", "XX" + "X")

Function = ast.FunctionDef | ast.AsyncFunctionDef


def sources(*folders: str) -> list[object]:
    """Python files below folders of the repository, as test parameters."""
    paths = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    return [pytest.param(path, id=str(path.relative_to(ROOT))) for path in paths]


ours = pytest.mark.parametrize("path", sources("nnasync"))
everywhere = pytest.mark.parametrize(
    "path", sources("nnasync", "tests", "benchmarks", "examples", "scripts")
)


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def long_functions(module: ast.Module) -> list[str]:
    return [
        node.name
        for node in ast.walk(module)
        if isinstance(node, Function)
        and (node.end_lineno or node.lineno) - node.lineno + 1 > MAX_FUNCTION_LINES
    ]


def public_names(module: ast.Module) -> list[str] | None:
    """What `__all__` lists, None without one."""
    for node in module.body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        if isinstance(node, ast.AnnAssign):
            targets = [node.target]
        if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
            assert isinstance(node, ast.Assign | ast.AnnAssign)
            assert node.value is not None
            return list(ast.literal_eval(node.value))
    return None


def defined_names(module: ast.Module) -> set[str]:
    """Names that a module binds at its top level, under conditions too."""
    found: set[str] = set()
    for node in module.body:
        for part in ast.walk(node) if isinstance(node, ast.If | ast.Try) else [node]:
            if isinstance(part, Function | ast.ClassDef):
                found.add(part.name)
            elif isinstance(part, ast.Import | ast.ImportFrom):
                found |= {(alias.asname or alias.name).split(".")[0] for alias in part.names}
            elif isinstance(part, ast.Assign | ast.AnnAssign):
                found |= {n.id for n in ast.walk(part) if isinstance(n, ast.Name)}
    return found


def unfinished(source: str) -> list[str]:
    """Comments that put work off."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = [token.string for token in tokens if token.type == tokenize.COMMENT]
    return [comment for comment in comments if any(word in comment for word in PUT_OFF)]


@everywhere
def test_file_is_short_enough(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MAX_FILE_LINES


@everywhere
def test_functions_are_short_enough(path: Path) -> None:
    assert long_functions(tree(path)) == []


@everywhere
def test_module_says_what_it_is_for(path: Path) -> None:
    docstring = ast.get_docstring(tree(path))
    assert docstring
    assert docstring.splitlines()[0].endswith((".", ":"))


@everywhere
def test_annotations_are_not_evaluated(path: Path) -> None:
    """In every module that has any; one that only imports has none."""
    body = tree(path).body
    imports = [node.module for node in body if isinstance(node, ast.ImportFrom)]
    annotated = any(isinstance(node, Function | ast.ClassDef | ast.AnnAssign) for node in body)
    assert imports[:1] == ["__future__"] or not annotated


@everywhere
def test_nothing_is_put_off(path: Path) -> None:
    assert unfinished(path.read_text(encoding="utf-8")) == []


@everywhere
def test_imports_are_absolute(path: Path) -> None:
    relative = [n for n in ast.walk(tree(path)) if isinstance(n, ast.ImportFrom) and n.level]
    assert relative == []


@ours
def test_public_module_lists_its_names(path: Path) -> None:
    names = public_names(tree(path))
    private = any(part.startswith("_") and part != "__init__.py" for part in path.parts)
    if path.name in WORDS or private or path == PACKAGE / "__main__.py":
        return
    assert names is not None, "has no __all__"
    assert sorted(set(names)) == sorted(names)
    assert set(names) - defined_names(tree(path)) == set()
    assert [name for name in names if name.startswith("_") and name != "__version__"] == []


@ours
def test_no_assert_outside_tests(path: Path) -> None:
    lines = [node.lineno for node in ast.walk(tree(path)) if isinstance(node, ast.Assert)]
    assert lines == []


@ours
def test_no_pickle(path: Path) -> None:
    """Whatever crosses a process border or comes from a file is hostile."""
    modules = {"pickle", "marshal", "shelve", "dill", "cloudpickle"}
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            assert modules.isdisjoint(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert (node.module or "").split(".")[0] not in modules


@ours
def test_only_the_command_line_reads_the_environment(path: Path) -> None:
    """And who finds the user's state folder and VLOG, and who keeps an engine from reporting."""
    names = {node.attr for node in ast.walk(tree(path)) if isinstance(node, ast.Attribute)}
    named = {
        PACKAGE / "compilation" / "state.py",
        PACKAGE / "tracing" / "verbose.py",
        PACKAGE / "drivers" / "onnxruntime" / "providers.py",
    }
    assert (
        PACKAGE / "cli" in path.parents or path in named or names.isdisjoint({"environ", "getenv"})
    )


@pytest.mark.parametrize("path", sources("nnasync", "examples"))
def test_no_path_of_the_checkout_s_surroundings(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    assert [word for word in ("../shared", "/home/", "/tmp/") if word in source] == []


def test_every_status_has_its_own_class() -> None:
    assert set(errors.BY_STATUS) == set(hal.ErrorStatus) - {hal.ErrorStatus.NONE}
    assert len(set(errors.BY_STATUS.values())) == len(errors.BY_STATUS)


@pytest.mark.parametrize("rule", [long_functions, unfinished])
def test_rules_find_offenders(rule: object) -> None:
    body = "\n".join(f"    x = {i}" for i in range(MAX_FUNCTION_LINES))
    if rule is long_functions:
        assert long_functions(ast.parse(f"def f():\n{body}\n")) == ["f"]
        assert long_functions(ast.parse("def f():\n    pass\n")) == []
    else:
        assert unfinished("x = 1  # TO" + "DO: later\n") == ["# TO" + "DO: later"]
        assert unfinished("x = 1  # done\n") == []
