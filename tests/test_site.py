"""The documentation site: every page and every public name is in it, and links lead somewhere."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from nnasync import errors
from scripts import cli_doc, name_examples, site_pages
from tests.test_boundary import IMPORTABLE, PUBLIC

ROOT = Path(__file__).resolve().parent.parent
NAVIGATION = re.findall(
    r"^ +- [^:\n]+: (\S+\.md)$", (ROOT / "mkdocs.yml").read_text("utf-8"), re.MULTILINE
)
PACKAGES = ["nnasync", *(f"nnasync.{name}" for name in sorted(PUBLIC | IMPORTABLE))]


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text("utf-8")


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return site_pages.pages()


def test_each_page_is_in_the_navigation_once(pages: dict[str, str]) -> None:
    shown = {place for place in pages if not place.startswith("source/")}
    assert set(NAVIGATION) == shown, "enter new pages in mkdocs.yml"
    assert len(NAVIGATION) == len(set(NAVIGATION))


def test_each_public_module_has_a_page_with_its_names() -> None:
    assert set(site_pages.modules()) == PUBLIC | IMPORTABLE
    for module in PACKAGES:
        text = site_pages.reference(module)
        assert f"::: {module}\n" in text
        told = re.findall(rf"^::: {re.escape(module)}\.(\w+)$", text, re.MULTILINE)
        assert told == site_pages.names(module)


@pytest.mark.parametrize("module", PACKAGES)
def test_each_public_module_leads_to_a_page_that_uses_it(module: str) -> None:
    found = re.search(
        r"^Examples: \[.+\]\(\.\./(\w+\.md)\)\.$", site_pages.reference(module), re.MULTILINE
    )
    assert found
    text = page(found[1])
    if module.partition(".")[2] in IMPORTABLE:
        return  # The way of a call is told there, not by the names of the module.
    own = [name for name in site_pages.names(module) if re.search(rf"\b{name}\b", text)]
    assert own or module in text or "](../examples/" in text, found[1]


@pytest.mark.parametrize("module", PACKAGES)
def test_every_public_name_leads_to_an_example_that_uses_it(module: str) -> None:
    text = site_pages.reference(module)
    for name in site_pages.names(module):
        entry = text.partition(f"::: {module}.{name}\n")[2].partition("\n:::")[0]
        assert re.search(r"^Example: \[.+\]\(\.\./.+\)\.$", entry, re.MULTILINE), name
        path, line = name_examples.shown(module, name)
        assert (ROOT / path).read_text("utf-8").splitlines()[line - 1].strip(), name


def test_a_name_that_nothing_uses_is_noticed() -> None:
    with pytest.raises(KeyError, match="nnasync.streaming.no_such_name"):
        name_examples.shown("nnasync.streaming", "no_such_name")


@pytest.mark.parametrize(
    ("code", "used"),
    [
        ("import nnasync as nn\nnn.run(x)", {"nnasync.run"}),
        ("from nnasync import streaming\nstreaming.Graph()", {"nnasync.streaming.Graph"}),
        ("from nnasync.streaming import Graph as G\ny: G", {"nnasync.streaming.Graph"}),
        ("from nnasync.streaming import Graph", set()),
        ("import nnasync.audio\nnnasync.audio.hann(4)", {"nnasync.audio.hann"}),
        ("import numpy as nn\nnn.run()", set()),
    ],
)
def test_what_a_program_uses(code: str, used: set[str]) -> None:
    names = {name for name, _ in name_examples.used(ast.parse(code))}
    assert names - {"nnasync", "nnasync.streaming", "nnasync.audio"} == used


def test_a_name_that_is_handed_out_twice_is_one() -> None:
    assert name_examples.home("nnasync", "Timing") == name_examples.home("nnasync.hal", "Timing")


def test_the_errors_are_public_without_a_list() -> None:
    assert {"NNError", "BY_STATUS", "because"} <= set(site_pages.names("nnasync.errors"))


@pytest.mark.parametrize("module", PACKAGES)
def test_every_public_name_is_documented(module: str) -> None:
    found = importlib.import_module(module)
    wanting = [name for name in site_pages.names(module) if not is_documented(found, name)]
    assert wanting == []


def is_documented(module: object, name: str) -> bool:
    """Whether a name has a docstring: its own, or below the assignment where it is made."""
    value = getattr(module, name)
    if inspect.ismodule(value) or inspect.isclass(value) or inspect.isroutine(value):
        return bool(value.__doc__) and not str(value.__doc__).startswith(f"{name}(")
    return name in described(str(inspect.getsourcefile(module)), name)  # type: ignore[arg-type]


def described(path: str, name: str) -> set[str]:
    """The assigned names of a file with a docstring below, or of the file that it has one from."""
    tree = ast.parse(Path(path).read_text("utf-8"))
    found = set(told(tree))
    for node in ast.walk(tree):
        if name not in found and isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    home = importlib.import_module(node.module)
                    inner = described(str(inspect.getsourcefile(home)), alias.name)
                    found |= {name} if alias.name in inner else set()
    return found


def told(tree: ast.Module) -> Iterator[str]:
    for node, below in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            targets = node.targets if isinstance(node, ast.Assign) else []
            targets = [node.target] if isinstance(node, ast.AnnAssign) else targets
            yield from (target.id for target in targets if isinstance(target, ast.Name))


# -- pages


def test_the_page_of_commands_is_current() -> None:
    assert cli_doc.main(["--check"]) == 0, "run python -m scripts.cli_doc"


def test_the_page_of_commands_has_every_option() -> None:
    parsers = cli_doc.commands()
    assert {"nnasync run", "nnasync doctor"} <= set(parsers)
    for words, parser in parsers.items():
        section = cli_doc.page().partition(f"# {words}\n")[2].partition("\n## ")[0]
        told = [action for action in parser._actions if cli_doc.is_told(action)]
        options = {option for action in told for option in action.option_strings}
        assert [option for option in options if option not in section] == []


def test_an_old_page_of_commands_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli_doc, "PATH", tmp_path / "cli.md")
    assert cli_doc.main(["--check"]) == 1
    assert cli_doc.main([]) == 0
    assert cli_doc.main(["--check"]) == 0


def test_each_error_is_explained_once() -> None:
    text = page("errors.md")
    classes = {
        name
        for name, value in vars(errors).items()
        if inspect.isclass(value) and issubclass(value, errors.NNError)
    }
    assert sorted(re.findall(r"^### `(\w+)`$", text, re.MULTILINE)) == sorted(classes)
    for name in classes:
        section = text.partition(f"### `{name}`\n")[2].partition("\n#")[0]
        raised = "**What happened:**" in section and "**What to do:**" in section
        assert raised or "base of" in section, name
    assert set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)) == errors.REASONS


def test_the_tutorial_shows_examples_that_run(pages: dict[str, str]) -> None:
    shown = re.findall(r"^\[(.*)\]\(\.\./\1\)$", page("tutorial.md"), re.MULTILINE)
    assert len(shown) == 4
    for path in shown:
        assert (ROOT / path).read_text("utf-8") in pages["tutorial.md"]


# -- links


def test_links_within_the_pages_lead_to_pages(pages: dict[str, str]) -> None:
    assert any(place.startswith("source/examples/") for place in pages)
    assert "](source/examples/index.md)" in pages["tutorial.md"]


def test_a_link_to_nothing_ends_the_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.md").write_text("[b](b.md)\n")
    monkeypatch.setattr(site_pages, "ROOT", tmp_path)
    with pytest.raises(FileNotFoundError, match=r"docs/a\.md: no b\.md"):
        site_pages.pages()


def test_links_in_code_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "docs").mkdir()
    text = "[a](a.md#x)\n\n````python\nx[0](y)\n```\nx[0](y)\n````\n\n[a](a.md)\n"
    (tmp_path / "docs" / "a.md").write_text(text)
    monkeypatch.setattr(site_pages, "ROOT", tmp_path)
    assert site_pages.pages()["a.md"] == text


def test_broken_links_of_a_built_site_are_found(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "index.html").write_text('<h1 id="there">b</h1><img src="../no.png">')
    (tmp_path / "index.html").write_text(
        '<a href="b/#there">1</a><a href="b/#gone">2</a><a href="c/">3</a>'
        '<a href="https://example.org/x">4</a><a href="#top">5</a>'
    )
    assert list(site_pages.broken(tmp_path)) == [
        "b/index.html: ../no.png",
        "index.html: b/#gone",
        "index.html: c/",
        "index.html: #top",
    ]
