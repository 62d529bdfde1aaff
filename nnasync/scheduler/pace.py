"""How much longer queued work takes than it would at its quickest, learnt from when it leaves.

An execution of which the quickest run took 3 ms may take 5 beside others, its core may be shared
with the loop and with other processes, and while LOW waits HIGH is done. Who is queued behind ten
such executions has to wait for all of that, and it cannot be told from any of them alone. But it
shows in the times at which executions leave the queue while there are more: the time from one to
the next, on all cores, over what it takes at least.

It is learnt for each priority, since what waits at LOW waits for more than what waits at HIGH.

Who is refused because of it does not wait, and so nobody might ever learn better. So what was
learnt is no reason to refuse for long: it grows old, by half with each second without news.
"""

from __future__ import annotations

from nnasync.scheduler.job import Job

_LEARNING = 1 / 16
_MOST = 64.0
_CAUTION = 1.25
_HALF_LIFE_NS = 1e9


class Pace:
    """Learns the pace of each priority on so many servers from when jobs are handed out."""

    __slots__ = ("_factors", "_known_ns", "_last_ns", "_servers")

    def __init__(self, servers: int) -> None:
        self._servers = servers
        self._factors = [0.0, 0.0, 0.0]
        self._last_ns = [0, 0, 0]
        self._known_ns = [0, 0, 0]

    def wait_ns(self, priority: int, least_ns: float) -> float:
        """Returns how long a job waits for queued work that takes at least so long.

        A quarter is added to what is usual, since half of all waits are longer than that. Nothing
        is added before anything has been learnt.
        """
        return least_ns / self._servers * (self._factors[priority] * _CAUTION or 1.0)

    def grow_old(self, priority: int, now_ns: int) -> None:
        """Lets the pace grow old before somebody is refused for it.

        While others wait it does so only until the last one left the queue: that it does not move
        since is news as well.
        """
        factor, at_ns = self._factors[priority], self._last_ns[priority] or now_ns
        old_ns = at_ns - self._known_ns[priority]
        if factor and old_ns > 0:
            self._factors[priority] = 1.0 + (factor - 1.0) * 0.5 ** (old_ns / _HALF_LIFE_NS)
            self._known_ns[priority] = at_ns

    def begins_to_wait(self, priority: int) -> None:
        """Notes that a job is queued where none of its priority was.

        The pause before does not count.
        """
        self._last_ns[priority] = 0

    def handed_out(self, job: Job, now_ns: int, left: int) -> None:
        """Notes that a job left the queue to run, with how many of its priority behind it.

        One that goes on after it gave way was counted already: the time counts for the next one.
        """
        priority, last_ns = job.priority, self._last_ns
        if job.has_begun and left:
            return
        since_ns = last_ns[priority]
        if since_ns and job.floor_ns > 0:
            factor = (now_ns - since_ns) * self._servers / job.floor_ns
            if factor < 1.0:
                factor = 1.0
            elif factor > _MOST:
                factor = _MOST
            known = self._factors[priority] or 1.0
            self._factors[priority] = known + (factor - known) * _LEARNING
            self._known_ns[priority] = now_ns
        last_ns[priority] = now_ns if left else 0
