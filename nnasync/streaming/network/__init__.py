"""Streams of cameras and servers by their address, which are connected to again when they break."""

from __future__ import annotations

from nnasync.streaming.network.address import network
from nnasync.streaming.network.backoff import Backoff
from nnasync.streaming.network.keeper import NetworkStatistics, SourceEvent
from nnasync.streaming.network.stream import NetworkStream

__all__ = ["Backoff", "SourceEvent", "NetworkStatistics", "NetworkStream", "network"]
