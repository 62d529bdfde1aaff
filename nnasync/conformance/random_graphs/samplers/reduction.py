"""Samplers of reductions, normalizations and operations that order or choose numbers."""

from __future__ import annotations

from collections.abc import Mapping

from nnasync.conformance.random_graphs.samplers.elementwise import any_tensor
from nnasync.conformance.random_graphs.samplers.movement import axis, layout, random_axis
from nnasync.conformance.random_graphs.sketch import Pick, Sampler
from nnasync.hal import OperationType


def _reduction(pick: Pick) -> None:
    """Draws some dimensions, in any order, some perhaps twice or counted from behind."""
    rank = len(any_tensor(pick, "input").shape)
    axes = pick.shuffled(range(rank))[: pick.integer(1, rank)]
    if pick.chance(0.1):
        axes.append(axes[0])
    pick.integers("axes", [each - pick.choose((0, rank)) for each in axes])
    pick.scalar("keep_dimensions", pick.chance(0.5))


def _optional_axis(pick: Pick, rank: int) -> None:
    if pick.has("axis"):
        axis(pick, random_axis(pick, rank), rank)


def _softmax(pick: Pick) -> None:
    name = "logits" if pick.has("logits") else "input"
    rank = len(any_tensor(pick, name).shape)
    pick.scalar("beta", pick.uniform(0.1, 2))
    _optional_axis(pick, rank)


def _along_axis(pick: Pick) -> None:
    _optional_axis(pick, len(any_tensor(pick, "input").shape))


def _local_response(pick: Pick) -> None:
    rank = len(any_tensor(pick, "input").shape)
    pick.scalar("radius", pick.integer(0, 5))
    pick.scalar("bias", pick.uniform(0.5, 2))
    pick.scalar("alpha", pick.uniform(0, 1))
    pick.scalar("beta", pick.uniform(0.1, 1))
    _optional_axis(pick, rank)


def _instance_normalization(pick: Pick) -> None:
    any_tensor(pick, "input")
    pick.scalar("gamma", pick.uniform(0.5, 2))
    pick.scalar("beta", pick.uniform(-2, 2))
    pick.scalar("epsilon", pick.uniform(0.01, 1))
    layout(pick, "layout")


def _top(pick: Pick) -> None:
    shape = any_tensor(pick, "input").shape
    pick.scalar("k", pick.small(shape[-1]))


def _multinomial(pick: Pick) -> None:
    """Draws a graph whose result is not fixed, as two devices draw differently."""
    any_tensor(pick, "logits")
    pick.scalar("sample_count", pick.integer(1, 64))
    seeds = (pick.integer(1, 1 << 30), pick.integer(0, 1 << 30))
    pick.integers("seeds", seeds)
    pick.private(0)


SAMPLERS: Mapping[OperationType, Sampler] = {
    OperationType.ARGMAX: _along_axis,
    OperationType.ARGMIN: _along_axis,
    OperationType.INSTANCE_NORMALIZATION: _instance_normalization,
    OperationType.L2_NORMALIZATION: _along_axis,
    OperationType.LOCAL_RESPONSE_NORMALIZATION: _local_response,
    OperationType.LOG_SOFTMAX: _softmax,
    OperationType.MEAN: _reduction,
    OperationType.RANDOM_MULTINOMIAL: _multinomial,
    OperationType.REDUCE_ALL: _reduction,
    OperationType.REDUCE_ANY: _reduction,
    OperationType.REDUCE_MAX: _reduction,
    OperationType.REDUCE_MIN: _reduction,
    OperationType.REDUCE_PROD: _reduction,
    OperationType.REDUCE_SUM: _reduction,
    OperationType.SOFTMAX: _softmax,
    OperationType.TOPK_V2: _top,
}
