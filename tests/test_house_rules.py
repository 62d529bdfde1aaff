"""House rules that no linter knows: sizes, public names, docstrings, one error per status."""

from __future__ import annotations

import ast
import functools
import io
import tokenize
from collections.abc import Callable
from pathlib import Path

import pytest

from nnasync import errors, hal

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "nnasync"
MAX_FILE_LINES = 600
MAX_FUNCTION_LINES = 60
WORDS = {"errors.py"}
"""Modules whose every name is public, so that a list of them would only repeat the file."""
PUT_OFF = ("TO" + "DO", "FIX" + "ME", "XX" + "X")

READS_ENVIRONMENT = {
    PACKAGE / "_core" / "state_files.py",
    PACKAGE / "tracing" / "verbose.py",
    PACKAGE / "_core" / "drivers" / "onnxruntime" / "providers.py",
    PACKAGE / "_core" / "drivers" / "service" / "child.py",
    PACKAGE / "streaming" / "sources" / "alsa.py",
}

Function = ast.FunctionDef | ast.AsyncFunctionDef
Rule = Callable[[Path, str, ast.Module], list[str]]


def sources(*folders: str) -> list[Path]:
    """Python files below folders of the repository."""
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


@functools.lru_cache(maxsize=1)
def nodes(module: ast.Module) -> list[ast.AST]:
    """All parts of a module, walked through once for all rules."""
    return list(ast.walk(module))


