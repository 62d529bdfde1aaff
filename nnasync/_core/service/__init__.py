"""The driver service: a device of a runtime, served to other processes over Unix sockets.

It stands above the runtime, which it needs whole: workers, devices of any version, idle memory. A
client of it is `nnasync._core.drivers.service`.
"""

from __future__ import annotations

from nnasync._core.service.acceptor import serve, serve_at, serve_connected
from nnasync._core.service.limits import Limits
from nnasync._core.service.listening import listening
from nnasync._core.service.process_resources import for_service

__all__ = ["Limits", "for_service", "listening", "serve", "serve_at", "serve_connected"]
