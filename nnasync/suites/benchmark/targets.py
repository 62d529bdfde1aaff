"""What is benchmarked: a device by name, one in a process of its own, several, or the runtime.

`litert-cpu` is an installed device, `module:factory` one that is not, `isolated:litert-cpu` the
device in a process of its own, `openvino-cpu+nnasync-reference` a network divided between the two,
and `auto` what a runtime with all devices chooses.
"""

from __future__ import annotations

import msgspec

from nnasync._core.drivers.entry_points import make_target
from nnasync._core.runtime import Options, Runtime, open_runtime
from nnasync.device import Device
from nnasync.devices import REFERENCE, installed
from nnasync.engine import Engine
from nnasync.errors import InvalidArgument

AUTO, ALL = "auto", "all"
ISOLATED = "isolated:"
PLAIN = " (plain kernels)"
"""Follows the name of a device of which only what is bit-stable is used."""


class BenchTarget(msgspec.Struct, frozen=True):
    """Devices by name, None for the runtime's own choice; `name` is that of the row."""

    name: str
    devices: tuple[str, ...] | None
    isolated: bool = False
    is_plain: bool = False

    @classmethod
    def of(cls, name: str) -> BenchTarget:
        """Returns the target of a name; raises InvalidArgument for an empty one."""
        if name == AUTO:
            return cls(name, None)
        bare = name.removeprefix(ISOLATED)
        devices = tuple(bare.split("+"))
        if not all(devices):
            raise InvalidArgument(
                f"{name!r} names no device; NAME, isolated:NAME, NAME+NAME and auto do"
            )
        return cls(name, devices, isolated=bare != name)

    def open(self, state_dir: str) -> Runtime:
        """A runtime with its devices; raises what `open_runtime` does."""
        options = Options(state_dir=state_dir, contest_process=False)
        if self.devices is None:
            return open_runtime(options=options)
        made = [_made(name) for name in self.devices]
        return open_runtime(
            devices=made, isolate=self.devices if self.isolated else (), options=options
        )

    def names(self, runtime: Runtime) -> tuple[str, ...] | None:
        """The names of its devices in that runtime; None for the choice among all."""
        return None if self.devices is None else tuple(each.name for each in runtime.devices)


def targets_of(names: tuple[str, ...]) -> tuple[BenchTarget, ...]:
    """Returns the targets of these names, each once; `all` is every installed device and `auto`."""
    wide: list[str] = []
    for name in names or (ALL,):
        wide += (*installed_names(), AUTO) if name == ALL else (name,)
    return tuple(BenchTarget.of(name) for name in dict.fromkeys(wide))


def installed_names() -> tuple[str, ...]:
    """The devices that a runtime has if none are named."""
    return tuple(each.name for each in installed() if not each.absence)


def baselines() -> tuple[BenchTarget, ...]:
    """Returns the targets that others are compared with: the first of them that answers.

    LiteRT with its plain kernels where it is installed, which it has for quantized networks; else
    the reference.
    """
    plain = ("litert-cpu",) if "litert-cpu" in installed_names() else ()
    return (
        *(BenchTarget(f"{name}{PLAIN}", (name,), is_plain=True) for name in plain),
        BenchTarget.of(REFERENCE),
    )


def _made(name: str) -> str | Engine | Device:
    return make_target(name) if ":" in name else name
