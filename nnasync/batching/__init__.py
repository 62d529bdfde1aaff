"""Batching: calls of a network that wait are joined to one run, where that pays.

`Batcher` is around a network with an open first dimension, and is called as that is. The rule of
who goes with whom is pure (`batching.rule`) and also that of batches in graphs of `streaming`.
`one_by_one` gives several examples to a network that takes one.
"""

from __future__ import annotations

from nnasync.batching.batcher import Batcher as Batcher
from nnasync.batching.examples import one_by_one as one_by_one
from nnasync.batching.trial import BatchingReport as BatchingReport
from nnasync.batching.trial import Trial as Trial

__all__ = ["Batcher", "BatchingReport", "Trial", "one_by_one"]
