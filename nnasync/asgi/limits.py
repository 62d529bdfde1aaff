"""What a request gets of the deadline and the priority that it asks for, by its limits.

A client that says nothing gets the defaults of the `Limits`, and no client gets more than these
allow: a longer time or a higher priority is cut, as a service cuts it, while what is no time and no
priority is an error of the client.
"""

from __future__ import annotations

from collections.abc import Mapping

from nnasync import hal
from nnasync._core.arguments import check_kind, check_positive, or_none
from nnasync._core.request_headers import (
    PRIORITY_HEADER,
    TIMEOUT_HEADER,
    priority_of,
    timeout_ns_of,
)
from nnasync.errors import InvalidArgument


class Limits(hal.Struct, frozen=True, kw_only=True):
    """What the requests of a client get where they say nothing, and at most.

    Times are seconds; None is no limit. A priority of None is that of the network. Raises
    InvalidArgument for a time that is not positive, or a default beyond the limit.
    """

    timeout_s: float | None = 30.0
    max_timeout_s: float | None = 60.0
    priority: hal.Priority | None = None
    max_priority: hal.Priority = hal.Priority.HIGH

    def __post_init__(self) -> None:
        for name in ("timeout_s", "max_timeout_s"):
            time_s = getattr(self, name)
            or_none(check_positive, name, time_s, 1_000_000_000)
        or_none(check_kind, "priority", self.priority, hal.Priority, "a Priority")
        check_kind("max_priority", self.max_priority, hal.Priority, "a Priority")
        default_s, most_s = self.timeout_s, self.max_timeout_s
        if most_s is not None and (default_s is None or default_s > most_s):
            raise InvalidArgument(f"timeout_s={default_s} is beyond max_timeout_s={most_s}")
        if self.priority is not None and self.priority > self.max_priority:
            raise InvalidArgument(
                f"priority={self.priority.name} is above max_priority={self.max_priority.name}"
            )


NO_LIMITS = Limits(timeout_s=None, max_timeout_s=None)
"""Deadlines only for who asks for one."""


class Wishes(hal.Struct, frozen=True):
    """What a request gets: nanoseconds from its arrival, and a priority; None is the network's."""

    timeout_ns: int | None
    priority: hal.Priority | None


def wishes_of(headers: Mapping[str, str], limits: Limits) -> Wishes:
    """Returns a request's deadline and priority, by its headers (in lower case) and its limits.

    Raises InvalidArgument for a header that makes no sense.
    """
    check_kind("limits", limits, Limits, "Limits")
    timeout_ns = timeout_ns_of(headers.get(TIMEOUT_HEADER, ""))
    if timeout_ns is None:
        timeout_ns = _nanoseconds(limits.timeout_s)
    most_ns = _nanoseconds(limits.max_timeout_s)
    if timeout_ns is not None and most_ns is not None:
        timeout_ns = min(timeout_ns, most_ns)
    priority = priority_of(headers.get(PRIORITY_HEADER, ""))
    if priority is not None:
        priority = min(priority, limits.max_priority)
    return Wishes(timeout_ns, limits.priority if priority is None else priority)


def _nanoseconds(time_s: float | None) -> int | None:
    return None if time_s is None else int(time_s * 1e9)
