"""What the processes of a run say to each other: lines of JSON, one message each."""

from __future__ import annotations

from nnasync.conformance.random_graphs.examination import GraphVerdict
from nnasync.conformance.random_graphs.generation import Menu, Size
from nnasync.hal import Struct


class WorkerAssignment(Struct, frozen=True):
    """What a worker is for, said first: a device, and where to save graphs that fail.

    Graphs are drawn from the `menu`, if there is one, and run in a `lowering`, or in all of them.
    """

    device: str
    folder: str
    menu: Menu | None = None
    lowering: str | None = None


class Order(Struct, frozen=True):
    """One graph to examine."""

    size: Size
    seed: int
    kind: str | None = None


class OrderResult(Struct, frozen=True):
    """What came out of an order.

    `check` and `reason` are those of the graph as generated; `operations` are those that are left
    of a failing graph, which is saved in the model file `saved` (empty where it could not be).
    """

    order: Order
    verdict: GraphVerdict
    operations: tuple[str, ...] = ()
    check: str = ""
    reason: str = ""
    saved: str = ""
