"""What is shown of addresses, whatever their passwords look like."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnasync.streaming.redaction import redacted


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("rtsp://me:secret@camera.local:554/stream", "rtsp://camera.local:554/stream"),
        ("rtsp://me:p@ss@camera.local/", "rtsp://camera.local/"),
        ("rtsp://me:p/secret@camera.local/x", "rtsp://camera.local/x"),
        ("rtsp://me:12/secret@camera.local/x", "rtsp://camera.local/x"),
        ("rtsp://me:se?cret#@camera.local/x", "rtsp://camera.local/x"),
        ("rtsp://camera.local/stream@1", "rtsp://camera.local/stream@1"),
        ("http://camera/video.cgi?user=admin&pwd=secret", "http://camera/video.cgi"),
        ("http://camera/video.cgi?pwd=secret@home", "http://camera/video.cgi"),
        ("http://camera:80/x?pwd=secret", "http://camera:80/x"),
        ("http://[::1]:80/x#secret", "http://[::1]:80/x"),
        ("srt://relay:9000?streamid=secret", "srt://relay:9000"),
        ("rtmp://host/app/secret", "rtmp://host/app/***"),
        ("rtmps://host/app/secret?sign=secret", "rtmps://host/app/***"),
        ("tcp://127.0.0.1:9", "tcp://127.0.0.1:9"),
        ("demo", "demo"),
        ("/clips/a?b@c.mp4", "/clips/a?b@c.mp4"),
        ("", ""),
    ],
)
def test_what_is_shown(address: str, shown: str) -> None:
    assert redacted(address) == shown


@given(st.text(), st.text())
def test_no_password_is_shown_in_part(before: str, after: str) -> None:
    address = f"rtsp://me:{before}SECRET{after}@camera.local/x"
    assert redacted(address) == "rtsp://camera.local/x"
