"""`nnasync randomgraph`: pseudo-random models on a device, compared with the reference."""

from __future__ import annotations

import argparse
import shlex
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from nnasync import Options, open_runtime, run
from nnasync.cli.argument_types import device, positive
from nnasync.cli.interruption import interruptible
from nnasync.cli.text import HelpFormatter, table
from nnasync.conformance import driver_facts
from nnasync.conformance.random_graphs import (
    KINDS,
    TEAM,
    Examination,
    GraphVerdict,
    Inspector,
    Menu,
    Order,
    OrderResult,
    Size,
    TeamEngine,
    WorkerAssignment,
    generated_operations,
    load_graph,
    menu_of,
    run_fleet,
    survey,
)
from nnasync.conformance.random_graphs.examination import REFERENCE
from nnasync.errors import InvalidArgument
from nnasync.hal import OperationType

_EXAMPLES = """examples:
  nnasync randomgraph --device nnasync-reference --seeds 0:100
  nnasync randomgraph --device nnasync-reference --seeds 0:1000 --size large --type quant8
  nnasync randomgraph --device litert-cpu --seeds 0:100 --operations CONV_2D,ADD,RELU
  nnasync randomgraph --device all --seeds 0:100
  nnasync randomgraph --device nnasync-reference --replay failures/random_graph_small_seed_7.nnm
"""
_ALL = "all"
_FOLDER = "randomgraph-failures"
_SHOWN = 20
_SHOWN_REASONS = 10
_SHOWN_OPERATIONS = 6
_REASON_WIDTH = 240
_TOLD_EVERY = 100


