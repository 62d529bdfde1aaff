"""A compiled network as those see it who are given one to call."""

from __future__ import annotations

from typing import Any, Protocol

from nnasync._core.arguments import told
from nnasync._core.clock import Deadline
from nnasync._core.execution.ports import Port
from nnasync.errors import InvalidArgument
from nnasync.hal import Priority


class Network(Protocol):
    """The part of a network that its callers use; a `Net` has it, and so has a `Batcher`."""

    @property
    def inputs(self) -> tuple[Port, ...]:
        """Returns names, shapes and dtypes of the inputs."""

    @property
    def outputs(self) -> tuple[Port, ...]:
        """Names, shapes and dtypes of the outputs."""

    async def __call__(
        self, *arrays: Any, deadline: Deadline | None = None, priority: Priority | None = None
    ) -> Any:
        """Run once."""


def check_network(name: str, net: object) -> None:
    """Raise InvalidArgument for what has no inputs and outputs, or cannot be called."""
    has_ports = all(isinstance(getattr(net, each, None), tuple) for each in ("inputs", "outputs"))
    if not has_ports or not callable(net) or isinstance(net, type):
        raise InvalidArgument(
            f"{name} is {told(net)}, it must be a compiled network, as `await rt.compile(model)` "
            "gives one"
        )
