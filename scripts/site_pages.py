"""Lay out the pages of the documentation site, and check the links of what was built from them.

`python -m scripts.site_pages` writes `build/pages`, from which `zensical build` makes `build/site`:
the pages of `docs/`, a page of the reference for each public module, and a page for each file of
the repository that one of them links to, so that the site stands alone. A link to
a program that is a paragraph of its own becomes the program. `--check` reads the site that was
built, and lists links and anchors that lead nowhere. `make docs` does all of it.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import os.path
import re
import shutil
import sys
import unicodedata
from collections.abc import Iterator, Sequence
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import nnasync
from scripts.name_examples import found as examples
from scripts.name_examples import shown

__all__ = ["main", "modules", "names", "pages", "reference"]

ROOT = Path(__file__).resolve().parent.parent
_DOCS = ROOT / "docs"
PAGES = ROOT / "build" / "pages"
SITE = ROOT / "build" / "site"

_LINK = re.compile(
    r"^(?P<ticks>`{3,}).*?^(?P=ticks)$|\]\((?!\w+:|#)(?P<target>[^)\s#]+)(?P<anchor>#[^)\s]*)?\)",
    re.MULTILINE | re.DOTALL,
)
"""A block of code, which is left alone, or the second half of a link."""
_PROGRAM = re.compile(r"(?<=\n\n)\[[^\]\n]+\]\(([^)\s]+\.py)\)(?=\n\n)")
_SHOWN = {".py": "python", ".toml": "toml", ".md": "", ".yml": "yaml", ".txt": "text", "": "bash"}
"""Files that folders list, by suffix, with the language of their code."""
_OF_A_NAME = (
    "show_root_heading: true",
    "show_root_full_path: false",
    "show_root_toc_entry: true",
)
_LESS_STABLE = {
    "burst": "The burst protocol.",
    "kernels": "The operations.",
    "scheduler": "Who is next.",
}

_GUIDES = {
    "": "tutorial",
    "asgi": "asgi",
    "audio": "audio",
    "batching": "models",
    "burst": "architecture",
    "conformance": "conformance",
    "device": "write_a_driver",
    "devices": "onnx",
    "dump": "tracing",
    "engine": "write_a_driver",
    "errors": "errors",
    "experiments": "experiments",
    "extensions": "write_a_driver",
    "fences": "memory_domains",
    "hal": "glossary",
    "kernels": "operations",
    "machine": "machine",
    "memory": "memory",
    "ray": "asgi",
    "scheduler": "policies",
    "serving": "serving",
    "streaming": "streaming",
    "suites": "suites",
    "sync": "scripts_and_notebooks",
    "tracing": "tracing",
    "vision": "vision",
}
"""The page of `docs/` that shows the names of a module at work."""


def modules() -> tuple[str, ...]:
    """The public modules, as the package's docstring lists them, and those that may be imported."""
    text = " ".join((nnasync.__doc__ or "").split())
    sentence = text.partition("Public are")[2].partition(";")[0].partition("modules")[2]
    public = [word for word in re.findall(r"[a-z]+", sentence) if word != "and"]
    return (*public, *_LESS_STABLE)


