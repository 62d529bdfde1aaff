"""A model split over several devices, or into segments on one: pure functions, and their engine.

`distribute` chooses a device for each operation by cost, with an advantage for staying on the same
device. `grouped` cuts the operations into steps, as few as it finds, `segments` into runs of
operations that are each expected to end within a quantum. `split` and `cut` make a model of each
step, and say where its inputs come from and its outputs go. `CompositeEngine` compiles such steps,
each with its own engine, into one plan: `EngineDevice` makes an ordinary device of it.

    support = [Support(device.main, {number: answers for its subgraphs}) for device in devices]
    assignment = distribute(model, support, rate, reference=number_of_the_reference)
    engine = CompositeEngine(split(model, assignment), engines)

IF and WHILE are assigned too, with the subgraphs that they run: `split` makes of an operation that
the control-flow interpreter runs a step whose bodies are in steps again.
"""

from __future__ import annotations

from nnasync._core.partition.composite_engine import CompositeEngine as CompositeEngine
from nnasync._core.partition.control_flow import INTERPRETER as INTERPRETER
from nnasync._core.partition.control_flow import ROLES as ROLES
from nnasync._core.partition.control_flow import body_model as body_model
from nnasync._core.partition.control_flow import find_control_flow as find_control_flow
from nnasync._core.partition.costs import multiply_adds as multiply_adds
from nnasync._core.partition.costs import operation_weights_ns as operation_weights_ns
from nnasync._core.partition.costs import reported_costs as reported_costs
from nnasync._core.partition.distribution import Assignment as Assignment
from nnasync._core.partition.distribution import Support as Support
from nnasync._core.partition.distribution import as_much_as_possible as as_much_as_possible
from nnasync._core.partition.distribution import distribute as distribute
from nnasync._core.partition.grouping import Group as Group
from nnasync._core.partition.grouping import grouped as grouped
from nnasync._core.partition.segmentation import segments as segments
from nnasync._core.partition.splitting import PartitionedModel as PartitionedModel
from nnasync._core.partition.splitting import PartitionStep as PartitionStep
from nnasync._core.partition.splitting import all_bodies as all_bodies
from nnasync._core.partition.splitting import all_steps as all_steps
from nnasync._core.partition.splitting import assignment_of as assignment_of
from nnasync._core.partition.splitting import cut as cut
from nnasync._core.partition.splitting import split as split
