"""What plain HTTP clients say of a request's deadline and priority, in headers.

X-Request-Timeout: 0.05          seconds from the request's arrival; or 50ms, 500us, 2s
X-Request-Priority: high         or medium, low; or 1, 2, 3, of which 1 is the highest
"""

from __future__ import annotations

import re

from nnasync.errors import InvalidArgument
from nnasync.hal import Priority

TIMEOUT_HEADER = "x-request-timeout"
PRIORITY_HEADER = "x-request-priority"

_UNITS_NS = {"": 10**9, "s": 10**9, "ms": 10**6, "us": 10**3}
_TIME = re.compile(r"([0-9]{1,9}(?:\.[0-9]{0,9})?|\.[0-9]{1,9}) ?(s|ms|us|)", re.ASCII)
_PRIORITIES = {
    "": None,
    "0": None,
    "1": Priority.HIGH,
    "2": Priority.MEDIUM,
    "3": Priority.LOW,
    "high": Priority.HIGH,
    "medium": Priority.MEDIUM,
    "low": Priority.LOW,
}


def timeout_ns_of(text: str) -> int | None:
    """Nanoseconds of a header such as "0.05" or "50ms"; None where there is none.

    Raises InvalidArgument for anything else, and for a time of zero.
    """
    if not text:
        return None
    found = _TIME.fullmatch(text)
    time_ns = 0 if found is None else round(float(found[1]) * _UNITS_NS[found[2]])
    if time_ns <= 0:
        raise InvalidArgument(
            f"{TIMEOUT_HEADER} is {text[:40]!r}: it must be a positive number of seconds, such as "
            '"0.05", or have a unit, as "50ms", "500us" and "2s" do'
        )
    return time_ns


def priority_of(text: str) -> Priority | None:
    """The priority that a header names; None where there is none, and for "0", the default.

    Raises InvalidArgument for anything else.
    """
    try:
        return _PRIORITIES[text.lower()]
    except KeyError:
        raise InvalidArgument(
            f"{PRIORITY_HEADER} is {text[:40]!r}: it must be high, medium or low, or 1, 2 or 3"
        ) from None
