"""Costs: multiply-adds by hand, shared-out time, reported figures."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nnasync as nn
from nnasync._core.model.graph import Value
from nnasync._core.partition import multiply_adds, operation_weights_ns, reported_costs
from nnasync.hal import (
    Capabilities,
    ExecutionPreference,
    Model,
    OperandType,
    OperationType,
    PerformanceInfo,
    uniform_performance,
)
from tests.partition.models import chain


def convolutions() -> Model:
    """4x4x2 -> CONV_2D 3x3, 5 channels -> DEPTHWISE 3x3 -> FULLY_CONNECTED 7."""
    builder = nn.ModelBuilder("convolutions")
    x = builder.input("x", (1, 4, 4, 2))
    filter, bias = np.ones((5, 3, 3, 2), np.float32), np.zeros(5, np.float32)
    y = builder.conv_2d(x, filter, bias)
    y = builder.depthwise_conv_2d(y, np.ones((1, 3, 3, 5), np.float32), bias)
    y = builder.reshape(y, (1, 80))
    weights = np.ones((7, 80), np.float32)
    builder.output("y", builder.fully_connected(y, weights, np.zeros(7, np.float32)))
    return builder.build()


def test_multiply_adds_are_counted_by_operation() -> None:
    conv, depthwise, reshape, dense = multiply_adds(convolutions())
    assert conv == 4 * 4 * 5 * 3 * 3 * 2
    assert depthwise == 4 * 4 * 5 * 3 * 3
    assert reshape == 80 + 80 + 2
    assert dense == 7 * 80 + 80 + 7 + 7 + 1


def figures(time: float, power: float) -> Capabilities:
    info = PerformanceInfo(time, power)
    return Capabilities(info, info, uniform_performance(info), info, info)


def test_the_time_of_the_model_is_shared_out() -> None:
    weights = operation_weights_ns(convolutions(), total_ns=1000.0)
    assert sum(weights) == pytest.approx(1000)
    assert max(weights) == weights[0]


def test_reported_costs_follow_the_preference() -> None:
    model, devices = chain(2), [figures(1, 4), figures(2, 1)]
    weights = operation_weights_ns(model)
    fast = reported_costs(model, devices)
    assert fast == (weights, tuple(2 * weight for weight in weights))
    low = reported_costs(model, devices, ExecutionPreference.LOW_POWER)
    assert low == (tuple(4 * weight for weight in weights), weights)


def is_small(graph: Any, value: Value) -> Value:
    largest: Value = graph.operation(
        OperationType.REDUCE_MAX, value, np.array([0, 1], np.int32), False
    )
    below: Value = graph.operation(OperationType.LESS, largest, np.array([9], np.float32))
    return below


def test_an_if_counts_its_longer_branch_and_a_while_one_turn() -> None:
    builder = nn.ModelBuilder("control flow")
    flag = builder.input("flag", (1,), type=OperandType.TENSOR_BOOL8)
    x = builder.input("x", (1, 100))
    y = builder.cond(flag, lambda g, v: g.add(g.add(v, v), v), lambda g, v: g.add(v, v), x)
    z = builder.while_loop(is_small, lambda g, v: g.add(v, v), y)
    builder.output("z", z)
    branch, loop = multiply_adds(builder.build())
    # Each addition has two inputs, an output and a scalar.
    assert branch == 2 * 301
    assert 301 < loop < 602
