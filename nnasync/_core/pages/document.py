"""The frame of a page: all that it needs is in it."""

from __future__ import annotations

import msgspec

from nnasync._core.pages.assets import asset
from nnasync._core.pages.escaping import text


def document(
    title: str, body: str, *, style: str = "", script: str = "", data: object = None
) -> str:
    """A whole page: `body` is HTML within its main part, `data` what its own script reads."""
    parts = [asset("page.js"), script]
    known = "" if data is None else _data(data)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{text(title)}</title>\n"
        f"<style>\n{asset('style.css')}{asset('page.css')}{style}</style>\n"
        f'</head>\n<body class="nnx">\n<main>\n{body}\n</main>\n{known}'
        f"<script>\n{''.join(parts)}</script>\n</body>\n</html>\n"
    )


def section(name: str, title: str, inner: str) -> str:
    """A part of a page with a heading; `name` is its id, `title` is text."""
    return f'<section id="{name}"><h2>{text(title)}</h2>{inner}</section>\n'


def chips(entries: dict[str, object]) -> str:
    """Names with their values, one beside the other."""
    told = "".join(
        f'<span class="chip">{text(name)} <b>{text(value)}</b></span>'
        for name, value in entries.items()
    )
    return f'<div class="chips">{told}</div>'


def warning(told: str) -> str:
    """Returns a warning that a reader must not miss, as HTML."""
    return f'<p class="warning">{text(told)}</p>'


def copy_button(name: str) -> str:
    """A button that copies the element with this id: a table as tab-separated lines."""
    return f'<button data-copy="{name}">copy</button>'


def _data(data: object) -> str:
    encoded = msgspec.json.encode(data).decode().replace("</", "<\\/").replace("<!--", "<\\u0021--")
    return f'<script type="application/json" id="data">{encoded}</script>\n'
