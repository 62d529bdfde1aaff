"""A burst on a device of this process, as its client holds it (IBurstContext)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from nnasync._core.engine_device.fast_state import FastState
from nnasync.hal import ExecutionConfig, ExecutionResult, Request

if TYPE_CHECKING:
    from nnasync.burst import BurstServer


class _RunNow(Protocol):
    def __call__(self, request: Request, config: ExecutionConfig) -> ExecutionResult | None: ...


class EngineBurstContext:
    """A served burst (IBurstContext) in the client's process."""

    def __init__(self, server: BurstServer, run: _RunNow, fast_state: FastState) -> None:
        self._server = server
        self._run = run
        self._fast_state = fast_state

    @property
    def is_hot(self) -> bool:
        """Whether the device is in its fast state for this burst."""
        return self._fast_state.is_hot

    def run_now(self, request: Request, config: ExecutionConfig) -> ExecutionResult | None:
        """Run on this thread if the burst is idle and that is cheaper than a hop."""
        if not self._server.is_idle:
            return None
        self._fast_state.touch()
        return self._run(request, config)

    def free_memory(self, slot: int) -> None:
        """Let go of the memory of a slot."""
        self._server.free_memory(slot)

    def close(self) -> None:
        """End the burst, and leave the fast state."""
        self._server.close()
        self._fast_state.leave()
