"""Servers of media on the loopback interface, which break as a test asks them to.

Each connection plays one act: what it sends, and how it ends. The acts are played in turn, and the
last one again and again.
"""

from __future__ import annotations

import base64
import functools
import io
import itertools
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import av
import numpy as np

LIMIT_S = 20.0
PORT_OF_NOBODY = 9

Act = Callable[["Line"], None]


class Line:
    """The server's end of a connection."""

    def __init__(self, connection: socket.socket, over: threading.Event) -> None:
        self._connection = connection
        self._over = over
        self._received = b""
        connection.settimeout(LIMIT_S)

    def send(self, data: bytes) -> None:
        self._connection.sendall(data)

    def wait(self, seconds: float) -> None:
        """Let time pass, as a sender does between pictures; raises when the test is over."""
        if self._over.wait(seconds):
            raise ConnectionAbortedError("the test is over")

    def stall(self) -> None:
        """Send nothing more, and stay."""
        self.wait(LIMIT_S)

    def request(self) -> str:
        """The head of a request of HTTP or RTSP."""
        while b"\r\n\r\n" not in self._received:
            data = self._connection.recv(4096)
            if not data:
                raise ConnectionResetError("the client has left")
            self._received += data
        head, self._received = self._received.split(b"\r\n\r\n", 1)
        return head.decode("latin-1")


class Server:
    """Plays acts to those who connect; use it as a context manager."""

    def __init__(self, scheme: str, *acts: Act, path: str = "") -> None:
        self._acts = acts
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._over = threading.Event()
        self._lines: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self.port = self._socket.getsockname()[1]
        self.url = f"{scheme}://127.0.0.1:{self.port}{path}"
        self.errors: list[BaseException] = []

    def __enter__(self) -> Server:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        # The threads end by themselves: to wait for them would hold the loop of a test.
        for line in self._lines:
            line.close()
        assert self.errors == []

    def _accept(self) -> None:
        played = 0
        while not self._over.is_set():
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            self._lines.append(connection)
            act = self._acts[min(played, len(self._acts) - 1)]
            played += 1
            threading.Thread(target=self._play, args=(act, connection), daemon=True).start()

    def _play(self, act: Act, connection: socket.socket) -> None:
        try:
            act(Line(connection, self._over))
        except OSError:
            pass  # The client left, or the test is over.
        except BaseException as error:
            self.errors.append(error)
        finally:
            connection.close()


@functools.cache
def transport_stream(
    *, size: tuple[int, int] = (48, 64), rate: int = 25, count: int = 25, sound: bool = False
) -> bytes:
    """MPEG-TS with H.264, a key picture every five, and with stereo sound of 44.1 kHz if asked."""
    file = io.BytesIO()
    with av.open(file, "w", format="mpegts") as container:
        pictures: Any = container.add_stream("libx264", rate=rate)
        pictures.height, pictures.width = size
        pictures.pix_fmt = "yuv420p"
        pictures.options = {"preset": "ultrafast", "tune": "zerolatency", "g": "5"}
        audio: Any = container.add_stream("mp2", rate=44100, layout="stereo") if sound else None
        heard = 0
        for index in range(count):
            container.mux(pictures.encode(picture(size, index)))
            while sound and heard * rate < index * 44100:
                container.mux(audio.encode(packet_of_tone(heard)))
                heard += 1152
        container.mux(pictures.encode(None))
        if sound:
            container.mux(audio.encode(None))
    return file.getvalue()


def picture(size: tuple[int, int], index: int) -> Any:
    """A gray picture that gets brighter."""
    gray = np.full(size, 16 + 8 * (index % 25), np.uint8)
    return av.VideoFrame.from_ndarray(gray, format="gray").reformat(format="yuv420p")


def packet_of_tone(first: int) -> Any:
    wave = 0.5 * np.sin(2 * np.pi * 441 / 44100 * np.arange(first, first + 1152))
    samples = np.repeat((wave * 32767).astype(np.int16), 2)[None]
    frame = av.AudioFrame.from_ndarray(samples, format="s16", layout="stereo")
    frame.sample_rate, frame.pts = 44100, first
    return frame


