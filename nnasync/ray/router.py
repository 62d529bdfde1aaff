"""The router of Ray Serve that knows deadlines; Ray's proxies and handles load it by its name."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from typing import Any

from ray.serve.request_router import RequestRouter

from nnasync.ray.choice import backlog_of, ranked, wish_of


class DeadlineRouter(RequestRouter):  # type: ignore[misc]  # Ray need not be installed.
    """Offers a request to replicas that can answer it in time, then to the others.

    It is not in the order of arrival: each request gets the replica that was chosen for it.
    """

    async def choose_replicas(
        self, candidate_replicas: list[Any], pending_request: Any = None
    ) -> list[list[Any]]:
        """Groups of replicas, the first of which is preferred."""
        # Who is equal takes turns.
        candidates = random.sample(candidate_replicas, len(candidate_replicas))
        age_s = 0.0 if pending_request is None else time.time() - pending_request.created_at
        wish = wish_of(headers_of(pending_request), age_s)
        backlogs_s = [
            backlog_of(replica.routing_stats.get("backlog_s"), wish.priority)
            for replica in candidates
        ]
        groups = ranked(backlogs_s, wish)
        return [[candidates[place] for place in group] for group in groups]


def headers_of(pending_request: Any) -> Mapping[str, str]:
    """The headers of a request over HTTP; none of a call by a handle."""
    arguments = () if pending_request is None else pending_request.args
    scope = getattr(arguments[0], "asgi_scope", None) if arguments else None
    if not isinstance(scope, Mapping):
        return {}
    return {
        name.decode("latin-1").lower(): text.decode("latin-1")
        for name, text in scope.get("headers", ())
    }