def add_parser(commands: Any) -> None:
    """Add this command to the command line."""
    parser = commands.add_parser(
        "randomgraph",
        help="run pseudo-random models on a device",
        description="Generate legal models of 1 (single), 5 (small) or 40 (large) operations, one "
        "for each seed, run them on a device and compare the results with the reference's. A model "
        "that fails is made small and saved with its inputs. Exit code 1 if one failed; what the "
        "device says it does not support has not.",
        epilog=_EXAMPLES,
        formatter_class=HelpFormatter,
    )
    parser.add_argument(
        "--device",
        metavar="NAME",
        type=device,
        required=True,
        help="the device to run them on: its name, or module:factory of one that is not installed; "
        f"{TEAM}: each graph is shared among all that are there",
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--seeds", metavar="A:B", type=_seeds, help="seeds from A up to B, without B")
    what.add_argument("--replay", metavar="FILE", help="run a saved model and its inputs instead")
    parser.add_argument(
        "--size",
        choices=[*(size.value for size in Size), _ALL],
        default=_ALL,
        help="how many operations a model has (all)",
    )
    parser.add_argument(
        "--type",
        metavar="TYPE",
        choices=list(KINDS),
        help="the type of data that all operations work on (any)",
    )
    parser.add_argument(
        "--operations",
        metavar="A,B",
        type=_operations,
        help="draw from these operations, or from all; without it from those that the device takes "
        "(it is asked first)",
    )
    parser.add_argument(
        "--lowering",
        metavar="NAME",
        help="run them in this lowering of the device (that which it takes by itself); all: in "
        "each one that it offers",
    )
    parser.add_argument(
        "--jobs", type=positive, metavar="N", help="processes (as many as there are cores)"
    )
    parser.add_argument(
        "--save", metavar="DIR", default=_FOLDER, help=f"folder for what fails ({_FOLDER})"
    )
    parser.set_defaults(command=_command)


def _seeds(text: str) -> range:
    begin, separator, end = text.partition(":")
    try:
        seeds = range(int(begin or 0), int(end))
    except ValueError:
        seeds = range(0)
    if not separator or not seeds or seeds.start < 0:
        raise argparse.ArgumentTypeError(f"{text} is no range of seeds; 0:100 is one")
    return seeds


def _operations(text: str) -> str:
    names = {each.name for each in generated_operations()}
    unknown = [] if text == _ALL else [name for name in text.split(",") if name not in names]
    if unknown:
        raise argparse.ArgumentTypeError(
            f"{', '.join(unknown)}: random graphs have no such operation; CONV_2D,ADD is a list"
        )
    return text


def _command(arguments: argparse.Namespace) -> int:
    if arguments.device != TEAM:
        driver_facts(arguments.device)
    return run(_replay if arguments.replay else _run, arguments)


# -- one saved model


async def _replay(arguments: argparse.Namespace) -> int:
    graph = load_graph(Path(arguments.replay))
    options = Options(cores=1)
    wanted = TeamEngine() if arguments.device == TEAM else arguments.device
    async with open_runtime(devices=[wanted], options=options) as runtime:
        inspector = Inspector(runtime.devices[0], Path(), lowering=arguments.lowering)
        found, _ = await inspector.examined(graph)
    print(f"{graph.name or arguments.replay}: {_told_examination(found)}")
    return int(found.verdict is GraphVerdict.FAILED)


def _told_examination(found: Examination) -> str:
    if found.verdict is GraphVerdict.COMPARED:
        return "results agree with the reference's"
    return f"{found.verdict.value}: {': '.join(filter(None, (found.check, found.reason)))}"


# -- many seeds


async def _run(arguments: argparse.Namespace) -> int:
    sizes = list(Size) if arguments.size == _ALL else [Size(arguments.size)]
    tally = _Tally(len(sizes) * len(arguments.seeds))
    menu = await _menu(arguments)
    started_s = time.monotonic()
    async with interruptible() as interruption:
        await run_fleet(
            WorkerAssignment(arguments.device, arguments.save, menu, arguments.lowering),
            _orders(sizes, arguments.seeds, arguments.type),
            arguments.jobs or Options().cores,
            tally.done,
        )
    tally.close()
    duration_s = time.monotonic() - started_s
    if menu is not None:
        print(_drawn(menu, sizes))
    print(_text(tally, sizes, arguments, duration_s))
    return interruption.exit_code or int(bool(tally.failures))


async def _menu(arguments: argparse.Namespace) -> Menu | None:
    """Returns what to draw graphs from; None stands for everything."""
    if arguments.operations == _ALL:
        return None
    if arguments.operations is not None:
        menu = menu_of([OperationType[name] for name in arguments.operations.split(",")])
        kind = arguments.type
        if kind is not None and not any(type == KINDS[kind] for _, type in menu.single):
            raise InvalidArgument(f"none of {arguments.operations} works on {kind}")
        return menu
    if arguments.device in (TEAM, REFERENCE):
        return None
    async with open_runtime(devices=[arguments.device], options=Options(cores=1)) as runtime:
        menu = await survey(runtime.devices[0], arguments.type)
    if not menu.single:
        raise InvalidArgument(
            f"{arguments.device} takes none of the operations that random graphs have"
        )
    return menu


def _drawn(menu: Menu, sizes: Sequence[Size]) -> str:
    """Returns a text on the operations of graphs: a line for single ones, one for larger graphs."""
    lines = []
    for is_single in (True, False):
        if any((size is Size.SINGLE) == is_single for size in sizes):
            pairs = menu.single if is_single else menu.larger
            names = sorted({OperationType(operation).name for operation, _ in pairs})
            what = "single graphs are" if is_single else "larger graphs are"
            told = textwrap.shorten(", ".join(names), _REASON_WIDTH, placeholder=" ...")
            count = f"{len(names)} operation{'' if len(names) == 1 else 's'}"
            lines.append(f"{what} drawn from {count}: {told}")
    return "\n".join(lines) + "\n"


def _orders(sizes: Sequence[Size], seeds: range, kind: str | None) -> Iterator[Order]:
    for size in sizes:
        for seed in seeds:
            yield Order(size, seed, kind)


class _Tally:
    """Counts results, and tells on standard error how far it is."""

    def __init__(self, total: int) -> None:
        self.counts: Counter[tuple[Size, GraphVerdict]] = Counter()
        self.failures: list[OrderResult] = []
        self.reasons: Counter[str] = Counter()
        self.invalid: Counter[Size] = Counter()
        self._total = total
        self._lively = sys.stderr.isatty()

    def done(self, result: OrderResult) -> None:
        size = result.order.size
        self.counts[size, result.verdict] += 1
        if result.verdict is GraphVerdict.UNSUPPORTED:
            self.reasons[result.reason] += 1
        if result.verdict is GraphVerdict.FAILED:
            self.failures.append(result)
            self.invalid[size] += result.check in ("generation", "validation")
        finished = self.counts.total()
        if self._lively:
            print(f"\r{self._line()}", end="", file=sys.stderr, flush=True)
        elif finished % _TOLD_EVERY == 0:
            print(self._line(), file=sys.stderr, flush=True)

    def close(self) -> None:
        if self._lively:
            print(f"\r{' ' * len(self._line())}\r", end="", file=sys.stderr, flush=True)

    def row(self, size: Size) -> tuple[str, ...]:
        """Size, and how many graphs were valid, compared, unsupported and failed."""
        total = sum(self.counts[size, verdict] for verdict in GraphVerdict)
        numbers = [
            total - self.invalid[size],
            *(self.counts[size, verdict] for verdict in GraphVerdict),
        ]
        return size.value, *map(str, numbers)

    def _line(self) -> str:
        return f"{self.counts.total()} of {self._total} graphs, {len(self.failures)} failed"


def _text(
    tally: _Tally, sizes: Sequence[Size], arguments: argparse.Namespace, duration_s: float
) -> str:
    heads = ("size", "valid", *(verdict.value for verdict in GraphVerdict))
    parts = [table(heads, [tally.row(size) for size in sizes])]
    chosen = f" --operations {arguments.operations}" if arguments.operations else ""
    lowering = f" --lowering {arguments.lowering}" if arguments.lowering else ""
    parts += [
        _failure_text(failure, arguments.device, chosen, lowering)
        for failure in tally.failures[:_SHOWN]
    ]
    if tally.reasons:
        parts.append("\n".join(_declined(tally.reasons)))
    left = len(tally.failures) - _SHOWN
    if left > 0:
        parts.append(f"... and {left} more")
    parts.append(f"{arguments.device}: {len(tally.failures)} failed, in {duration_s:.1f} s")
    return "\n\n".join(parts)


def _declined(reasons: Counter[str]) -> list[str]:
    """Returns why graphs are not run, in the order of how many."""
    lines = [
        f"unsupported: {count}: {textwrap.shorten(reason, _REASON_WIDTH, placeholder=' ...')}"
        for reason, count in reasons.most_common(_SHOWN_REASONS)
    ]
    left = len(reasons) - len(lines)
    return [*lines, f"... and {left} more reasons"] if left else lines


def _failure_text(result: OrderResult, device: str, chosen: str, lowering: str) -> str:
    """Returns a text on a failure: what is left of the graph, and how to see it again."""
    order = result.order
    names = result.operations[:_SHOWN_OPERATIONS]
    more = (
        f" and {len(result.operations) - len(names)} more"
        if result.operations[len(names) :]
        else ""
    )
    reason = textwrap.shorten(result.reason, _REASON_WIDTH, placeholder=" ...")
    kind = f" --type {order.kind}" if order.kind else ""
    again = f"--size {order.size.value} --seeds {order.seed}:{order.seed + 1}{kind}{chosen}"
    if result.saved:
        again = f"--replay {shlex.quote(result.saved)}"
    again += lowering
    return (
        f"{order.size.value}, seed {order.seed}: {result.check}: {reason}\n"
        f"  operations: {', '.join(names)}{more}\n"
        f"  again: nnasync randomgraph --device {device} {again}"
    )
