"""The connections of a service, and which of them is closed when there is no room.

A connection that was never used keeps nobody out. One that has not finished its handshake gives way
to whoever comes, also where many of them come at once; one that has, and asked for nothing since,
to a client of another process that has fewer connections. Among several the process with the most
connections loses one, its oldest: so a flood drives out its own. A client that was sent away while
it rested is connected again when it asks for something.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Protocol

MOST_UNGREETED = 16
"""How many connections may be amid their handshakes; more of them are a flood."""


class ClientConnection(Protocol):
    """A connection (`service.client_session.Session` is one)."""

    @property
    def is_greeted(self) -> bool:
        """Returns whether its handshake is over."""

    @property
    def has_asked(self) -> bool:
        """Returns whether it has asked for anything since the handshake."""

    def disconnect(self) -> None:
        """Ends the connection."""


class ClientConnections:
    """The connections of one service, in the order in which they came, with their processes."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._pids: dict[ClientConnection, int] = {}

    def __len__(self) -> int:
        return len(self._pids)

    def has_room(self, pid: int) -> bool:
        """Returns whether this process may have one more; an idle connection may end for that."""
        if len(self._among(_is_new)) >= MOST_UNGREETED:
            self._send_away(self._among(_is_new))
        if len(self) < self._most:
            return True
        if self._send_away(self._among(_is_new)):
            return True
        counts = Counter(self._pids.values())
        idle = {
            connection: of
            for connection, of in self._among(_is_idle).items()
            if counts[of] > counts[pid] + 1
        }
        return self._send_away(idle)

    def come(self, connection: ClientConnection, pid: int) -> None:
        """Notes a connection that was let in."""
        self._pids[connection] = pid

    def leave(self, connection: ClientConnection) -> None:
        """Forgets a connection that has gone, or was sent away before."""
        self._pids.pop(connection, None)

    def _among(self, test: Callable[[ClientConnection], bool]) -> dict[ClientConnection, int]:
        return {connection: pid for connection, pid in self._pids.items() if test(connection)}

    def _send_away(self, connections: dict[ClientConnection, int]) -> bool:
        """Ends the oldest connection of the process that has most.

        Returns whether there was one.
        """
        if not connections:
            return False
        ((most, _),) = Counter(connections.values()).most_common(1)
        oldest = next(connection for connection, pid in connections.items() if pid == most)
        self.leave(oldest)
        oldest.disconnect()
        return True


def _is_new(connection: ClientConnection) -> bool:
    return not connection.is_greeted


def _is_idle(connection: ClientConnection) -> bool:
    return connection.is_greeted and not connection.has_asked
