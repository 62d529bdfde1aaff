"""Who hears of the calls on a connection to a driver service, for a trace."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from nnasync._core.drivers.service.remote_fence import RemoteFence
from nnasync.fences import Fence

_UNMARKED = contextlib.nullcontext()


class CallObserver:
    """Hears of calls and tells nobody: the one of a connection that is not traced."""

    is_on = False

    def mark(self, what: str) -> contextlib.AbstractContextManager[None]:
        """Report what is done inside `with`, which may await, as a call to the service."""
        return _UNMARKED

    def sent(self, burst: int, serial: int) -> None:
        """A request of a burst is on its way."""

    def answered(self, burst: int, serial: int, what: str) -> None:
        """Notes that a call of a burst was answered; `what` is in the name that is reported."""

    def launching(self, number: int, fence: RemoteFence, wait_for: Sequence[Fence]) -> None:
        """Name the fence of a launch, and those that it waits for."""


UNOBSERVED = CallObserver()
