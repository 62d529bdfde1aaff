"""The glossary explains words that are in use."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "glossary.md"
ENTRY = re.compile(r"^\*\*(.+?)\*\*", re.MULTILINE)


def test_each_word_is_in_use() -> None:
    """In the package or in another document."""
    others = [path for path in (ROOT / "docs").glob("*.md") if path != PAGE]
    files = [*sorted((ROOT / "nnasync").rglob("*.py")), *others, ROOT / "README.md"]
    text = " ".join(path.read_text(encoding="utf-8").lower() for path in files)
    words = [word for entry in ENTRY.findall(PAGE.read_text("utf-8")) for word in entry.split(", ")]
    assert len(words) > 30
    missing = [word for word in words if word.strip("`").lower() not in text]
    assert missing == []


def test_words_are_in_order_and_explained_once() -> None:
    page = PAGE.read_text("utf-8")
    for part in page.split("\n## ")[1:]:
        words = [word.strip("`").lower() for word in ENTRY.findall(part)]
        assert words == sorted(set(words))
