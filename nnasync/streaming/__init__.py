"""Streams: sources of items, stages that run networks on them, and the account of every item."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from nnasync.streaming.account import (
    Account,
    Entry,
    Histogram,
    Latency,
    Ledger,
    Outcome,
    StreamStatistics,
)
from nnasync.streaming.devices import camera, microphone
from nnasync.streaming.graph import (
    CallOptions,
    ErrorPolicy,
    Graph,
    GraphAccount,
    JoinMode,
    OutputNode,
    Stream,
)
from nnasync.streaming.item import Item, ItemSource, Pace
from nnasync.streaming.network import (
    Backoff,
    NetworkStatistics,
    NetworkStream,
    SourceEvent,
    network,
)
from nnasync.streaming.opening import open_audio, open_video
from nnasync.streaming.sinks import (
    FileSink,
    JpegWriter,
    PictureServer,
    audio_recorder,
    results_file,
    video_recorder,
)
from nnasync.streaming.sources import (
    LiveSource,
    RecordedSource,
    audio_file,
    synthetic,
    video_file,
)
from nnasync.streaming.stage import Policy, Result, Stage, StageCall

__all__ = [
    "Account",
    "Backoff",
    "StageCall",
    "CallOptions",
    "Entry",
    "ErrorPolicy",
    "FileSink",
    "Graph",
    "GraphAccount",
    "Histogram",
    "Item",
    "ItemSource",
    "JoinMode",
    "JpegWriter",
    "Latency",
    "Ledger",
    "LiveSource",
    "NetworkStatistics",
    "NetworkStream",
    "Outcome",
    "OutputNode",
    "Pace",
    "PictureServer",
    "Policy",
    "RecordedSource",
    "Result",
    "SourceEvent",
    "Stage",
    "Stream",
    "StreamStatistics",
    "audio_file",
    "audio_recorder",
    "camera",
    "microphone",
    "network",
    "open_audio",
    "open_video",
    "results_file",
    "synthetic",
    "video_file",
    "video_recorder",
]

if not TYPE_CHECKING:  # who checks types is told of a name that is not there

    def __getattr__(name: str) -> object:
        if name == "NetworkEvent":
            text = f"{__name__}.NetworkEvent is called SourceEvent now"
            warnings.warn(text, DeprecationWarning, stacklevel=2)
            return SourceEvent
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