def names(module: str) -> list[str]:
    """The public names of a module, in its order; the module is read and not imported."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(module)
    made = list(_made(ast.parse(Path(spec.origin).read_text(encoding="utf-8"))))
    for name, value in made:
        if name == "__all__" and value is not None:
            return list(ast.literal_eval(value))
    own = (name for name, value in made if not (isinstance(value, ast.Call) and _is_typevar(value)))
    return [name for name in own if not name.startswith("_")]


def _made(module: ast.Module) -> Iterator[tuple[str, ast.expr | None]]:
    """The names that a file makes at its top level, with the values of assigned ones."""
    for node in module.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name, None
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from ((each.id, node.value) for each in targets if isinstance(each, ast.Name))


def _is_typevar(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Name) and call.func.id == "TypeVar"


def reference(module: str) -> str:
    """The page of a module: its docstring, then each of its names, and where that is shown."""
    note = ""
    if module.partition(".")[2] in _LESS_STABLE:
        note = "This module may be imported, but changes more often than public ones.\n\n"
    guide = _GUIDES[module.partition(".")[2]]
    title = (_DOCS / f"{guide}.md").read_text("utf-8").partition("\n")[0].removeprefix("# ")
    note = f"Examples: [{title}](../{guide}.md).\n\n{note}"
    members = "".join(_entry(module, name) for name in names(module))
    return f"# {module}\n\n{note}::: {module}\n    options:\n      members: false\n{members}"


def _entry(module: str, name: str) -> str:
    """A name, as its docstring tells it, and a link to code that uses it and is run by a test."""
    options = "".join(f"      {each}\n" for each in _OF_A_NAME)
    example = _example(*shown(module, name))
    return f"\n::: {module}.{name}\n    options:\n{options}\nExample: {example}.\n"


def _example(path: str, line: int) -> str:
    """The link to a program, or to the part of a page that has a line."""
    if not path.endswith(".md"):
        return f"[{path}](../source/{path}.md)"
    name = path.removeprefix("docs/")
    above = (_DOCS / name).read_text("utf-8").splitlines()[:line]
    title = above[0].removeprefix("# ")
    headings = [each.lstrip("# ") for each in above if re.match("##+ ", each)]
    if not headings:
        return f"[{title}](../{name})"
    return f"[{title}: {headings[-1]}](../{name}#{_anchor(headings[-1])})"


def _anchor(heading: str) -> str:
    """The anchor that the builder makes of a heading."""
    plain = re.sub(r"[^\w\s-]", "", unicodedata.normalize("NFKD", heading)).strip().lower()
    return re.sub(r"[-\s]+", "-", plain)


def pages() -> dict[str, str]:
    """Every page of the site, as Markdown, by its path."""
    found = {f"reference/{name}.md": reference(f"nnasync.{name}") for name in modules()}
    found["reference/nnasync.md"] = reference("nnasync")
    programs = {ROOT / path for path, _ in examples().values() if (ROOT / path).exists()}
    waiting = sorted({*(ROOT / "docs").glob("*.md"), *programs})
    seen = set(waiting)
    while waiting:
        path = waiting.pop()
        text, targets = _moved(path, _text(path))
        found[_place(path)] = text
        waiting += targets - seen
        seen |= targets
    return found


def _place(path: Path) -> str:
    """Where the page of a file or folder of the repository is in the site."""
    inside = path.relative_to(ROOT).as_posix()
    if inside.startswith("docs/"):
        return inside.removeprefix("docs/")
    return f"source/{inside}/index.md" if path.is_dir() else f"source/{inside}.md"


def _text(path: Path) -> str:
    """A page, or the page that shows a file or lists a folder."""
    if path.suffix == ".md":
        return path.read_text(encoding="utf-8")
    title = f"# {path.relative_to(ROOT).as_posix()}\n\n"
    if path.is_dir():
        files = sorted(each for each in path.rglob("*") if _is_shown(each))
        entries = (each.relative_to(path).as_posix() for each in files)
        return title + "".join(f"* [{entry}]({entry})\n" for entry in entries)
    return f"{title}{_code(path)}\n"


def _code(path: Path) -> str:
    content = path.read_text(encoding="utf-8").rstrip("\n")
    return f"````{_SHOWN.get(path.suffix, '')}\n{content}\n````"


def _is_shown(path: Path) -> bool:
    return path.is_file() and path.suffix in _SHOWN and "__pycache__" not in path.parts


def _moved(path: Path, text: str) -> tuple[str, set[Path]]:
    """The text with its links made for the site, and what these need beside `docs/`."""
    targets = set()
    folder = path if path.is_dir() else path.parent
    own = os.path.dirname(_place(path))

    def link(match: re.Match[str]) -> str:
        if match["ticks"]:
            return match[0]
        target = Path(os.path.normpath(folder / match["target"]))
        if not target.exists() or ROOT not in target.parents:
            raise FileNotFoundError(f"{path.relative_to(ROOT)}: no {match['target']}")
        if _is_asset(target):
            place = target.relative_to(ROOT / "docs").as_posix()
        else:
            targets.add(target)
            place = _place(target)
        return f"]({os.path.relpath(place, own or '.')}{match['anchor'] or ''})"

    if path.suffix in ("", ".md"):
        text = _PROGRAM.sub(lambda match: _code(folder / match[1]), text)
        text = _LINK.sub(link, text)
    return text, targets


def _is_asset(path: Path) -> bool:
    return ROOT / "docs" / "images" in path.parents


def _write(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(_DOCS / "images", folder / "images")
    shutil.copy(_DOCS / "site.css", folder)
    for place, text in pages().items():
        path = folder / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


# -- the links of what was built


class _Page(HTMLParser):
    """The links and the anchors of one page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what an element links to, and by what it can be linked to."""
        found = dict(attrs)
        self.anchors |= {value for key in ("id", "name") if (value := found.get(key))}
        if tag in ("a", "img", "script", "link"):
            self.links += [value for key in ("href", "src") if (value := found.get(key))]


def broken(site: Path) -> Iterator[str]:
    """Links and anchors of a site that lead nowhere, each with its page."""
    read = {path: _Page(path) for path in site.rglob("*.html") if path.name != "404.html"}
    for path, page in sorted(read.items()):
        for link in dict.fromkeys(page.links):
            if not _leads_somewhere(path, link, read):
                yield f"{path.relative_to(site)}: {link}"


def _leads_somewhere(path: Path, link: str, read: dict[Path, _Page]) -> bool:
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return True
    target = Path(os.path.normpath(path.parent / unquote(parts.path))) if parts.path else path
    target = target / "index.html" if target.is_dir() else target
    if not target.exists():
        return False
    anchor = unquote(parts.fragment)
    return not anchor or target not in read or anchor in read[target].anchors


def main(argv: Sequence[str] | None = None) -> int:
    """Write the pages, or check the site; the exit code is 1 if a link leads nowhere."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="check the links of build/site")
    if not parser.parse_args(argv).check:
        _write(PAGES)
        return 0
    found = list(broken(SITE))
    print("\n".join((*found, f"{len(found)} broken links")))
    return int(bool(found) or not SITE.exists())


if __name__ == "__main__":
    sys.exit(main())
