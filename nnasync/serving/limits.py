"""What a client may ask for at most: requests come from anybody who reaches the port."""

from __future__ import annotations

from nnasync.errors import InvalidArgument
from nnasync.hal import Struct


class Limits(Struct, frozen=True, kw_only=True):
    """Limits of a server; all are 1 or more, but times.

    body_bytes: a request, also once it is unpacked. json_bytes: its part in JSON. tensors: inputs,
    and requested outputs. dimensions: of a tensor. elements: of a tensor; what is in shared memory
    or unpacked counts, too. parameters: of a request or a tensor. text_bytes: an identifier or
    another text among the parameters. connections: open at once. requests_per_client: in flight
    at once. clients: that accounts tell apart. sequences_per_client: open at once. regions: of
    shared memory. header_bytes: the header of an HTTP request. body_s: how long a request may take
    to arrive.
    """

    body_bytes: int = 64 << 20
    json_bytes: int = 16 << 20
    tensors: int = 64
    dimensions: int = 16
    elements: int = 1 << 26
    parameters: int = 64
    text_bytes: int = 1024
    connections: int = 1024
    requests_per_client: int = 1024
    clients: int = 256
    sequences_per_client: int = 64
    regions: int = 256
    header_bytes: int = 64 << 10
    body_s: float = 30

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            least = 0.001 if name == "body_s" else 1
            if not least <= getattr(self, name) < 2**40:
                text = f"limit {name} must be {least} or more, got {getattr(self, name)}"
                raise InvalidArgument(text)
