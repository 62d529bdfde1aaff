"""The deployment of Ray Serve: an ASGI application with a runtime in each replica.

A replica is a process of Ray, in which user code runs on an event loop beside the main thread, and
signals are Ray's. A runtime is at home there: it belongs to whichever loop opens it, installs no
signal handlers, and is opened and closed by the application's lifespan. How many cores it may use
is said, not guessed: Ray reserves so many for a replica and keeps it on none in particular, so
what a process is told of its machine is that of all replicas together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from nnasync._core.arguments import check_callable, check_whole
from nnasync.ray.devices import look_for_ray

ROUTER = "nnasync.ray.router.DeadlineRouter"
_STATS_PERIOD_S = 0.2
_STATS_TIMEOUT_S = 5.0


def app(
    build: Callable[[int], Any],
    *,
    cores: int = 1,
    replicas: int | Mapping[str, Any] = 1,
    max_ongoing: int = 256,
    max_queued: int = 1024,
    resources: Mapping[str, float] | None = None,
    name: str = "nnasync",
) -> Any:
    """An application for `serve.run`; `build` makes the ASGI application in each replica.

    `build` is called with the number of `cores`, for `nn.Options(cores=cores)` of its runtime, and
    must be picklable by Ray (a function of a module is). `replicas` is their number, or Ray's
    `autoscaling_config`, which counts ongoing requests: those that wait for the device among them.
    A replica takes `max_ongoing` requests, which its runtime puts in order; beyond `max_queued` a
    proxy answers 503 at once. `resources` are further ones of Ray that a replica needs. Raises
    InvalidArgument for numbers below 1, ImportError without Ray.
    """
    check_callable("build", build, "a function of the number of cores that returns an application")
    for what, count in (("cores", cores), ("max_ongoing", max_ongoing), ("max_queued", max_queued)):
        check_whole(what, count, 1)
    look_for_ray()
    from ray import serve
    from ray.serve.config import RequestRouterConfig

    def build_here() -> Any:
        return build(cores)

    class Replica:
        """One process with the application."""

        async def record_routing_stats(self) -> dict[str, Any]:
            """What routers are told: how long the work takes that waits here, by priority."""
            networks = getattr(self.app.state, "networks", None)  # type: ignore[attr-defined]
            return {} if networks is None else {"backlog_s": networks.backlog_s()}

    counts: dict[str, Any] = (
        {"num_replicas": replicas}
        if isinstance(replicas, int)
        else {"autoscaling_config": dict(replicas)}
    )
    deployment = serve.deployment(
        serve.ingress(build_here)(Replica),
        name=name,
        max_ongoing_requests=max_ongoing,
        max_queued_requests=max_queued,
        ray_actor_options={"num_cpus": cores, "resources": dict(resources or {})},
        request_router_config=RequestRouterConfig(
            request_router_class=ROUTER,
            request_routing_stats_period_s=_STATS_PERIOD_S,
            request_routing_stats_timeout_s=_STATS_TIMEOUT_S,
        ),
        **counts,
    )
    return deployment.bind()
