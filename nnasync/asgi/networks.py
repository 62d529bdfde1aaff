"""The networks of a web application: opened by its lifespan, called by its requests."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
)
from typing import Any

from starlette.applications import Starlette
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from nnasync._core.arguments import check_function, check_kind
from nnasync._core.clock import Deadline, now_ns
from nnasync._core.runtime import Runtime, open_runtime
from nnasync.asgi.answers import Answers
from nnasync.asgi.hang_ups import ARRIVED, HangUps
from nnasync.asgi.limits import Limits, Wishes, wishes_of
from nnasync.errors import BadState, InvalidArgument, NNError
from nnasync.hal import Model, Priority
from nnasync.tracing.exposition import Exposition
from nnasync.tracing.families import Collector
from nnasync.tracing.metrics import CONTENT_TYPE

Callee = Callable[..., Awaitable[Any]]
"""A network, or what is called as one is: with arrays, `deadline=` and `priority=`."""

Source = str | os.PathLike[str] | Model | Callable[[Runtime], Awaitable[Callee]]
"""A file or a model to compile, or what makes a network of a runtime, in the way that it likes.

What is made is entered if it can be, and left with the application.
"""

_LIMITS = Limits()
_SOURCES = (str, os.PathLike, Model)

LimitsOf = Limits | Callable[[HTTPConnection], Limits]
"""Limits of all clients, or those of who asks; what raises for one who may not ask."""


class Call:
    """A network as one request may call it: with its deadline and its priority.

    `await call(x)` is `await net(x)`. A request's time began with its arrival; on a websocket each
    call has as much time from its own beginning.
    """

    __slots__ = ("_arrived_ns", "_wishes", "net")

    def __init__(self, net: Callee, wishes: Wishes, arrived_ns: int | None) -> None:
        self.net: Any = net
        """The network itself: `call.net.burst(priority=call.priority)`."""
        self._wishes = wishes
        self._arrived_ns = arrived_ns

    @property
    def priority(self) -> Priority | None:
        """The priority of its calls; None is that of the network."""
        return self._wishes.priority

    @property
    def deadline(self) -> Deadline | None:
        """Returns by when a call that begins now has to be answered."""
        if self._wishes.timeout_ns is None:
            return None
        began_ns = now_ns() if self._arrived_ns is None else self._arrived_ns
        return Deadline(began_ns + self._wishes.timeout_ns)

    async def __call__(self, *arrays: Any, **options: Any) -> Any:
        """Call the network; takes, gives and raises what it does."""
        return await self.net(*arrays, deadline=self.deadline, priority=self.priority, **options)


class Networks:
    """Networks by name, of one runtime, which is open while the application is.

        networks = Networks({"digits": "digits.tflite"})
        app = FastAPI(lifespan=networks.lifespan)
        networks.install(app)

        @app.post("/digits")
        async def digits(net: Annotated[Call, Depends(networks.call("digits"))]) -> ...:
            scores = await net(image)

    To be used on asyncio, uvloop or trio, whichever the server runs on.
    """

    def __init__(
        self,
        sources: Mapping[str, Source],
        *,
        runtime: Callable[[], Runtime] = open_runtime,
        collectors: tuple[Collector, ...] = (),
    ) -> None:
        """`runtime` makes a runtime with options of its own; `collectors` are further metrics.

        Raises InvalidArgument for what are no sources by name, and for a runtime in the place of
        what makes one.
        """
        check_kind("sources", sources, Mapping, 'a dict of networks by name, {"digits": source}')
        for name, source in sources.items():
            check_kind("a name of a network", name, str, "a str")
            if not callable(source):
                check_kind(name, source, _SOURCES, "a file, a model, or what makes a network")
        check_function("runtime", runtime, "a function such as open_runtime")
        self._sources = dict(sources)
        self._make = runtime
        self._collectors = collectors
        self._runtime: Runtime | None = None
        self._exposition: Exposition | None = None
        self._nets: dict[str, Any] = {}

    @property
    def runtime(self) -> Runtime:
        """The runtime; raises BadState while the application is not running."""
        if self._runtime is None:
            raise BadState("the networks are not open: is `lifespan=networks.lifespan` missing?")
        return self._runtime

    def __getitem__(self, name: str) -> Any:
        """The network of this name; raises BadState while the application is not running."""
        if name not in self._sources:
            raise _unknown(name, self._sources)
        self.runtime  # noqa: B018  # It raises where nothing is open.
        return self._nets[name]

    # -- for the application

    @asynccontextmanager
    async def lifespan(self, app: object = None) -> AsyncIterator[None]:
        """Open the runtime and compile the networks, one after the other, until the end.

        What compiling raises is raised: an application without its networks does not start.
        """
        if self._runtime is not None:
            raise BadState("the networks are open already: each application needs its own")
        async with AsyncExitStack() as stack:
            runtime = await stack.enter_async_context(self._make())
            nets: dict[str, Any] = {}
            for name, source in self._sources.items():
                nets[name] = net = await _made(runtime, name, source)
                if isinstance(net, AbstractAsyncContextManager):
                    await stack.enter_async_context(net)
            stack.enter_context(self._opened(runtime, nets))
            yield

    def install(
        self, app: Starlette, *, metrics: str = "/metrics", health: str = "/healthz"
    ) -> None:
        """Have requests end with their clients and errors answered, and add two paths.

        An empty path is left out. FastAPI is a Starlette; both are to be given the lifespan.
        """
        app.state.networks = self
        app.add_middleware(HangUps)
        app.add_exception_handler(NNError, Answers(lambda: self.backlog_s()[Priority.LOW]))
        for path, endpoint in ((metrics, self.metrics), (health, self.health)):
            if path:
                app.add_route(path, endpoint, methods=["GET"], include_in_schema=False)

    def call(
        self, name: str, *, limits: LimitsOf = _LIMITS
    ) -> Callable[[HTTPConnection], Awaitable[Call]]:
        """A dependency of FastAPI; in Starlette `net = await networks.call("digits")(request)`.

        Its deadline and priority are those of the request's headers within the limits, see
        `Limits`. Raises InvalidArgument for a name that there is not; the dependency does so for
        headers that make no sense.
        """
        if name not in self._sources:
            raise _unknown(name, self._sources)
        if not isinstance(limits, Limits):
            check_function("limits", limits, "Limits, or a function of a request that returns some")

        # A coroutine, although it waits for nothing: FastAPI runs plain functions on threads.
        async def network(connection: HTTPConnection) -> Call:
            allowed = limits(connection) if callable(limits) else limits
            wishes = wishes_of(connection.headers, allowed)
            return Call(self[name], wishes, _arrival_ns(connection))

        return network

    def backlog_s(self) -> tuple[float, float, float]:
        """Returns the seconds of waiting work on all cores, for each priority and above, LOW first.

        Zeros while nothing is open.
        """
        if self._runtime is None:
            return 0.0, 0.0, 0.0
        cores = self._runtime.options.cores
        low, medium, high = self._runtime.statistics().workers.scheduler.backlog_ns
        return low / cores / 1e9, medium / cores / 1e9, high / cores / 1e9

    async def metrics(self, request: Request) -> Response:
        """Answer with the metrics, as Prometheus reads them."""
        if self._exposition is None:
            return PlainTextResponse("the networks are not open\n", 503)
        # The type has a version, and Starlette would add another charset to it.
        return Response(self._exposition.text(), headers={"content-type": CONTENT_TYPE})

    async def health(self, request: Request) -> Response:
        """Answer 200 while the networks are open; the body has the devices in other processes."""
        if self._runtime is None:
            return JSONResponse({"ready": False}, 503)
        devices = {
            device.name: device.pid > 0
            for device in self._runtime.devices
            if hasattr(device, "pid")
        }
        return JSONResponse({"ready": True, "networks": sorted(self._nets), "devices": devices})

    @contextmanager
    def _opened(self, runtime: Runtime, nets: dict[str, Any]) -> Iterator[None]:
        own = [net for net in nets.values() if isinstance(net, Collector)]
        self._exposition = Exposition(runtime, (*self._collectors, *own))
        self._exposition.open()
        self._runtime, self._nets = runtime, nets
        try:
            yield
        finally:
            self._exposition.close()
            self._runtime, self._exposition, self._nets = None, None, {}


async def _made(runtime: Runtime, name: str, source: Source) -> Any:
    if callable(source):
        return await source(runtime)
    return await runtime.compile(source, name=name)


def _arrival_ns(connection: HTTPConnection) -> int | None:
    """Returns the time at which a request arrived.

    It is None for a websocket, whose calls have times of their own.
    """
    if connection.scope["type"] == "websocket":
        return None
    arrived_ns = connection.scope.get(ARRIVED)
    return now_ns() if arrived_ns is None else int(arrived_ns)


def _unknown(name: str, names: Mapping[str, Any]) -> InvalidArgument:
    return InvalidArgument(f"there is no network {name!r}; there are: {', '.join(names)}")
