"""What is taken from a peer, and the check of what it offers.

The time and memory that aiortc needs for a description grow with the product of its codecs and
their feedbacks, and with its candidates, so these are counted before it is read.
"""

from __future__ import annotations

from nnasync._core.arguments import check_positive, check_whole
from nnasync.errors import InvalidArgument
from nnasync.hal import Struct

_MOST_LINES = {"a=rtpmap": 128, "a=rtcp-fb": 256, "a=candidate": 64}
"""Browsers offer less than half of it."""

_MOST_FORMATS = 128
"""How many words a line of a medium or of a group may have: RTP numbers its formats up to 127."""


class PeerLimits(Struct, frozen=True):
    """What is taken from a peer, and how much may wait for it; closed channels count, too.

    A peer is given up that has sent `unfinished_bytes` of messages whose rest is missing, or a
    picture of more than `picture_pixels`, which has been decoded then. Raises InvalidArgument for
    negative numbers, no room for messages, and a timeout that is not positive.
    """

    offer_bytes: int = 65_536
    offer_lines: int = 1024
    media_sections: int = 4
    channels: int = 4
    message_bytes: int = 65_536
    unfinished_bytes: int = 2_097_152
    messages_waiting: int = 64
    bytes_to_send: int = 1_048_576
    picture_pixels: int = 16_777_216
    connect_timeout_s: float = 15.0

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            least = 1 if name == "messages_waiting" else 0
            if name != "connect_timeout_s":
                check_whole(name, value, least)
        check_positive("connect_timeout_s", self.connect_timeout_s)


def check_offer(offer: str, limits: PeerLimits) -> None:
    """Raise InvalidArgument for an offer that is longer, or has more in it, than is allowed."""
    _check("bytes", len(offer.encode("utf-8", "surrogatepass")), limits.offer_bytes)
    lines = offer.splitlines()
    _check("lines", len(lines), limits.offer_lines)
    for start, most in _MOST_LINES.items():
        _check(f"lines of {start}", sum(line.startswith(start) for line in lines), most)
    words = (len(line.split()) for line in lines if line.startswith(("m=", "a=group")))
    _check("words in a line", max(words, default=0), _MOST_FORMATS + 3)
    sections = sum(line.startswith("m=") for line in lines)
    if not 1 <= sections <= limits.media_sections:
        raise InvalidArgument(
            f"the offer has {sections} media sections, 1 to {limits.media_sections} are allowed"
        )


def _check(what: str, count: int, most: int) -> None:
    if count > most:
        raise InvalidArgument(f"the offer has {count} {what}, {most} are allowed")
