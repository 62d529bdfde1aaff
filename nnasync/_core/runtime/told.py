"""What a runtime says of itself, in a terminal and in a notebook."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from nnasync._core.notebook import html_lines, html_table
from nnasync._core.words import counted
from nnasync.device import Device


class Telling(Protocol):
    """What is told of (`runtime.Runtime` is one)."""

    _state: str

    @property
    def devices(self) -> tuple[Device, ...]:
        """The devices, none before it is opened."""

    def _open_nets(self) -> Sequence[object]:
        """Returns the networks that are not closed."""


def as_line(runtime: Telling) -> str:
    """Returns a line with its state, its devices and how many networks it has."""
    names = ", ".join(device.name for device in runtime.devices) or "no devices yet"
    networks = counted(len(runtime._open_nets()), "network")
    return f"<Runtime {runtime._state}: {names}; {networks}>"


def as_html(runtime: Telling) -> str:
    """Returns its devices and its networks as HTML, for notebooks."""
    rows = [(device.name, device.version) for device in runtime.devices]
    return html_table(("device", "version"), rows, as_line(runtime)) + html_lines(
        "Networks", [repr(net) for net in runtime._open_nets()]
    )
