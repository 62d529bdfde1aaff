"""Batching: calls of a network that wait are joined to one run, where that pays.

`Batcher` is around a network with an open first dimension, and is called as that is. The rule of
who goes with whom is pure (`batching.rule`) and also that of batches in graphs of `streaming`.
"""

from __future__ import annotations

from nnasync.batching.batcher import Batcher as Batcher
from nnasync.batching.trial import BatchingReport as BatchingReport
from nnasync.batching.trial import Trial as Trial

__all__ = ["Batcher", "BatchingReport", "Trial"]
