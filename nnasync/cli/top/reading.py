"""Metrics of other processes, read from sockets and addresses, and parsed.

The text is Prometheus's exposition format 0.0.4, as nnasync writes it. What answers is not trusted:
an answer has a limited size and little time, and a line that is none is passed over.
"""

from __future__ import annotations

import http.client
import re
import socket
from collections.abc import Mapping
from urllib.parse import urlsplit

from nnasync.errors import DeviceUnavailable, InvalidArgument

MAX_BYTES = 16 << 20
TIMEOUT_S = 2.0

Labels = tuple[tuple[str, str], ...]
Samples = Mapping[tuple[str, Labels], float]
"""Values by name and labels."""

_LINE = re.compile(r"([A-Za-z_:][\w:]*)(?:\{(.*)\})? (\S+)", re.DOTALL)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ESCAPES = {r"\\": "\\", r"\"": '"', r"\n": "\n"}


def read(place: str) -> str:
    """Returns the text of metrics at `unix:PATH` or a URL; blocks for two seconds at most.

    Raises DeviceUnavailable where nobody answers, or not with metrics, and InvalidArgument for an
    address of another kind.
    """
    connection = _connection(place)
    try:
        connection.request("GET", _path(place))
        answer = connection.getresponse()
        body = answer.read(MAX_BYTES + 1)
    except (OSError, http.client.HTTPException) as error:
        raise DeviceUnavailable(f"{place} does not answer: {error!r}") from error
    finally:
        connection.close()
    if answer.status != 200 or len(body) > MAX_BYTES:
        raise DeviceUnavailable(f"{place} has no metrics: it answers with status {answer.status}")
    return body.decode("utf-8", "replace")


def parse(text: str) -> Samples:
    """Returns the samples of a text of metrics."""
    found = {}
    for line in text.split("\n"):
        match = _LINE.fullmatch(line)
        if match is not None and not line.startswith("#"):
            labels = tuple((name, _plain(value)) for name, value in _LABEL.findall(match[2] or ""))
            try:
                found[match[1], labels] = float(match[3])
            except ValueError:
                continue
    return found


def _plain(value: str) -> str:
    return re.sub(r"\\.", lambda escape: _ESCAPES.get(escape[0], escape[0]), value)


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        """Connect to the socket."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(TIMEOUT_S)
        self.sock.connect(self._path)


def _connection(place: str) -> http.client.HTTPConnection:
    if place.startswith("unix:"):
        return _UnixConnection(place.removeprefix("unix:"))
    parts = urlsplit(place)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidArgument(
            f"{place!r} is no address of metrics: http://HOST:PORT/metrics or unix:PATH"
        )
    is_secure = parts.scheme == "https"
    kind = http.client.HTTPSConnection if is_secure else http.client.HTTPConnection
    return kind(parts.hostname, parts.port, timeout=TIMEOUT_S)


def _path(place: str) -> str:
    return "/metrics" if place.startswith("unix:") else urlsplit(place).path or "/metrics"
