"""One check of the HAL suite: what it is called, what it does, how it came out."""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable

from nnasync.conformance.trial import Fault, error_text
from nnasync.errors import NNError
from nnasync.hal import Struct


class CheckVerdict(enum.Enum):
    """How a check came out."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


class Skipped(Exception):
    """Why a check does not apply to the device."""


class Check(Struct, frozen=True):
    """A check of a group; it passes if `run` raises nothing, and is skipped if that is Skipped."""

    group: str
    name: str
    run: Callable[[], Awaitable[None]]


class CheckResult(Struct, frozen=True):
    """How a check came out, and why it did not pass."""

    group: str
    name: str
    verdict: CheckVerdict
    reason: str = ""


async def refused(call: Awaitable[object], *expected: type[NNError]) -> NNError:
    """The error by which a call is refused; raises Fault where it is none of those expected."""
    names = " or ".join(kind.__name__ for kind in expected)
    try:
        await call
    except expected as error:
        return error
    except Exception as error:
        raise Fault(f"must be refused with {names}, not {error_text(error)}") from error
    raise Fault(f"must be refused with {names}, but is taken")
