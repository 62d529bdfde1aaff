"""Sinks: ends of graphs that write files, or show pictures to who asks for them."""

from __future__ import annotations

from nnasync.streaming.sinks.file_sink import FileSink
from nnasync.streaming.sinks.jpeg import JpegWriter
from nnasync.streaming.sinks.picture_server import PictureServer
from nnasync.streaming.sinks.rows import results_file
from nnasync.streaming.sinks.sound import audio_recorder
from nnasync.streaming.sinks.video import video_recorder

__all__ = [
    "FileSink",
    "JpegWriter",
    "PictureServer",
    "audio_recorder",
    "results_file",
    "video_recorder",
]
