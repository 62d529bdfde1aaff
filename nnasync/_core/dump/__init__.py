"""What a model is and how it is run, as text and as Graphviz graphs.

`models` shows a model, `graph_dump` writes its graph to a stream or to the log, `memory` shows the
memory plan of an execution on the reference, `plans` which device runs which step of a compiled
model, and `plan_graphs` draws that.
"""

from __future__ import annotations

from nnasync._core.dump.graph_dump import graph_dump as graph_dump
from nnasync._core.dump.memory import memory_text as memory_text
from nnasync._core.dump.model_dump import model_dot as model_dot
from nnasync._core.dump.model_dump import model_text as model_text
from nnasync._core.dump.plan_graphs import plan_dot as plan_dot
from nnasync._core.dump.plans import PlanOutline as PlanOutline
from nnasync._core.dump.plans import outline as outline
from nnasync._core.dump.plans import plan_text as plan_text

__all__ = [
    "PlanOutline",
    "graph_dump",
    "memory_text",
    "model_dot",
    "model_text",
    "outline",
    "plan_dot",
    "plan_text",
]
