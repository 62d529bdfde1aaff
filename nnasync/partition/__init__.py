"""A model split over several devices, or into segments on one: pure functions, and their engine.

`assign` chooses a device for each operation by cost, with an advantage for staying on the same
device. `grouped` cuts the operations into steps, as few as it finds, `segments` into runs of
operations that are each expected to end within a quantum. `split` and `cut` make a model of each
step, and say where its inputs come from and its outputs go. `CompositeEngine` compiles such steps,
each with its own engine, into one plan: `EngineDevice` makes an ordinary device of it.

    costs = reported_costs(model, [engine.capabilities for engine in engines])
    assignment = assign(model, [engine.supported_operations(model) for engine in engines], costs)
    engine = CompositeEngine(split(model, assignment), engines)

IF and WHILE stay with the device that takes them as one operation.
"""

from __future__ import annotations

from nnasync.partition.assignment import Border as Border
from nnasync.partition.assignment import assign as assign
from nnasync.partition.composite_engine import CompositeEngine as CompositeEngine
from nnasync.partition.costs import multiply_adds as multiply_adds
from nnasync.partition.costs import operation_weights_ns as operation_weights_ns
from nnasync.partition.costs import reported_costs as reported_costs
from nnasync.partition.crossing import crossing_bytes as crossing_bytes
from nnasync.partition.grouping import Group as Group
from nnasync.partition.grouping import grouped as grouped
from nnasync.partition.segmentation import segments as segments
from nnasync.partition.shapes import with_inferred_shapes as with_inferred_shapes
from nnasync.partition.splitting import PartitionedModel as PartitionedModel
from nnasync.partition.splitting import PartitionStep as PartitionStep
from nnasync.partition.splitting import cut as cut
from nnasync.partition.splitting import split as split

__all__ = [
    "Border",
    "CompositeEngine",
    "Group",
    "PartitionStep",
    "PartitionedModel",
    "assign",
    "crossing_bytes",
    "cut",
    "grouped",
    "multiply_adds",
    "operation_weights_ns",
    "reported_costs",
    "segments",
    "split",
    "with_inferred_shapes",
]
