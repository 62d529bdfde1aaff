"""Sources: async iterators of items from files, devices and functions."""

from __future__ import annotations

from nnasync.streaming.sources.audio import audio_file
from nnasync.streaming.sources.source import LiveSource, RecordedSource
from nnasync.streaming.sources.synthetic import synthetic
from nnasync.streaming.sources.video import video_file

__all__ = [
    "LiveSource",
    "RecordedSource",
    "audio_file",
    "synthetic",
    "video_file",
]
