"""Reads pages as browsers would, and notes what the tests ask for."""

from __future__ import annotations

from html.parser import HTMLParser


class Reader(HTMLParser):
    """Notes elements, their ids, handlers and words, and whether each of them is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.addresses: list[str] = []
        self.handlers: list[str] = []
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "!doctype"):
            self.open.append(tag)
        self.tags.add(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            if name in ("src", "href"):
                self.addresses.append(value or "")
            if name.startswith("on"):
                self.handlers.append(value or "")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_data(self, data: str) -> None:
        if data.strip() and self.open and self.open[-1] not in ("script", "style"):
            self.words.append(data.strip())

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def read(html: str) -> Reader:
    """What is in a page; fails where elements are not closed."""
    reader = Reader()
    reader.feed(html)
    assert reader.open == []
    return reader
