"""A compiled network as those see it who are given one to call."""

from __future__ import annotations

from typing import Any, Protocol

from nnasync._core.clock import Deadline
from nnasync._core.execution.ports import Port
from nnasync.hal import Priority


class Network(Protocol):
    """What is used of a network; `Net` is one, and so is a `Batcher`."""

    @property
    def inputs(self) -> tuple[Port, ...]:
        """Names, shapes and dtypes of the inputs."""

    @property
    def outputs(self) -> tuple[Port, ...]:
        """Names, shapes and dtypes of the outputs."""

    async def __call__(
        self, *arrays: Any, deadline: Deadline | None = None, priority: Priority | None = None
    ) -> Any:
        """Run once."""
