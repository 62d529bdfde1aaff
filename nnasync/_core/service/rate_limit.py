"""A rate limit for the messages of each client; pure, the time is an argument.

Reading, checking and refusing messages takes the interpreter, which all clients share, and no
execution tells of it. So each client has a credit of time, which is spent by what its messages take
and grows with the time that goes by, divided among the clients that were active lately. Who has
spent more rests until it is made up for. Alone, nobody rests.
"""

from __future__ import annotations

CREDIT_NS = 20_000_000
"""What the messages of a client that was quiet may take at once."""

COMPILING_CREDIT_NS = 500_000_000
"""The same for compilations, which come in crowds when an application starts."""

ACTIVE_NS = 100_000_000
"""A client counts among the active ones for so long."""

LONGEST_REST_NS = 1_000_000_000


class TokenBucket:
    """The credit of one client; `seen_ns` is when it was active last."""

    __slots__ = ("_credit_ns", "_most_ns", "_now_ns", "seen_ns")

    def __init__(self, now_ns: int, credit_ns: int = CREDIT_NS) -> None:
        """`credit_ns` is what it has at the start, and at most."""
        self._credit_ns = self._most_ns = float(credit_ns)
        self._now_ns = self.seen_ns = now_ns

    def spend(self, cost_ns: float, now_ns: int, others: int) -> int:
        """Subtracts a cost.

        Returns for how many nanoseconds the client has to rest beside `others`.
        """
        active = 1 + others
        grown = self._credit_ns + max(0, now_ns - self._now_ns) / active
        self._credit_ns = max(min(grown, self._most_ns) - cost_ns, -LONGEST_REST_NS / active)
        self._now_ns = self.seen_ns = max(self._now_ns, now_ns)
        return int(max(0.0, -self._credit_ns) * active) if others else 0


class ClientBuckets:
    """The token buckets of all clients of one service."""

    def __init__(self) -> None:
        self._buckets: list[TokenBucket] = []

    def join(self, now_ns: int) -> TokenBucket:
        """Adds a client, and returns its bucket."""
        bucket = TokenBucket(now_ns)
        self._buckets.append(bucket)
        return bucket

    def leave(self, bucket: TokenBucket) -> None:
        """Notes that a client has gone."""
        if bucket in self._buckets:
            self._buckets.remove(bucket)

    def others(self, me: TokenBucket, now_ns: int) -> int:
        """Returns how many other clients were active lately."""
        since_ns = now_ns - ACTIVE_NS
        return sum(each.seen_ns >= since_ns for each in tuple(self._buckets) if each is not me)
