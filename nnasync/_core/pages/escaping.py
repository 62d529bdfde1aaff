"""What somebody wrote, as a part of a page: names of files and models are anybody's."""

from __future__ import annotations

import html


def text(value: object) -> str:
    """Returns a text escaped for HTML, in quotes too."""
    return html.escape(str(value), quote=True)
