"""What a driver author writes: an engine, its plans and their bound calls; all synchronous."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from nnasync.hal import Array, Capabilities, DeviceType, ExecutionPreference, Extension, Model
from nnasync.workers import StopFlag

__all__ = ["BoundCall", "Engine", "Plan"]


class BoundCall(Protocol):
    """A plan bound to arrays; used by one thread at a time."""

    def run(self, stop: StopFlag) -> bool:
        """Run to the end: True, and ready for the next run.

        Where the engine can, it looks at `stop.raised` between operations and returns False when it
        is not 0; the next `run` goes on with the next operation.
        """

    def rewind(self) -> None:
        """Forget a stopped or failed run and give its scratch back; harmless if there is none."""


class Plan(Protocol):
    """A compiled model. Thread-safe: several of its calls run at once."""

    def bind(self, inputs: Sequence[Array | None], outputs: Sequence[Array]) -> BoundCall:
        """A call that reads and writes these C-contiguous arrays; None is an omitted input."""

    def trim(self) -> None:
        """Give idle scratch memory back."""


@runtime_checkable
class Engine(Protocol):
    """What a driver author writes; see `drivers/cpu` for a complete one."""

    @property
    def name(self) -> str:
        """Name of the device."""

    @property
    def version(self) -> str:
        """Version of the engine, not empty."""

    @property
    def type(self) -> DeviceType:
        """Kind of hardware."""

    @property
    def capabilities(self) -> Capabilities:
        """Performance figures, as ratios to the reference."""

    @property
    def extensions(self) -> tuple[Extension, ...]:
        """Vendor extensions that are supported in full."""

    @property
    def concurrency(self) -> int:
        """How many executions of one plan may run at once; 0 means any number."""

    def supported_operations(self, model: Model) -> list[bool]:
        """For each operation of the main subgraph, whether this engine can run it."""

    def compile(self, model: Model, preference: ExecutionPreference) -> Plan:
        """Compile a whole model; raises the typed error that says why not."""
