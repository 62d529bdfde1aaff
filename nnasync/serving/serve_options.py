"""Options of a server, apart from where it listens."""

from __future__ import annotations

import hmac
from http import HTTPStatus
from pathlib import Path

import msgspec

from nnasync.errors import InvalidArgument
from nnasync.hal import Struct
from nnasync.serving.limits import Limits
from nnasync.serving.problems import ServingError


class ServeOptions(Struct, frozen=True, kw_only=True):
    """The options of a server, apart from where it listens.

    api_keys: a key for each client; where there are any, requests must bring one. allow_load:
    whether models may be loaded and unloaded by requests. allow_settings: whether requests may
    change how much is logged. drain_s: how long requests in flight may
    take once the server is to end. poll_s: how often the folder of models is looked at (0: never).
    cache_dir: where compiled models are kept. shared_memory: whether clients may register files of
    shared memory, which is for those of the same machine.
    """

    limits: Limits = Limits()
    api_keys: dict[str, str] = msgspec.field(default_factory=dict)
    allow_load: bool = False
    allow_settings: bool = False
    drain_s: float = 10.0
    poll_s: float = 2.0
    cache_dir: Path | None = None
    shared_memory: bool = True

    def __post_init__(self) -> None:
        if self.drain_s < 0 or self.poll_s < 0:
            raise InvalidArgument(
                f"drain_s and poll_s must be 0 or more, got {self.drain_s} and {self.poll_s}"
            )
        if not all(self.api_keys.keys()) or not all(self.api_keys.values()):
            raise InvalidArgument("an API key, and the name of its client, cannot be empty")
        for key, client in self.api_keys.items():
            if not (key.isascii() and key.isprintable() and key == key.strip()):
                raise InvalidArgument(
                    f"the API key of {client!r} cannot be sent in a header: it must be printable "
                    "ASCII without spaces at its ends"
                )

    def client_of(self, key: str | None, peer: str) -> str:
        """Returns the client that a request is accounted to.

        It is the client of the request's key, or without keys its address. Raises ServingError for
        a key that is missing or unknown.
        """
        if not self.api_keys:
            return peer
        if key is None:
            raise ServingError(HTTPStatus.UNAUTHORIZED, "this server needs an API key")
        given, client = key.encode(), ""
        for known, name in self.api_keys.items():
            # All are compared, and each takes the same time, so that time tells nothing.
            if hmac.compare_digest(known.encode(), given):
                client = name
        if not client:
            raise ServingError(HTTPStatus.UNAUTHORIZED, "this API key is not known")
        return client
