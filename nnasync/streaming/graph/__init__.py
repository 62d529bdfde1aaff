"""Graphs of streams: from sources over stages to ends, with an account of every item."""

from __future__ import annotations

from nnasync.streaming.graph.gathering import JoinMode
from nnasync.streaming.graph.graph import CallOptions, Graph, GraphAccount, Stream
from nnasync.streaming.graph.node import ErrorPolicy
from nnasync.streaming.graph.stages import OutputNode

__all__ = [
    "CallOptions",
    "ErrorPolicy",
    "Graph",
    "GraphAccount",
    "JoinMode",
    "OutputNode",
    "Stream",
]
