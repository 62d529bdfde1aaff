"""Random graphs: pseudo-random legal models, run on any device and compared with the reference.

`generation` makes the graph of a seed from the operations' signatures and the samplers of their
arguments, `examination` says what is wrong with it on a device, `shrinking` makes a failing graph
small, `saved_graphs` keeps it, `fleet` runs many in several processes.
"""

from __future__ import annotations

from nnasync.conformance.random_graphs.examination import Examination as Examination
from nnasync.conformance.random_graphs.examination import GraphVerdict as GraphVerdict
from nnasync.conformance.random_graphs.examination import examine as examine
from nnasync.conformance.random_graphs.fleet import run_fleet as run_fleet
from nnasync.conformance.random_graphs.generation import KINDS as KINDS
from nnasync.conformance.random_graphs.generation import Menu as Menu
from nnasync.conformance.random_graphs.generation import Size as Size
from nnasync.conformance.random_graphs.generation import generate as generate
from nnasync.conformance.random_graphs.generation import (
    generated_operations as generated_operations,
)
from nnasync.conformance.random_graphs.generation import menu_of as menu_of
from nnasync.conformance.random_graphs.graph import RandomGraph as RandomGraph
from nnasync.conformance.random_graphs.graph import model_of as model_of
from nnasync.conformance.random_graphs.inspector import Inspector as Inspector
from nnasync.conformance.random_graphs.saved_graphs import load_graph as load_graph
from nnasync.conformance.random_graphs.saved_graphs import save_graph as save_graph
from nnasync.conformance.random_graphs.shrinking import shrink as shrink
from nnasync.conformance.random_graphs.survey import survey as survey
from nnasync.conformance.random_graphs.team import TEAM as TEAM
from nnasync.conformance.random_graphs.team import TeamEngine as TeamEngine
from nnasync.conformance.random_graphs.worker_messages import Order as Order
from nnasync.conformance.random_graphs.worker_messages import OrderResult as OrderResult
from nnasync.conformance.random_graphs.worker_messages import WorkerAssignment as WorkerAssignment

__all__ = [
    "KINDS",
    "TEAM",
    "WorkerAssignment",
    "Examination",
    "RandomGraph",
    "Inspector",
    "Menu",
    "Order",
    "OrderResult",
    "Size",
    "TeamEngine",
    "GraphVerdict",
    "examine",
    "generate",
    "generated_operations",
    "load_graph",
    "menu_of",
    "model_of",
    "run_fleet",
    "save_graph",
    "shrink",
    "survey",
]
