"""Streams: sources of items, stages that run networks on them, and the account of every item."""

from __future__ import annotations

from nnasync.streaming.account import (
    Account,
    Entry,
    Histogram,
    Latency,
    Ledger,
    Outcome,
    StreamStatistics,
)
from nnasync.streaming.graph import (
    ErrorPolicy,
    Graph,
    GraphAccount,
    JoinMode,
    OutputNode,
    Stream,
)
from nnasync.streaming.item import Item, ItemSource, Pace
from nnasync.streaming.sources import (
    LiveSource,
    RecordedSource,
    audio_file,
    camera,
    microphone,
    synthetic,
    video_file,
)
from nnasync.streaming.stage import Policy, Result, Stage, StageCall

__all__ = [
    "Account",
    "StageCall",
    "Entry",
    "ErrorPolicy",
    "Graph",
    "GraphAccount",
    "Histogram",
    "Item",
    "ItemSource",
    "JoinMode",
    "Latency",
    "Ledger",
    "LiveSource",
    "Outcome",
    "OutputNode",
    "Pace",
    "Policy",
    "RecordedSource",
    "Result",
    "Stage",
    "Stream",
    "StreamStatistics",
    "audio_file",
    "camera",
    "microphone",
    "synthetic",
    "video_file",
]
