"""Metrics of others: read with limits, parsed as they were written."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnasync.cli.top import reading
from nnasync.cli.top.reading import parse, read
from nnasync.errors import DeviceUnavailable, InvalidArgument
from nnasync.tracing.families import Family, Sample
from nnasync.tracing.metrics import render


class Given:
    """A collector of one family."""

    def __init__(self, family: Family) -> None:
        self._family = family

    def collect(self) -> list[Family]:
        return [self._family]


@given(
    st.lists(
        st.tuples(st.text(st.characters(codec="utf-8"), max_size=8), st.floats(-1e9, 1e9)),
        unique_by=lambda pair: pair[0],
    )
)
def test_what_was_written_is_read(samples: list[tuple[str, float]]) -> None:
    rows = tuple(Sample("", (("network", name), ("le", "1")), value) for name, value in samples)
    found = parse(render(None, Given(Family("things", "gauge", "Help.", rows))))
    assert found == {("things", (("network", name), ("le", "1"))): v for name, v in samples}


@given(st.text())
def test_any_text_is_read(text: str) -> None:
    parse(text)


@contextmanager
def answering(answer: bytes) -> Iterator[str]:
    """The address of a server that gives one answer to one request."""

    def serve() -> None:
        client, _ = server.accept()
        with client:
            client.recv(4096)
            client.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}/metrics"
        thread.join()


@pytest.mark.parametrize(
    "answer",
    [b"", b"garbage", b"HTTP/1.1 404 Not Found\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 99],
)
def test_what_has_no_metrics_is_told(answer: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MAX_BYTES", 50)
    with answering(answer) as url, pytest.raises(DeviceUnavailable, match="metrics|answer"):
        read(url)


@pytest.mark.parametrize("place", ["ftp://h/metrics", "metrics", "http://", ""])
def test_what_is_no_address_is_refused(place: Any) -> None:
    with pytest.raises(InvalidArgument, match="no address of metrics"):
        read(place)


def test_nobody_there_is_told() -> None:
    with pytest.raises(DeviceUnavailable, match="does not answer"):
        read("unix:/no/such.monitor")
