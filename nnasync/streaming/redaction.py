"""What may be shown of an address: where it leads to, not what opens it."""

from __future__ import annotations

import re


def redacted(name: str) -> str:
    """Returns an address without user, password and query, and for RTMP without the stream's key.

    What is no address is shown as it is. Cameras are given passwords with any character, encoded
    or not: so where there may be a password, all up to the last "@" is left out.
    """
    scheme, separator, rest = name.partition("://")
    if not separator:
        return name
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    if "@" in authority or ":" in authority.rpartition("]")[2]:
        rest = rest.rpartition("@")[2]
    shown = re.split(r"[?#]", rest, maxsplit=1)[0]
    if scheme.lower().startswith("rtmp") and "/" in shown:
        shown = shown.rpartition("/")[0] + "/***"
    return f"{scheme}://{shown}"
