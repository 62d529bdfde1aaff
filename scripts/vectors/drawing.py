"""Small cases of one operation each, drawn at random, as lines of a case file."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress

import numpy as np

import nnasync as nn
from nnasync import hal
from nnasync.conformance.case_lines import CaseLine, OperandLine, OperationLine, SubgraphLine
from nnasync.conformance.random_graphs.graph import RandomGraph, model_of
from nnasync.conformance.random_graphs.reference import evaluate, execute, outputs_of
from nnasync.conformance.random_graphs.samplers import SAMPLERS
from nnasync.conformance.random_graphs.sketch import GraphLimits, Sketch, TooLarge
from nnasync.engine import operand_value
from nnasync.hal import Array, Model, OperandLifeTime, OperandType, OperationType
from nnasync.kernels import OPERATIONS, Signature

__all__ = ["CaseLine", "control_flow_lines", "drawn_lines", "wanted"]

LIMITS = [GraphLimits(dimension=4, elements=48), GraphLimits(6, 200), GraphLimits(12, 1200)]
"""The smallest that an operation can be drawn in is taken."""
PER_TYPE = 2
"""Cases of each operation and type of its first tensor, at least; each signature has one."""
TRIES = 40
MULTINOMIAL_TOLERANCE = 0.05
CONSTANT = (OperandLifeTime.CONSTANT_COPY, OperandLifeTime.CONSTANT_REFERENCE)


def wanted() -> Iterator[tuple[OperationType, Signature, int]]:
    """Operation, signature and number of each case."""
    for type in sorted(OPERATIONS):
        signatures = OPERATIONS[type].signatures
        of_type = Counter(map(first_type, signatures))
        for signature in signatures:
            count = -(-PER_TYPE // of_type[first_type(signature)])
            yield from ((OperationType(type), signature, number) for number in range(count))


def first_type(signature: Signature) -> int:
    """The type that a signature is counted under."""
    return signature.inputs[0].type


def drawn_lines(type: OperationType, signature: Signature, number: int) -> Iterator[CaseLine]:
    """Cases of an operation with this signature, one as good as the other, small ones first."""
    types = "_".join(hal.type_name(each.type).lower() for each in signature.inputs[:3])
    place = OPERATIONS[type].signatures.index(signature)
    name = f"{type.name.lower()}_{place}_{number}_{types}"
    for limits, attempt in itertools.product(LIMITS, range(TRIES)):
        sketch = Sketch(f"{name} {limits} {attempt}", limits)
        with suppress(TooLarge):
            sketch.draw(OPERATIONS[type], signature, SAMPLERS[type])
            line = line_of(sketch.finish(name))
            if line is not None:
                yield line


def line_of(graph: RandomGraph) -> CaseLine | None:
    """The case of a graph; None if its results are of no use."""
    multinomial = graph.operations[0].type == OperationType.RANDOM_MULTINOMIAL
    outputs = outputs_of(graph, evaluate(graph))
    again = execute(graph)
    same = all(a.tobytes() == b.tobytes() for a, b in zip(outputs, again, strict=True))
    if not all(each.size and np.isfinite(each).all() for each in outputs) or not same:
        return None
    line = written(model_of(graph), graph.input_values, outputs)
    line.multinomial_tolerance = MULTINOMIAL_TOLERANCE if multinomial else None
    return line


# -- from a model to a line


def written(model: Model, inputs: Sequence[Array], outputs: Sequence[Array]) -> CaseLine:
    """The line of a model with these inputs and results."""
    main = model.main
    values = dict(zip(main.input_indexes, inputs, strict=True))
    values |= zip(main.output_indexes, outputs, strict=True)
    spec = "_".join(dict.fromkeys(OperationType(o.type).name.lower() for o in main.operations))
    return CaseLine(
        name=model.name,
        spec=spec,
        main=_subgraph(model, main, values),
        referenced=[_subgraph(model, each, {}) for each in model.referenced],
    )


def _subgraph(model: Model, subgraph: hal.Subgraph, values: dict[int, Array]) -> SubgraphLine:
    return SubgraphLine(
        [_operand(model, each, values.get(i)) for i, each in enumerate(subgraph.operands)],
        [
            OperationLine(OperationType(each.type).name, list(each.inputs), list(each.outputs))
            for each in subgraph.operations
        ],
        list(subgraph.input_indexes),
        list(subgraph.output_indexes),
    )


def _operand(model: Model, operand: hal.Operand, value: Array | None) -> OperandLine:
    if operand.lifetime in CONSTANT:
        value = operand_value(model, operand)
    lifetime = OperandLifeTime(operand.lifetime)
    if lifetime == OperandLifeTime.NO_VALUE:
        lifetime = OperandLifeTime.CONSTANT_COPY
    line = OperandLine(
        type=OperandType(operand.type).name,
        dims=list(operand.dimensions if value is None else value.shape),
        lifetime=lifetime.name,
        name=operand.name,
        scale=operand.scale,
        zero_point=operand.zero_point,
    )
    if operand.type == OperandType.SUBGRAPH:
        line.data = operand.location.offset
    elif value is not None:
        line.data = np.ascontiguousarray(value).tobytes()
    if isinstance(operand.extra_params, hal.ChannelQuant):
        line.channel_dim = operand.extra_params.channel_dim
        line.channel_scales = list(operand.extra_params.scales)
    return line


# -- control flow


def control_flow_lines() -> list[list[CaseLine]]:
    """IF that takes either way, and WHILE that turns never and three times."""
    cases = [_branching(taken) for taken in (True, False)]
    cases += [_looping(turns) for turns in (0, 3)]
    return [[case] for case in cases]


def _branching(taken: bool) -> CaseLine:
    builder = nn.ModelBuilder(f"if_{str(taken).lower()}")
    which = builder.input("which", (1,), type=OperandType.TENSOR_BOOL8)
    x = builder.input("x", (2, 3))
    y = builder.cond(which, lambda g, v: g.add(v, v), lambda g, v: g.mul(v, v), x)
    builder.output("y", y)
    x_value = np.arange(-2, 4, dtype=np.float32).reshape(2, 3)
    expected = x_value + x_value if taken else x_value * x_value
    return written(builder.build(), [np.array([taken]), x_value], [expected])


def _looping(turns: int) -> CaseLine:
    builder = nn.ModelBuilder(f"while_{turns}")
    x = builder.input("x", (2, 3))
    limit = builder.input("limit", (1,))
    one = np.ones(1, np.float32)
    start = np.zeros(1, np.float32), np.ones((2, 3), np.float32)
    count, total = builder.while_loop(
        lambda g, count, total, x, limit: g.operation(OperationType.LESS, count, limit),
        lambda g, count, total, x, limit: (g.add(count, one), g.add(g.mul(total, x), x)),
        *start,
        constants=(x, limit),
    )
    builder.output("count", count)
    builder.output("total", total)
    x_value = np.arange(-2, 4, dtype=np.float32).reshape(2, 3)
    expected = start[1]
    for _ in range(turns):
        expected = expected * x_value + x_value
    limit_value = np.array([turns], np.float32)
    return written(builder.build(), [x_value, limit_value], [limit_value, expected])
