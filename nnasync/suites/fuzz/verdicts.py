"""How an input ends: well, in one of several ways, or with a broken promise."""

from __future__ import annotations

import enum

import msgspec


class Ending(enum.Enum):
    """How far an input came with a device that kept its promises."""

    REFUSED = "refused"
    """It is not legal, and the device or the importer says so."""
    UNSUPPORTED = "unsupported"
    """It is legal, and the device does not take it, or does not prepare it."""
    NO_ROOM = "no room"
    """The device has as much to do or to keep as it may, or is not there: no word on the model."""
    TOO_LARGE = "too large"
    """Its operands alone take more memory than a test may: the device is only asked about it."""
    NOT_RUN = "not run"
    """It is prepared, and its executions are refused."""
    FAILED = "failed"
    """An execution ended with an error of `errors`."""
    RAN = "ran"
    DIED = "driver died"
    """The process of an isolated driver died, and the application was told and went on."""


class Broken(enum.Enum):
    """Which promise is broken; what is worse comes later."""

    ERROR = "wrong error"
    """Something else than an error of `errors` was raised."""
    ACCEPTED = "accepted what is not legal"
    WRONG = "wrong result"
    """Another result from a cache, or something written beside the outputs."""
    UNDEFINED = "undefined memory"
    """The outputs depend on what was in memory before."""
    LEAK = "leak"
    """The same input takes more memory each time."""
    MEMORY = "memory"
    """More memory than the limit."""
    HANG = "hang"
    CRASH = "crash"


class BrokenPromise(Exception):
    """An input for which a device breaks a promise."""

    def __init__(self, broken: Broken, text: str) -> None:
        super().__init__(text)
        self.broken = broken


class InputResult(msgspec.Struct, frozen=True):
    """What came of an input: an ending, or what is broken and how."""

    ending: Ending | None = None
    broken: Broken | None = None
    text: str = ""
