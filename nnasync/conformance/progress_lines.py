"""What a worker of a conformance run says: lines of JSON, one message each."""

from __future__ import annotations

import msgspec

from nnasync.conformance.results import CaseResult


class Begun(msgspec.Struct, frozen=True, tag="begun"):
    """A case that runs from now on."""

    name: str
    spec: str
    source: str
    operations: tuple[str, ...]


class CaseDone(msgspec.Struct, frozen=True, tag="done"):
    """The result of the case that was begun."""

    result: CaseResult


class Stopped(msgspec.Struct, frozen=True, tag="stopped"):
    """Why the run cannot go on; the last message."""

    reason: str


class Ended(msgspec.Struct, frozen=True, tag="ended"):
    """All cases were run; the last message."""


Message = Begun | CaseDone | Stopped | Ended
