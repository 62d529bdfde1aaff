"""All endpoints over HTTP but that of inferences, which is the one that is called often."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from nnasync.hal import Struct
from nnasync.serving.http_exchange import HungUp, client_of, read_body, told
from nnasync.serving.json_protocol import JSON
from nnasync.serving.metrics import CONTENT_TYPE, metrics_text
from nnasync.serving.problems import ServingError, invalid
from nnasync.serving.server import ModelServer
from nnasync.serving.shared_memory import SharedMemory, no_cuda

_encode = msgspec.json.Encoder().encode
_Endpoint = Callable[[Request], Awaitable[Response]]
_Changes = dict[str, Any]


def routes(server: ModelServer) -> Starlette:
    """Returns an ASGI application with all endpoints but that of inferences."""
    return Starlette(
        routes=[
            *_health(server),
            *_models(server),
            *_repository(server),
            *_settings(server),
            *_system_memory(server),
            *_cuda_memory(server),
        ],
        exception_handlers={
            HTTPException: _of_starlette,
            ServingError: _of_ours,
            HungUp: _of_nobody,
        },
    )


def _answer(value: object, status: int = 200) -> Response:
    return Response(_encode(value), status, media_type=JSON)


def _empty() -> Response:
    return Response(b"", media_type=JSON)


async def _of_starlette(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    return _answer({"error": HTTPStatus(status).phrase}, status)


async def _of_ours(request: Request, error: Exception) -> Response:
    problem = error if isinstance(error, ServingError) else ServingError(HTTPStatus(500), "")
    reply = told(problem)
    response = Response(b"".join(reply.pieces), reply.status)
    response.raw_headers = reply.fields()
    return response


async def _of_nobody(request: Request, error: Exception) -> Response:
    return _answer({"error": "the client hung up"}, 400)


def _route(server: ModelServer, path: str, endpoint: _Endpoint, method: str = "GET") -> Route:
    """Returns a route that asks for a key where the server has keys."""

    async def checked(request: Request) -> Response:
        headers, peer = dict(request.scope["headers"]), request.scope.get("client")
        request.state.client = client_of(server.options, headers, peer[0] if peer else "")
        return await endpoint(request)

    return Route(path, checked, methods=[method])


async def _body(server: ModelServer, request: Request) -> _Changes:
    """Returns the JSON object in the body of a request; an empty body is an empty object."""
    limits, headers = server.limits, dict(request.scope["headers"])
    body = await read_body(request.receive, headers, limits.json_bytes, limits.body_s)
    if not body:
        return {}
    try:
        return msgspec.json.decode(body, type=_Changes)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise invalid(f"failed to parse the request JSON buffer: {error}") from error


def _health(server: ModelServer) -> list[Route]:
    async def live(request: Request) -> Response:
        return _answer({"live": True})

    async def ready(request: Request) -> Response:
        return _answer({"ready": server.is_ready}, 200 if server.is_ready else 400)

    async def metadata(request: Request) -> Response:
        return _answer(server.metadata())

    async def metrics(request: Request) -> Response:
        return Response(metrics_text(server), media_type=CONTENT_TYPE)

    return [
        # These need no key: whoever asks is a supervisor, and learns nothing else.
        Route("/v2/health/live", live),
        Route("/v2/health/ready", ready),
        _route(server, "/v2", metadata),
        _route(server, "/metrics", metrics),
    ]


def _named(request: Request) -> tuple[str, str]:
    parameters = request.path_params
    return parameters["model"], parameters.get("version", "")


def _models(server: ModelServer) -> list[Route]:
    async def ready(request: Request) -> Response:
        if not server.model_ready(*_named(request)):
            raise invalid("Model version not ready")
        return _empty()

    async def metadata(request: Request) -> Response:
        return _answer(server.model_metadata(*_named(request)))

    async def config(request: Request) -> Response:
        return _answer(server.model_config(*_named(request)))

    async def statistics(request: Request) -> Response:
        return _answer(server.model_statistics(*_named(request)))

    async def all_statistics(request: Request) -> Response:
        return _answer(server.model_statistics())

    found = [_route(server, "/v2/models/stats", all_statistics)]
    for place in ("/v2/models/{model}", "/v2/models/{model}/versions/{version}"):
        found += [
            _route(server, place, metadata),
            _route(server, f"{place}/ready", ready),
            _route(server, f"{place}/config", config),
            _route(server, f"{place}/stats", statistics),
            Route(f"{place}/infer", _of_wrong_method, methods=["POST"]),
        ]
    return found


async def _of_wrong_method(request: Request) -> Response:
    """Refuses inferences with a wrong method; those with the right one never come to this route."""
    raise HTTPException(405)


def _repository(server: ModelServer) -> list[Route]:
    async def index(request: Request) -> Response:
        wanted = await _body(server, request)
        return _answer(server.index(ready=wanted.get("ready") is True))

    async def load(request: Request) -> Response:
        wanted = await _body(server, request)
        parameters = wanted.get("parameters", {})
        if not isinstance(parameters, dict):
            raise invalid("'parameters' must be an object")
        await server.load(request.path_params["model"], parameters)
        return _empty()

    async def unload(request: Request) -> Response:
        await _body(server, request)
        await server.unload(request.path_params["model"])
        return _empty()

    place = "/v2/repository/models/{model}"
    return [
        _route(server, "/v2/repository/index", index, "POST"),
        _route(server, f"{place}/load", load, "POST"),
        _route(server, f"{place}/unload", unload, "POST"),
    ]


def _settings(server: ModelServer) -> list[Route]:
    async def trace(request: Request) -> Response:
        if model := request.path_params.get("model", ""):
            server.models.find(model)
        return _answer(server.trace.changed(await _body(server, request)))

    async def log(request: Request) -> Response:
        return _answer(server.log.changed(await _body(server, request)))

    return [
        _route(server, path, endpoint, method)
        for path, endpoint in (
            ("/v2/trace/setting", trace),
            ("/v2/models/{model}/trace/setting", trace),
            ("/v2/logging", log),
        )
        for method in ("GET", "POST")
    ]


class _Register(Struct, frozen=True):
    """The body of a request to register a region of shared memory."""

    key: str
    byte_size: int
    offset: int = 0


def _system_memory(server: ModelServer) -> list[Route]:
    def shared(request: Request) -> SharedMemory:
        return server.memory_of(request.state.client)

    async def status(request: Request) -> Response:
        return _answer(shared(request).status(request.path_params.get("region")))

    async def register(request: Request) -> Response:
        try:
            wanted = msgspec.convert(await _body(server, request), _Register)
        except msgspec.ValidationError as error:
            raise invalid(f"failed to parse the request: {error}") from error
        shared(request).register(
            request.path_params["region"], wanted.key, wanted.offset, wanted.byte_size
        )
        return _empty()

    async def unregister(request: Request) -> Response:
        shared(request).unregister(request.path_params.get("region"))
        return _empty()

    place = "/v2/systemsharedmemory"
    return [
        _route(server, f"{place}/status", status),
        _route(server, f"{place}/region/{{region}}/status", status),
        _route(server, f"{place}/region/{{region}}/register", register, "POST"),
        _route(server, f"{place}/region/{{region}}/unregister", unregister, "POST"),
        _route(server, f"{place}/unregister", unregister, "POST"),
    ]


def _cuda_memory(server: ModelServer) -> list[Route]:
    """Returns the routes of CUDA shared memory, which say that this server has none."""

    async def status(request: Request) -> Response:
        return _answer([])

    async def register(request: Request) -> Response:
        raise invalid(no_cuda(request.path_params["region"]))

    async def unregister(request: Request) -> Response:
        return _empty()

    place = "/v2/cudasharedmemory"
    return [
        _route(server, f"{place}/status", status),
        _route(server, f"{place}/region/{{region}}/status", status),
        _route(server, f"{place}/region/{{region}}/register", register, "POST"),
        _route(server, f"{place}/region/{{region}}/unregister", unregister, "POST"),
        _route(server, f"{place}/unregister", unregister, "POST"),
    ]
