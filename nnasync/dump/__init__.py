"""What a model is and how it is run, as text and as Graphviz graphs.

`model_text` and `model_dot` show a model, `graph_dump` writes its graph to a stream or to the log,
`memory_text` shows how the reference lays out the memory of an execution, `plan_text` which device
runs which step of a compiled model, and why, and `plan_dot` draws that.
"""

from __future__ import annotations

from nnasync.dump.graph_dump import graph_dump as graph_dump
from nnasync.dump.memory import memory_text as memory_text
from nnasync.dump.model_dump import model_dot as model_dot
from nnasync.dump.model_dump import model_text as model_text
from nnasync.dump.plan_graphs import plan_dot as plan_dot
from nnasync.dump.plans import plan_text as plan_text

__all__ = [
    "graph_dump",
    "memory_text",
    "model_dot",
    "model_text",
    "plan_dot",
    "plan_text",
]
