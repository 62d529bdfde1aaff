"""What docstrings and pages name in backticks is there: modules, files, attributes."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
THIS = Path(__file__).resolve().relative_to(ROOT)
CODE = ("nnasync", "benchmarks", "examples", "scripts", "tests")
PAGES = [
    *sorted(page for page in ROOT.glob("*.md") if page.name != "CHANGELOG.md"),
    *sorted(page for page in (ROOT / "docs").glob("*.md") if page.name != "operations.md"),
]
"""All but what tells of the past, and the list of operations, which is made of the code."""

FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
QUOTED = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
NAME = re.compile(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)(?:\([^()]*\))?")
FILE = re.compile(r"[\w/]+\.py")
WORD = re.compile(r"\w+")

FOREIGN = {
    "cpu.rt_runtime_us": "the system",
    "sched_autogroup_enabled": "the system",
    "chrt": "the system",
    "ipc": "the system",
    "ray.cluster_utils.Cluster": "Ray",
    "vfork": "the system",
    "OMP_NUM_THREADS": "OpenMP",
    "vpmaddubsw": "processors",
    "IBuffer": "the HAL",
    "tracestate": "W3C's Trace Context",
    "opentelemetry.propagate.inject": "OpenTelemetry",
    "batch_wait_timeout_s": "Ray Serve",
    "config.pbtxt": "Triton",
    "graphDump": "NNAPI",
    "FlowLimiterCalculator": "MediaPipe",
    "RunningMode.LIVE_STREAM": "MediaPipe",
    "detect_for_video": "MediaPipe",
    "Detection_PostProcess": "TFLite",
    "SELECT_TF_OPS": "TFLite",
    "get_signature_runner": "LiteRT",
    "jax.experimental.jax2tf.convert": "JAX",
    "skl2onnx.to_onnx": "skl2onnx",
    "silero_vad.onnx": "a model",
    "cache_in": "a model",
    "cache_out": "a model",
    "c0": "a page of HTML",
    "c7": "a page of HTML",
}
"""Names of others, and whose they are."""


@functools.cache
def files() -> tuple[Path, ...]:
    """Files of code, relative to the repository."""
    return tuple(
        path.relative_to(ROOT) for folder in CODE for path in sorted((ROOT / folder).rglob("*.py"))
    )


def docstrings(file: Path) -> list[ast.Constant]:
    return told_and_used(file)[0]


def names_in(file: Path) -> frozenset[str]:
    return told_and_used(file)[1]


@functools.cache
def told_and_used(file: Path) -> tuple[list[ast.Constant], frozenset[str]]:
    """Returns the docstrings of a file of ours, and the names in all else, also in strings.

    Docstrings are the strings that stand alone, so those below constants are among them.
    """
    text = (ROOT / file).read_text("utf-8")
    if file.parts[0] != "nnasync":
        return [], frozenset([*file.with_suffix("").parts, *WORD.findall(text)])
    told: dict[int, ast.Constant] = {}
    used = {*file.with_suffix("").parts}
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Expr(value=ast.Constant(value=str()) as alone):
                told[id(alone)] = alone
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
                used.add(name)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                used.add(name)
            case ast.ClassDef(name=name) | ast.keyword(arg=str(name)):
                used.add(name)
            case ast.alias(name=name) | ast.ImportFrom(module=str(name)):
                used.update(name.split("."))
            case ast.Constant(value=str(said)) if id(node) not in told:
                used.update([said, *WORD.findall(said)])
    return list(told.values()), frozenset(used)


@functools.cache
def known_names() -> frozenset[str]:
    return frozenset().union(*map(names_in, set(files()) - {THIS}))


@functools.cache
def modules() -> dict[str, list[Path]]:
    """Files of nnasync by all ends of their dotted names: `workers.task` is one, and `task`."""
    found: dict[str, list[Path]] = {}
    for file in files():
        parts = file.with_suffix("").parts
        parts = parts[:-1] if parts[-1] == "__init__" else parts
        for start in range(len(parts)):
            found.setdefault(".".join(parts[start:]), []).append(file)
    return found


def is_missing(quoted: str) -> bool:
    """Whether this is a file, a module or a name of ours that is not there."""
    if FILE.fullmatch(quoted):
        return not any(f"/{file}".endswith(f"/{quoted}") for file in files())
    match = NAME.fullmatch(quoted)
    return match is not None and match[1] not in FOREIGN and not is_ours(match[1])


def is_ours(name: str) -> bool:
    """Whether all parts of a name are in use, and it leads to no module that is not there."""
    parts = name.split(".")
    if name in known_names() or (len(parts) > 2 and name.rpartition(".")[0] in known_names()):
        return True  # A string, such as the name of a logger; or that of a logger below it.
    return known_names().issuperset(parts) and not (leads_to_module(parts) and is_moved(parts))


def leads_to_module(parts: list[str]) -> bool:
    """Whether a name is surely one in a module of ours: its whole path, or that of a class."""
    is_class = len(parts) > 1 and parts[-1][0].isupper() and parts[-2].islower()
    return parts[0] == "nnasync" or (is_class and parts[0] in modules())


def is_moved(parts: list[str]) -> bool:
    """Whether the longest beginning of a name that is a module has not what follows."""
    for end in range(len(parts), 0, -1):
        found = modules().get(".".join(parts[:end]), ())
        if found:
            return not any(names_in(file).issuperset(parts[end : end + 1]) for file in found)
    return True


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_name_what_is_there(page: Path) -> None:
    text = FENCED.sub("", page.read_text("utf-8"))
    assert [each for each in QUOTED.findall(text) if is_missing(each)] == []


def test_docstrings_name_what_is_there() -> None:
    missing = [
        f"{file}:{told.lineno}: {quoted}"
        for file in files()
        if file.parts[0] == "nnasync"
        for told in docstrings(file)
        for quoted in QUOTED.findall(str(told.value))
        if is_missing(quoted)
    ]
    assert missing == []


def test_names_of_others_are_not_ours() -> None:
    assert [name for name in FOREIGN if is_ours(name)] == []


@pytest.mark.parametrize(
    "name",
    [
        "nnasync.gone",
        "workers.gone.Load",
        "gone/task.py",
        "workers.task.Gone",
        "gone_name",
        "f.nowhere_named(x)",
    ],
)
def test_what_is_not_there_is_missing(name: str) -> None:
    """Strings of this file do not count as uses of names."""
    assert is_missing(name)


@pytest.mark.parametrize(
    "name", ["nnasync.tracing", "workers.task.Task", "workers/task.py", "net.launch(x)", "a b"]
)
def test_what_is_there_is_not(name: str) -> None:
    assert not is_missing(name)
