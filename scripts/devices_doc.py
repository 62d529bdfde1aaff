"""Write docs/devices.md: which device takes which operation in which type.

Each device is asked about the same random models of one operation: twelve of each operation and
type, from the generator that `nnasync randomgraph` uses, with constant and variable weights, all
layouts and options. So the page shows what the devices say of themselves, on the versions of their
engines that are installed. `python -m scripts.devices_doc` writes it.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from nnasync._core.drivers import DRIVERS, built_in, is_installed
from nnasync.conformance.random_graphs import KINDS, Size, generate, generated_operations, model_of
from nnasync.engine import Engine
from nnasync.hal import Model, OperationType

__all__ = ["main", "page"]

PATH = Path(__file__).resolve().parent.parent / "docs" / "devices.md"
ROUNDS = 12

_HEAD = """# Devices

`nnasync devices` lists those that are installed, and why others are missing;
`nn.open_runtime(devices=["litert-cpu"])` has the named ones alone, and
`rt.compile(model, devices=["litert-cpu"])` keeps one network to them. A device may run
[in its own process, or on another machine](service.md), there are
[more execution providers](onnx.md#other-execution-providers) of ONNX Runtime, and
[a driver of your own](write_a_driver.md) is three small classes.

What each device takes, by operation and type, as it answers `get_supported_operations` for
{rounds} random models of one operation each, with constant and with variable weights, all layouts
and options. Written by `python -m scripts.devices_doc`.

**all**: every one of them; a number: so many of a hundred; nothing: none; n/a: the
operation does not have that type. Operations without a row are taken in no type. A device takes
only what its own engine computes within the tolerance of the conformance tests; what it leaves
goes to the next device, at the end to `nnasync-reference`, which takes everything.
`net.report().rejections`
tells the reasons for a model, in the words of the device where it has some, and so do
`nnasync dump MODEL --plan` and `print(net.report())`. Of the devices that take a model the fastest
whose results agree with the reference is kept: [what that means](agreement.md).

Versions: {versions}.
"""


def engines(names: Sequence[str]) -> dict[str, Engine]:
    """The engines of devices by name."""
    return {name: built_in(name) for name in names}


def computing_devices() -> list[str]:
    """The installed devices that compute, but for the reference, which takes everything."""
    installed = (name for name in DRIVERS if DRIVERS[name].computes and is_installed(name))
    return [name for name in installed if name != "nnasync-reference"]


def models(kind: str, rounds: int) -> Iterator[tuple[OperationType, Model]]:
    """Models of one operation on one kind of data, the operations in turn."""
    operations = generated_operations(kind)
    for seed in range(rounds * len(operations)):
        model = model_of(generate(Size.SINGLE, seed, kind))
        yield operations[seed % len(operations)], model


def counts(found: dict[str, Engine], rounds: int) -> dict[tuple[OperationType, str, str], int]:
    """How many models of an operation and kind each device takes."""
    taken: Counter[tuple[OperationType, str, str]] = Counter()
    for kind in KINDS:
        for operation, model in models(kind, rounds):
            for name, engine in found.items():
                taken[operation, kind, name] += all(engine.supported_operations(model))
    return taken


def page(names: Sequence[str], rounds: int = ROUNDS) -> str:
    """The whole page for these devices."""
    found = engines(names)
    versions = ", ".join(f"`{name}` on {engine.version}" for name, engine in found.items())
    taken = counts(found, rounds)
    parts = [_HEAD.format(rounds=rounds, versions=versions)]
    parts += [f"## {name}\n\n{_table(name, taken, rounds)}" for name in found]
    return "\n".join(parts)


def _table(name: str, taken: dict[tuple[OperationType, str, str], int], rounds: int) -> str:
    known = {kind: set(generated_operations(kind)) for kind in KINDS}
    lines = [f"| operation | {' | '.join(KINDS)} |", f"| --- |{' --- |' * len(KINDS)}"]
    for operation in sorted(set().union(*known.values()), key=lambda type: type.name):
        cells = [
            _cell(taken[operation, kind, name], rounds) if operation in known[kind] else "n/a"
            for kind in KINDS
        ]
        if any(cell not in ("", "n/a") for cell in cells):
            lines.append(f"| {operation.name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _cell(count: int, rounds: int) -> str:
    if count == rounds:
        return "all"
    return f"{round(100 * count / rounds)}" if count else ""


def main(argv: Sequence[str] | None = None) -> int:
    """Write the page; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="models of each kind (12)")
    arguments = parser.parse_args(argv)
    PATH.write_text(page(computing_devices(), arguments.rounds), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
