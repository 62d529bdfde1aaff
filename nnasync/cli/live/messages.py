"""What the page and the server say to each other, as data; what a page sends is checked here.

Messages are JSON objects whose `type` says which one it is. Pictures go as bytes: four bytes with
the length of a `Seen` as JSON, big-endian, the `Seen`, and a JPEG.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from nnasync.errors import InvalidArgument
from nnasync.hal import Struct

MAX_COMMAND_BYTES = 64 << 10
"""The longest message that a page may send: descriptions of WebRTC sessions are some 5 kB."""

MAX_LOAD = 4
"""The most clients of the LOW load that a page may ask for."""

StreamName = Literal["audio", "video"]
PriorityName = Literal["LOW", "MEDIUM", "HIGH"]
LinkState = Literal["normal", "slow", "cut"]


class _Command(
    Struct, frozen=True, tag_field="type", tag=str.lower, forbid_unknown_fields=True, kw_only=True
):
    """Base of what a page asks for."""


class SetStream(_Command, frozen=True, tag="stream"):
    """Priority and deadline of a stream from now on."""

    stream: StreamName
    priority: PriorityName
    deadline_ms: Annotated[int, Meta(ge=1, le=5000)]


class SetLoad(_Command, frozen=True, tag="load"):
    """How many clients the LOW load has."""

    clients: Annotated[int, Meta(ge=0, le=MAX_LOAD)]


class SetNetwork(_Command, frozen=True, tag="network"):
    """What becomes of items between their source and the runtime."""

    state: LinkState


class KillDriver(_Command, frozen=True, tag="kill"):
    """Kill the process of the device that runs the video network."""


class Offer(_Command, frozen=True, tag="offer"):
    """A browser's offer of a WebRTC session with its camera and microphone."""

    sdp: Annotated[str, Meta(min_length=1, max_length=MAX_COMMAND_BYTES)]


class WatchClips(_Command, frozen=True, tag="clips"):
    """Play the demo's clips to this page."""


class Stop(_Command, frozen=True, tag="stop"):
    """End this page's camera session or its clips."""


Command = SetStream | SetLoad | SetNetwork | KillDriver | Offer | WatchClips | Stop

_DECODER = msgspec.json.Decoder(Command)


def read_command(text: str | bytes) -> Command:
    """Decodes a page's command; raises InvalidArgument for anything that is none."""
    if len(text) > MAX_COMMAND_BYTES:
        raise InvalidArgument(f"a command has at most {MAX_COMMAND_BYTES} bytes, got {len(text)}")
    try:
        command: Command = _DECODER.decode(text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise InvalidArgument(f"not a command of this page: {error}") from error
    return command


class Box(Struct, frozen=True):
    """Something found in a picture: its corners as shares of width and height, label, score.

    What stays the same from picture to picture has one `identity`.
    """

    left: float
    top: float
    right: float
    bottom: float
    label: str
    score: float
    identity: int | None = None


class _Message(Struct, frozen=True, tag_field="type", tag=str.lower):
    """Base of what the server tells a page."""


class Hello(_Message, frozen=True, tag="hello"):
    """The first message: what this server plays, and what it can do.

    `source` is empty where each page brings its own camera, if the server `takes_cameras`; `driver`
    is the device whose process can be killed, or empty.
    """

    source: str
    driver: str
    cores: int
    takes_cameras: bool
    max_load: int = MAX_LOAD


class Seen(_Message, frozen=True, tag="seen"):
    """What was found in a frame."""

    index: int
    boxes: tuple[Box, ...]
    latency_ms: float


class Heard(_Message, frozen=True, tag="heard"):
    """A word that was heard."""

    word: str
    score: float
    latency_ms: float


class Notice(_Message, frozen=True, tag="notice"):
    """Something to tell the person at the page; `kind` is "info" or "error"."""

    text: str
    kind: Literal["info", "error"] = "info"


class SdpAnswer(_Message, frozen=True, tag="answer"):
    """The server's side of a WebRTC session."""

    sdp: str


class Ended(_Message, frozen=True, tag="ended"):
    """The session of this page is over; `reason` is empty where the page asked for that."""

    reason: str = ""


class TickSettings(Struct, frozen=True):
    """Priority and deadline of a stream now."""

    priority: str
    deadline_ms: int


class TickStream(Struct, frozen=True):
    """A stream in a tick: its account, and its latencies since the last tick.

    `lost` were lost between the source and the runtime. A latency is (capture in milliseconds of
    the server's clock, milliseconds from capture to answer, 1 if that was in time).
    """

    submitted: int
    completed: int
    missed: int
    dropped: int
    failed: int
    cancelled: int
    pending: int
    lost: int
    rate_hz: float
    latencies: tuple[tuple[float, float, int], ...]


class Tick(_Message, frozen=True, tag="tick"):
    """Where everything is now; several a second.

    `spans` are (lane, network, start in milliseconds, milliseconds): indices into `lanes` and
    `networks`. Times are of the server's clock, `now_ms` is its time now.
    """

    now_ms: float
    settings: dict[StreamName, TickSettings]
    streams: dict[StreamName, TickStream]
    lanes: tuple[str, ...]
    networks: tuple[tuple[str, str], ...]
    spans: tuple[tuple[int, int, float, float], ...]
    machine_busy: float
    process_busy: float
    load_clients: int
    load_hz: float
    network: LinkState
    driver_pid: int
    driver_deaths: int
    viewers: int
    refused: int


Message = Hello | Seen | Heard | Notice | SdpAnswer | Ended | Tick

_ENCODER = msgspec.json.Encoder()


def encode(message: Message) -> str:
    """A message as text."""
    return _ENCODER.encode(message).decode()


def encode_picture(seen: Seen, jpeg: bytes) -> bytes:
    """A picture with what was found in it."""
    told = _ENCODER.encode(seen)
    return len(told).to_bytes(4, "big") + told + jpeg
