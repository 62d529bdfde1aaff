"""Samplers of tables: slices chosen by number or by key, and hashes."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from nnasync.conformance.random_graphs.graph import GraphOperand
from nnasync.conformance.random_graphs.samplers.elementwise import any_tensor
from nnasync.conformance.random_graphs.sketch import Pick, Sampler
from nnasync.hal import OperationType

_MOST_LOOKUPS = 16
_MOST_BITS = 32
_DENSE, _FORMS = 2, (1, 2, 3)


def _table(pick: Pick, *, lowest_rank: int) -> tuple[GraphOperand, int]:
    """Give values, and how many of their rows may be looked up."""
    table = pick.tensor(
        "values",
        lambda: pick.shape(pick.rank("values", lowest=lowest_rank)),
        fits=lambda shape: len(shape) >= lowest_rank,
    )
    row = math.prod(table.shape[1:])
    return table, pick.small(min(_MOST_LOOKUPS, pick.limits.elements // row))


def _embedding(pick: Pick) -> None:
    table, count = _table(pick, lowest_rank=2)
    pick.values("lookups", pick.numbers.integers(0, table.shape[0], count))


def _hashtable(pick: Pick) -> None:
    """Keys ascend; about half of the lookups are among them."""
    table, count = _table(pick, lowest_rank=1)
    rows = table.shape[0]
    keys = np.cumsum(pick.numbers.integers(1, 4, rows)) - rows
    pick.values("keys", keys)
    some = pick.numbers.integers(int(keys[0]) - 1, int(keys[-1]) + 2, count)
    hits = keys[pick.numbers.integers(0, rows, count)]
    pick.values("lookups", np.where(pick.numbers.integers(0, 2, count) == 1, hits, some))


def _projection(pick: Pick) -> None:
    form = pick.choose(_FORMS)
    hashes = pick.integer(1, 4)
    bits = pick.integer(1, min(_MOST_BITS, pick.limits.elements // hashes))
    if form != _DENSE:
        bits = min(bits, 8)
    pick.tensor("hash", (hashes, bits))
    rows = any_tensor(pick, "input").shape[0]
    if form == _DENSE:
        pick.tensor("weight", (rows,))
    else:
        pick.omit("weight")
    pick.scalar("type", form)


SAMPLERS: Mapping[OperationType, Sampler] = {
    OperationType.EMBEDDING_LOOKUP: _embedding,
    OperationType.HASHTABLE_LOOKUP: _hashtable,
    OperationType.LSH_PROJECTION: _projection,
}