def pieces(data: bytes, count: int) -> Iterator[bytes]:
    """Data in about so many pieces of whole packets of MPEG-TS."""
    step = -(-len(data) // 188 // count) * 188
    for start in range(0, len(data), step):
        yield data[start : start + step]


def live(
    data: bytes, *, seconds: float = 0.2, then: Callable[[Line], None] = lambda _: None
) -> Act:
    """Send MPEG-TS within that time, then end it, by default by closing the connection."""

    def act(line: Line) -> None:
        for piece in pieces(data, 20):
            line.send(piece)
            line.wait(seconds / 20)
        then(line)

    return act


def free_port() -> int:
    """A port of UDP that nobody has."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


@contextmanager
def datagrams(data: bytes, port: int) -> Iterator[None]:
    """Send MPEG-TS by UDP, again and again; nothing of it is left at the end.

    The sending thread may come to its end much later on a busy machine, so it has no socket.
    """
    over, sending = threading.Event(), threading.Lock()
    starts = itertools.cycle(range(0, len(data), 1316))

    def send() -> None:
        for start in starts:
            with sending:
                if over.is_set():
                    return
                sender.sendto(data[start : start + 1316], ("127.0.0.1", port))
            over.wait(0.005)

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        threading.Thread(target=send, daemon=True).start()
        try:
            yield
        finally:
            with sending:
                over.set()


# -- MJPEG over HTTP


@functools.cache
def jpegs(count: int = 10) -> Sequence[bytes]:
    """Pictures as JPEG files."""
    found = []
    for index in range(count):
        codec: Any = av.CodecContext.create("mjpeg", "w")
        codec.width, codec.height, codec.pix_fmt = 64, 48, "yuvj420p"
        codec.framerate = 25
        gray = np.full((48, 64), 16 + 20 * index, np.uint8)
        frame = av.VideoFrame.from_ndarray(gray, format="gray").reformat(format="yuvj420p")
        found.append(
            b"".join(bytes(packet) for packet in [*codec.encode(frame), *codec.encode(None)])
        )
    return found


def motion_jpeg(*, period_s: float = 0.01, rounds: int = 100) -> Act:
    """An endless answer of HTTP, a JPEG for each part."""

    def act(line: Line) -> None:
        line.request()
        line.send(
            b"HTTP/1.1 200 OK\r\nContent-Type: multipart/x-mixed-replace; boundary=next\r\n\r\n"
        )
        for data in list(jpegs()) * rounds:
            head = f"--next\r\nContent-Type: image/jpeg\r\nContent-Length: {len(data)}\r\n\r\n"
            line.send(head.encode() + data + b"\r\n")
            line.wait(period_s)

    return act


def answer(status: str, body: bytes = b"") -> Act:
    """An answer of HTTP and nothing else."""

    def act(line: Line) -> None:
        line.request()
        line.send(f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)

    return act


def playlist(segments: Sequence[bytes], duration_s: float) -> Act:
    """HLS: a playlist of segments of MPEG-TS, and these."""
    lines = "".join(f"#EXTINF:{duration_s},\n{index}.ts\n" for index in range(len(segments)))
    head = "#EXTM3U\n#EXT-X-VERSION:3\n#EXT-X-TARGETDURATION:1\n#EXT-X-MEDIA-SEQUENCE:0\n"
    whole = f"{head}{lines}#EXT-X-ENDLIST\n".encode()

    def act(line: Line) -> None:
        while True:
            name = line.request().split()[1].rpartition("/")[2]
            is_list = name.endswith(".m3u8")
            body = whole if is_list else segments[int(name.partition(".")[0])]
            kind = "application/vnd.apple.mpegurl" if is_list else "video/mp2t"
            heads = f"Content-Type: {kind}\r\nContent-Length: {len(body)}"
            line.send(f"HTTP/1.1 200 OK\r\n{heads}\r\n\r\n".encode() + body)

    return act


# -- RTSP


@functools.cache
def access_units(count: int = 25) -> Sequence[Sequence[bytes]]:
    """The units of H.264, by picture."""
    codec: Any = av.CodecContext.create("libx264", "w")
    codec.width, codec.height, codec.pix_fmt = 64, 48, "yuv420p"
    codec.framerate = 25
    codec.options = {"preset": "ultrafast", "tune": "zerolatency", "g": "5"}
    found = []
    for index in range(count):
        data = b"".join(bytes(packet) for packet in codec.encode(picture((48, 64), index)))
        units = data.replace(b"\0\0\0\1", b"\0\0\1").split(b"\0\0\1")[1:]
        found.append(units)
    return found


def rtsp(*, user: str = "", rounds: int = 100, period_s: float = 0.01) -> Act:
    """A camera: it describes its H.264, and plays it over the connection of its control."""

    def act(line: Line) -> None:
        wanted = "Basic " + base64.b64encode(user.encode()).decode()
        while True:
            request = line.request()
            method = request.split(" ", 1)[0]
            number = next(row for row in request.split("\r\n") if row.lower().startswith("cseq"))
            if user and method == "DESCRIBE" and wanted not in request:
                head = f'RTSP/1.0 401 Unauthorized\r\n{number}\r\nWWW-Authenticate: Basic realm="x"'
                line.send(f"{head}\r\n\r\n".encode())
                continue
            body = _SDP if method == "DESCRIBE" else ""
            extra = _RTSP_HEADS.get(method, "")
            if body:
                extra += f"Content-Type: application/sdp\r\nContent-Length: {len(body)}\r\n"
            line.send(f"RTSP/1.0 200 OK\r\n{number}\r\n{extra}\r\n{body}".encode())
            if method == "PLAY":
                _play(line, rounds, period_s)
                return

    return act


_SDP = (
    "v=0\r\no=- 0 0 IN IP4 127.0.0.1\r\ns=camera\r\nt=0 0\r\n"
    "m=video 0 RTP/AVP 96\r\na=rtpmap:96 H264/90000\r\na=fmtp:96 packetization-mode=1\r\n"
    "a=control:track\r\n"
)
_RTSP_HEADS = {
    "OPTIONS": "Public: DESCRIBE, SETUP, PLAY, TEARDOWN\r\n",
    "SETUP": "Transport: RTP/AVP/TCP;unicast;interleaved=0-1\r\nSession: 1\r\n",
    "PLAY": "Session: 1\r\n",
}


def _play(line: Line, rounds: int, period_s: float) -> None:
    sequence = 0
    for index, units in enumerate(list(access_units()) * rounds):
        for unit in units:
            is_last = unit is units[-1]
            head = bytes([0x80, 96 | 0x80 * is_last]) + sequence.to_bytes(2, "big")
            packet = head + (index * 3600).to_bytes(4, "big") + b"camA" + unit
            line.send(b"$\0" + len(packet).to_bytes(2, "big") + packet)
            sequence = (sequence + 1) % 65536
        line.wait(period_s)
