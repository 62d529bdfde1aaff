"""The documents of the repository, and the blocks of code in them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from nnasync.hal import Struct

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("docs", "examples", "nnasync", ".github")
DOCUMENTS = [
    *sorted(ROOT.glob("*.md")),
    *(path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.md"))),
]
_FENCE = re.compile(r"(`{3,})(.*)")


class Block(Struct, frozen=True):
    """A block of code: in which language, from which line of its document."""

    language: str
    line: int
    text: str


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def blocks(text: str) -> Iterator[Block]:
    """What stands between fences; one that is not closed is an error."""
    ticks, language, begun, lines = "", "", 0, list[str]()
    for number, line in enumerate(text.splitlines(), 1):
        fence = _FENCE.fullmatch(line.strip())
        if not ticks and fence:
            ticks, language, begun, lines = fence[1], fence[2].strip(), number, []
        elif ticks and line.strip() == ticks:
            yield Block(language, begun, "\n".join(lines) + "\n")
            ticks = ""
        else:
            lines.append(line)
    assert not ticks, f"the block of line {begun} is not closed"


def blocks_of(name: str, language: str) -> list[Block]:
    """The blocks of a document in one language."""
    text = (ROOT / name).read_text("utf-8")
    return [block for block in blocks(text) if block.language == language]