def long_functions(module: ast.Module) -> list[str]:
    return [
        node.name
        for node in nodes(module)
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
    if not any(word in source for word in PUT_OFF):
        return []
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = [token.string for token in tokens if token.type == tokenize.COMMENT]
    return [comment for comment in comments if any(word in comment for word in PUT_OFF)]


# -- rules: each gives what is against it in one file; those for all of our Python files


def length(path: Path, source: str, module: ast.Module) -> list[str]:
    """Files are short enough to be read at once."""
    lines = len(source.splitlines())
    return [f"{lines} lines"] if lines > MAX_FILE_LINES else []


def function_lengths(path: Path, source: str, module: ast.Module) -> list[str]:
    """So are functions."""
    return long_functions(module)


def purpose(path: Path, source: str, module: ast.Module) -> list[str]:
    """A module says what it is for, in one sentence first."""
    docstring = ast.get_docstring(module) or " "
    return [] if docstring.splitlines()[0].endswith((".", ":")) else [docstring.splitlines()[0]]


def evaluated_annotations(path: Path, source: str, module: ast.Module) -> list[str]:
    """Annotations are left alone in every module that has any; one that only imports has none."""
    imports = [node.module for node in module.body if isinstance(node, ast.ImportFrom)]
    kinds = Function | ast.ClassDef | ast.AnnAssign
    annotated = any(isinstance(node, kinds) for node in module.body)
    return (
        ["__future__ is not the first import"]
        if annotated and imports[:1] != ["__future__"]
        else []
    )


def put_off(path: Path, source: str, module: ast.Module) -> list[str]:
    """Nothing is put off."""
    return unfinished(source)


def relative_imports(path: Path, source: str, module: ast.Module) -> list[str]:
    """Imports are absolute."""
    imports = [node for node in nodes(module) if isinstance(node, ast.ImportFrom)]
    return [f"line {node.lineno}" for node in imports if node.level]


# -- rules for the package alone


def listed_names(path: Path, source: str, module: ast.Module) -> list[str]:
    """A public module or package lists its names: each once, bound, and none of them private.

    Inside of packages a list would repeat the file or the package's own list: there the underscore
    says which names are a module's own.
    """
    private = any(
        part.startswith("_") and part not in ("__init__.py", "_core") for part in path.parts
    )
    if path.name in WORDS or private or path == PACKAGE / "__main__.py":
        return []
    names = public_names(module)
    if names is None:
        is_inside = PACKAGE in path.parents[1 + (path.name == "__init__.py") :]
        return ["no __all__"] if not is_inside else []
    hidden = [name for name in names if name.startswith("_") and name != "__version__"]
    twice = [name for name in names if names.count(name) > 1]
    return [*hidden, *twice, *(set(names) - defined_names(module))]


def asserts(path: Path, source: str, module: ast.Module) -> list[str]:
    """Only tests assert."""
    return [f"line {node.lineno}" for node in nodes(module) if isinstance(node, ast.Assert)]


def pickles(path: Path, source: str, module: ast.Module) -> list[str]:
    """Whatever crosses a process border or comes from a file is hostile."""
    found = []
    for node in nodes(module):
        if isinstance(node, ast.Import):
            found += [alias.name.split(".")[0] for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found.append((node.module or "").split(".")[0])
    return sorted({"pickle", "marshal", "shelve", "dill", "cloudpickle"}.intersection(found))


def environment(path: Path, source: str, module: ast.Module) -> list[str]:
    """Only the command line reads it.

    And who finds the user's state folder and VLOG, who keeps an engine from reporting, and who
    tells ALSA where its configuration is.
    """
    if path in READS_ENVIRONMENT or PACKAGE / "cli" in path.parents:
        return []
    names = {node.attr for node in nodes(module) if isinstance(node, ast.Attribute)}
    return sorted(names & {"environ", "getenv"})


def surroundings(path: Path, source: str, module: ast.Module) -> list[str]:
    """No path of what happens to be around the checkout."""
    return [word for word in ("../shared", "/home/", "/tmp/") if word in source]


EVERYWHERE: list[Rule] = [
    length,
    function_lengths,
    purpose,
    evaluated_annotations,
    put_off,
    relative_imports,
]
OURS: list[Rule] = [listed_names, asserts, pickles, environment]
RULES: dict[str, list[Rule]] = {
    "nnasync": [*EVERYWHERE, *OURS, surroundings],
    "examples": [*EVERYWHERE, surroundings],
    "tests": EVERYWHERE,
    "benchmarks": EVERYWHERE,
    "scripts": EVERYWHERE,
}


def folders() -> list[Path]:
    """Folders with Python files under rules; one test each, for there are many files."""
    return sorted({path.parent for path in sources(*RULES)})


@pytest.mark.parametrize("folder", folders(), ids=lambda path: str(path.relative_to(ROOT)))
def test_files(folder: Path) -> None:
    found: dict[str, list[str]] = {}
    for path in sorted(folder.glob("*.py")):
        source = path.read_text(encoding="utf-8")
        module = ast.parse(source)
        for rule in RULES[path.relative_to(ROOT).parts[0]]:
            if against := rule(path, source, module):
                found[f"{path.name}: {rule.__name__}"] = against
    assert found == {}


def test_every_status_has_its_own_class() -> None:
    assert set(errors.BY_STATUS) == set(hal.ErrorStatus) - {hal.ErrorStatus.NONE}
    assert len(set(errors.BY_STATUS.values())) == len(errors.BY_STATUS)


def offences(rule: Rule, source: str, path: Path = PACKAGE / "thing.py") -> list[str]:
    return rule(path, source, ast.parse(source))


BODY = "\n".join(f"    x = {i}" for i in range(MAX_FUNCTION_LINES))


@pytest.mark.parametrize(
    ("rule", "bad", "good"),
    [
        (length, "x = 1\n" * (MAX_FILE_LINES + 1), "x = 1\n" * MAX_FILE_LINES),
        (function_lengths, f"def f():\n{BODY}\n", "def f():\n    pass\n"),
        (purpose, '"""No end"""', '"""One sentence.\n\nMore"""'),
        (purpose, "", '"""Names:"""'),
        (evaluated_annotations, "import os\nfrom re import x\ndef f(): ...", "from re import x"),
        (evaluated_annotations, "x: int = 1", "from __future__ import annotations\nx: int = 1"),
        (put_off, "x = 1  # TO" + "DO: later\n", "x = 1  # done\n"),
        (relative_imports, "from . import x", "from a import x"),
        (listed_names, "def f(): ...", "__all__ = ['f']\ndef f(): ..."),
        (listed_names, "__all__ = ['f', 'g']\ndef f(): ...", "__all__ = ['f']\nimport f"),
        (listed_names, "__all__ = ['_f']\ndef _f(): ...", "__all__: list[str] = []"),
        (listed_names, "__all__ = ['f', 'f']\ndef f(): ...", "__all__ = []"),
        (asserts, "def f():\n    assert f", "f()"),
        (pickles, "def f():\n    import marshal", "import json"),
        (pickles, "from pickle import loads", "from json import loads"),
        (environment, "import os\nx = os.environ['X']", "import os\nx = os.name"),
        (surroundings, "x = '../shared/x'", "x = '../x'"),
    ],
)
def test_rules_find_offenders(rule: Rule, bad: str, good: str) -> None:
    assert len(offences(rule, bad)) >= 1
    assert offences(rule, good) == []


def test_the_command_line_may_read_the_environment() -> None:
    source = "import os\nx = os.environ['X']"
    assert offences(environment, source, PACKAGE / "cli" / "thing.py") == []
