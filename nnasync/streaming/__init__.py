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
    NetworkEvent,
    NetworkStatistics,
    NetworkStream,
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
    camera,
    microphone,
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
    "NetworkEvent",
    "NetworkStatistics",
    "NetworkStream",
    "Outcome",
    "OutputNode",
    "Pace",
    "PictureServer",
    "Policy",
    "RecordedSource",
    "Result",
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
