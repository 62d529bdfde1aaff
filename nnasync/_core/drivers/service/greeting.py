"""How a client greets a service, and what it makes of the answer of any version."""

from __future__ import annotations

from typing import Any

from nnasync._core.engine_device.caching import library_version
from nnasync._core.wire.messages import MAGIC, PROTOCOL, Hello, Welcome, decode
from nnasync.errors import DeviceUnavailable, GeneralFailure

_LONGEST_VERSION = 40


def hello(call: int) -> Hello:
    """The greeting, as the answer to which this call is."""
    return Hello(MAGIC, PROTOCOL, library_version(), call)


def welcome_of(answer: bytes) -> Welcome:
    """Returns the description of its device that a service sends.

    Raises DeviceUnavailable for a service of another version, also where that says it in another
    way, as long as the version comes first; and for what is no answer to a greeting.
    """
    ours = library_version()
    try:
        welcome: Welcome = decode(answer, Welcome)
    except GeneralFailure as error:
        theirs = _version_in(answer)
        if theirs in ("", ours):
            raise DeviceUnavailable(str(error)) from error
    else:
        theirs = welcome.version
        if theirs == ours:
            return welcome
    raise DeviceUnavailable(
        f"the service is nnasync {theirs[:_LONGEST_VERSION]}, the client {ours}; both must be the "
        "same"
    )


def _version_in(answer: bytes) -> str:
    """The first text in an answer; empty where there is none."""
    try:
        parts = decode(answer, list[Any])
    except GeneralFailure:
        return ""
    return parts[0] if parts and isinstance(parts[0], str) else ""
