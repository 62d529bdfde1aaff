"""What an address says: which options FFmpeg needs, whether it is live, what may be shown of it."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from urllib.parse import SplitResult, urlsplit

from nnasync._core.arguments import check_options, or_none
from nnasync.errors import InvalidArgument
from nnasync.streaming.blocking_reader import PATIENCE_S, Reading
from nnasync.streaming.network.backoff import Backoff
from nnasync.streaming.network.connection import Address
from nnasync.streaming.network.keeper import SourceEvent
from nnasync.streaming.network.stream import NetworkStream
from nnasync.streaming.redaction import redacted

_PROTOCOLS = (
    "crypto,dtls,hls,http,httpproxy,https,mmsh,mmst,rtmp,rtmps,rtmpt,rtp,srt,srtp,tcp,tls,udp"
)
"""What a playlist or a redirection may lead to: the network, never files of this machine."""

_SILENT_S = 5.0
_RETRY = Backoff()


def network(
    url: str,
    *,
    retry: Backoff | None = _RETRY,
    open_timeout_s: float | None = PATIENCE_S,
    read_timeout_s: float | None = _SILENT_S,
    options: Mapping[str, str] | None = None,
    on_event: Callable[[SourceEvent], object] | None = None,
    uniform: Callable[[], float] = random.random,
) -> NetworkStream:
    """The stream at an address: RTSP, MPEG-TS over TCP or UDP, MJPEG over HTTP, HLS, RTMP ...

    Its pictures and its sound are sources: `network(url).video()`, `network(url).audio()`. One that
    breaks, or sends nothing for `read_timeout_s`, is connected to again as `retry` says; None ends
    it then, with an error unless the sender ended it. The first connection has to come about within
    `open_timeout_s`; None tries for ever. Each later attempt has that long, too.

    `options` are FFmpeg's, and go before those that are set here. `on_event` hears of connections
    made and lost, on the loop; `uniform` gives random numbers from 0 to 1 for the waits. Raises
    InvalidArgument for what is no address, or limits that are not positive.
    """
    if not isinstance(url, str):
        raise InvalidArgument(f"url is of type {type(url).__name__}, it must be a str")
    or_none(check_options, "options", options)
    name = redacted(url)
    parts = _parts(url)
    if parts is None:
        raise InvalidArgument(
            f'{name!r} is no address, such as "rtsp://camera.local/stream" or '
            '"udp://0.0.0.0:5000"; a port is a number up to 65535, and in names and passwords '
            'the characters @ : / ? # % are to be written as "%40" and so on'
        )
    # Only checks the limits: each attempt has a reading of its own.
    Reading(name, open_timeout_s=open_timeout_s, read_timeout_s=read_timeout_s)
    address = Address(
        url=url,
        name=name,
        options={**_options(parts.scheme, read_timeout_s), **(options or {})},
        is_played=parts.scheme in ("http", "https"),
        open_timeout_s=open_timeout_s,
        read_timeout_s=read_timeout_s,
    )
    return NetworkStream(address, retry, on_event, uniform)


def _parts(url: str) -> SplitResult | None:
    """Returns the parts of an address, or None.

    Python's own errors for what is no address would show the password.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
        url.encode()
    except ValueError:
        return None
    return parts if parts.scheme and "://" in url and (parts.hostname or port) else None


def _options(scheme: str, read_timeout_s: float | None) -> dict[str, str]:
    options = {"protocol_whitelist": _PROTOCOLS, "analyzeduration": "2000000"}
    if scheme in ("rtsp", "rtsps"):
        # Over UDP what one packet carried is missing in the picture, and firewalls stop it.
        options["rtsp_transport"] = "tcp"
    if scheme == "udp":
        options |= {"overrun_nonfatal": "1", "fifo_size": "50000"}
    if read_timeout_s is not None:
        limit_us = str(round(read_timeout_s * 1e6))
        # FFmpeg's own limits: PyAV's does not cover the reading that opening ends with.
        options["timeout" if scheme in ("rtsp", "rtsps", "udp") else "rw_timeout"] = limit_us
    return options
