"""A server of models without any network of its own: what HTTP and gRPC put requests to.

A request is admitted, refused, answered at its deadline or given up, and each of these stands in
one account. What can be answered at once is, without a task or a suspension: `start` gives the
answer itself then, and otherwise what has to be awaited.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any, Self

import anyio

from nnasync._core.clock import Deadline, now_ns
from nnasync._core.execution import Net
from nnasync._core.execution.call_now import call_now
from nnasync._core.packages import VERSION
from nnasync._core.runtime import Runtime
from nnasync.errors import NNError, ResourceExhaustedTransient, because
from nnasync.hal import Array, Priority
from nnasync.serving.accounts import UNKNOWN, Account, Accounts
from nnasync.serving.messages import (
    NO_PARAMETERS,
    InferAnswer,
    InferRequest,
    ModelIndexEntry,
    ModelMetadata,
    RequestedOutput,
)
from nnasync.serving.model_config import config_of, metadata_of
from nnasync.serving.model_settings import ModelSettings
from nnasync.serving.models import Models
from nnasync.serving.problems import ServingError, as_serving_error, invalid
from nnasync.serving.repository import READY, Repository
from nnasync.serving.sequences import Sequences, signature_in_sequence, until_set
from nnasync.serving.serve_options import ServeOptions
from nnasync.serving.served_model import ServedModel
from nnasync.serving.settings import LogSettings, TraceSettings
from nnasync.serving.shared_memory import ClientsMemory, SharedMemory
from nnasync.serving.tensors import arrays_of, outputs_of, wanted_outputs

logger = logging.getLogger(__name__)

NAME = "nnasync"
_CODING_THREADS = 2
_ABOUT_TO_END = "the server is about to end"
_NEVER_NS = 2**62
"""A time-out that ends later is none."""
EXTENSIONS = (
    "classification",
    "model_repository",
    "schedule_policy",
    "sequence",
    "system_shared_memory",
    "model_configuration",
    "binary_tensor_data",
    "parameters",
    "statistics",
    "trace",
    "logging",
)


class _Call:
    """A request that was admitted, on its way."""

    __slots__ = ("account", "arrays", "begun_ns", "behind", "deadline", "finish", "memory", "model",
                 "priority", "ready_ns", "request", "signature", "wanted")  # fmt: skip

    arrays: Sequence[Array]
    behind: anyio.Event | None
    finish: Callable[[InferAnswer], Any] | None
    memory: SharedMemory
    wanted: Sequence[tuple[int, RequestedOutput]]
    ready_ns: int

    def __init__(
        self, model: ServedModel, account: Account, request: InferRequest, arrived_ns: int
    ) -> None:
        self.model = model
        self.account = account
        self.request = request
        self.signature = model.signature
        self.begun_ns = arrived_ns
        self.deadline: Deadline | None = None
        self.priority = Priority.MEDIUM


class ModelServer:
    """Serves models of one runtime; to be used on its loop."""

    def __init__(
        self,
        runtime: Runtime,
        files: Sequence[str | os.PathLike[str]] = (),
        *,
        folder: str | os.PathLike[str] | None = None,
        options: ServeOptions | None = None,
    ) -> None:
        """`files` are models, as is what lies in `folder`; both may be empty, see `add`."""
        self.runtime = runtime
        self.options = options or ServeOptions()
        self.limits = self.options.limits
        self.models = Models()
        self.accounts = Accounts(self.limits.clients)
        self.shared_memory = ClientsMemory(
            self.limits.regions, is_allowed=self.options.shared_memory
        )
        self._memory_of_all = self.shared_memory.of("")
        self.sequences = Sequences(self.limits.sequences_per_client, on_end=self._look)
        self.trace = TraceSettings()
        self.log = LogSettings(may_change=self.options.allow_settings)
        self.coding_threads = anyio.CapacityLimiter(_CODING_THREADS)
        """Bodies that are unpacked at the same time: a small one may become as large as allowed."""
        self.is_ready = False
        """Whether all models were tried, and the server is not about to end."""
        self._in_flight: dict[str, int] = {}
        self._nothing_left: anyio.Event | None = None
        self.repository = Repository(
            runtime,
            self.models,
            folder=None if folder is None else Path(folder),
            files=[Path(file) for file in files],
            cache_dir=self.options.cache_dir,
        )
        self._tasks = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Load the models; raises OSError and InvalidArgument for files that cannot be any."""
        tasks = await self._tasks.enter_async_context(anyio.create_task_group())
        try:
            await self.repository.open(tasks)
        except BaseException:
            tasks.cancel_scope.cancel()
            await self._close()
            raise
        self._tasks.callback(tasks.cancel_scope.cancel)
        tasks.start_soon(self.sequences.end_idle_forever)
        if self.options.poll_s:
            tasks.start_soon(self.repository.watch, self.options.poll_s)
        self.is_ready = True
        return self

    async def __aexit__(self, *exception: object) -> None:
        """Close all networks; what is still in flight ends with errors."""
        await self._close()

    async def _close(self) -> None:
        self.is_ready = False
        try:
            # Without the error of the block, which goes on as it is and not in a group.
            await self._tasks.aclose()
        finally:
            self.sequences.close()
            self.repository.close()
            self.shared_memory.close()

    async def drain(self) -> bool:
        """Begin nothing more, and wait for what has begun, for as long as the options say.

        Requests of sequences that are open are answered until these end. Returns whether nothing
        that is in flight is left.
        """
        self.is_ready = False
        if self._in_flight or len(self.sequences):
            self._nothing_left = anyio.Event()
            with anyio.move_on_after(self.options.drain_s):
                await self._nothing_left.wait()
        return not self._in_flight

    def _look(self) -> None:
        """See whether who waits for the end need wait no more."""
        if self._nothing_left is not None and not self._in_flight and not len(self.sequences):
            self._nothing_left.set()

    def memory_of(self, client: str) -> SharedMemory:
        """The regions of a client: its own where keys tell clients apart, else those of all."""
        return self.shared_memory.of(client) if self.options.api_keys else self._memory_of_all

    async def add(self, net: Net[Any], settings: ModelSettings) -> None:
        """Serve a network under the name of the settings; it is closed with this server.

        Raises InvalidArgument where the settings do not fit it.
        """
        await self.repository.put(net, settings)

    # -- inference

    async def infer(
        self, request: InferRequest, *, client: str = "", deadline: Deadline | None = None
    ) -> InferAnswer:
        """Answer a request by the earlier of `deadline` and its own time-out.

        Raises ServingError and nothing else; to be cancelled where the client hangs up.
        """
        found = self.start(request, client=client, deadline=deadline)
        answer: InferAnswer = found if isinstance(found, InferAnswer) else await found
        return answer

    def start(
        self,
        request: InferRequest,
        *,
        client: str = "",
        deadline: Deadline | None = None,
        arrived_ns: int = 0,
        behind: anyio.Event | None = None,
        finish: Callable[[InferAnswer], Any] | None = None,
    ) -> Any:
        """The answer where it can be given at once, else what gives it, and must be awaited.

        `finish` makes of it what is sent, and is a part of the answering: where it raises, the
        request has failed. `arrived_ns` is when the request came, if that was not now; it is run
        once the event `behind` is set. Raises ServingError and nothing else.
        """
        try:
            open_model = self.sequences.model_of(request, client)
            model = open_model or self.models.find(request.model, request.version)
        except ServingError as error:
            account = self.accounts.of(UNKNOWN, "", client)
            account.tally.calls += 1
            account.tally.ended(error)
            raise
        account = self.accounts.of(model.name, model.version, client)
        account.tally.calls += 1
        call = _Call(model, account, request, arrived_ns or now_ns())
        call.behind, call.finish, call.memory = behind, finish, self.memory_of(client)
        try:
            if not self.is_ready and open_model is None:
                raise ServingError(HTTPStatus.SERVICE_UNAVAILABLE, _ABOUT_TO_END)
            self._begin(call, deadline)
            answer = None if behind is not None else self._answer_now(call)
            if answer is not None:
                return answer
            self._enter(call, client)
        except Exception as error:
            raise self._failed(call, error) from error
        return self._answer_later(call, client)

    def _begin(self, call: _Call, deadline: Deadline | None) -> None:
        """Check the request, and see when it is due."""
        request, model = call.request, call.model
        settings = model.settings
        call.priority = settings.priority_of(request.priority)
        limit_us: float = request.timeout_us
        if limit_us == 0 and deadline is None:
            limit_us = settings.timeout_ms * 1000
        if settings.longest_timeout_ms:
            longest_us = settings.longest_timeout_ms * 1000
            limit_us = min(limit_us or longest_us, longest_us)
        if limit_us:
            own = Deadline(min(call.begun_ns + int(limit_us * 1000), _NEVER_NS))
            deadline = own if deadline is None else min(own, deadline)
        call.deadline = deadline
        if request.sequence_id or model.is_stateful:
            call.signature = signature_in_sequence(model, request)
        call.wanted = wanted_outputs(request, call.signature)
        call.arrays = arrays_of(request, call.signature, self.limits, call.memory)
        call.ready_ns = now_ns()

    def _answer_now(self, call: _Call) -> Any:
        """The answer, if the network gives it without waiting."""
        model, arrays = call.model, call.arrays
        if len(arrays) != 1 or call.priority is not model.net.priority or not model.runs_plainly:
            return None
        value = call_now(model.net, arrays[0], call.deadline)
        if value is None:
            return None
        return self._answer(call, model.listed(value), None)

    def _enter(self, call: _Call, client: str) -> None:
        """Let a request in that has to wait; raises where too many do already."""
        in_flight = self._in_flight.get(client, 0)
        if in_flight >= self.limits.requests_per_client:
            text = f"a client has at most {self.limits.requests_per_client} requests in flight"
            raise because("queue_full", ResourceExhaustedTransient(text))
        call.model.admit()
        call.model.enter()
        self._in_flight[client] = in_flight + 1

    async def _answer_later(self, call: _Call, client: str) -> Any:
        model = call.model
        try:
            values, device_ns = await self._run(call, client)
            return self._answer(call, values, device_ns)
        except Exception as error:
            raise self._failed(call, error) from error
        except BaseException as error:
            call.account.tally.ended(error)
            raise
        finally:
            model.dismiss()
            model.leave()
            left = self._in_flight[client] - 1
            if left:
                self._in_flight[client] = left
            else:
                del self._in_flight[client]
                self._look()

    async def _run(self, call: _Call, client: str) -> tuple[Sequence[Array], int | None]:
        """The outputs, and how long the device took where it says so."""
        model, request = call.model, call.request
        if call.behind is not None:
            await until_set(call.behind, call.deadline)
        if request.sequence_id:
            values = await self.sequences.run(
                model, request, call.arrays, deadline=call.deadline, priority=call.priority,
                client=client,
            )  # fmt: skip
            return values, None
        return await model.run(call.arrays, call.deadline, call.priority)

    def _answer(self, call: _Call, values: Sequence[Array], device_ns: int | None) -> Any:
        model, ran_ns = call.model, now_ns()
        outputs = outputs_of(call.wanted, values, call.signature, call.memory)
        answer: Any = InferAnswer(model.name, model.version, call.request.id, outputs)
        if call.finish is not None:
            answer = call.finish(answer)
        took_ns = ran_ns - call.ready_ns
        infer_ns = took_ns if device_ns is None else min(device_ns, took_ns)
        size, read_ns = model.batch_size_of(call.arrays), call.ready_ns - call.begun_ns
        model.statistics.succeeded(size, took_ns - infer_ns, read_ns, infer_ns, now_ns() - ran_ns)
        call.account.tally.completed += 1
        return answer

    def _failed(self, call: _Call, error: Exception) -> ServingError:
        """Account for an error; what is sent for it."""
        call.account.tally.ended(error, call.deadline)
        call.model.statistics.failed(now_ns() - call.begun_ns)
        if not isinstance(error, NNError):
            logger.error("a request for model %s failed", call.model.name, exc_info=error)
        if isinstance(error, ServingError):
            # Another one: an error that is its own cause would keep the request until a collection.
            return ServingError(error.code, error.text, retry_after_s=error.retry_after_s)
        return as_serving_error(error, retry_after_s=self.drain_s(call.model))

    def drain_s(self, model: ServedModel) -> float:
        """About how long it takes until what waits for a model is done."""
        return model.drain_s(self.runtime.options.cores)

    # -- what there is

    def metadata(self) -> dict[str, Any]:
        """Name, version and extensions of the server."""
        extensions = list(EXTENSIONS)
        if not self.options.shared_memory:
            extensions.remove("system_shared_memory")
        return {"name": NAME, "version": VERSION, "extensions": extensions}

    def model_ready(self, name: str, version: str = "") -> bool:
        """Whether a model is served."""
        return self.models.has(name, version)

    def model_metadata(self, name: str, version: str = "") -> ModelMetadata:
        """What a model takes and gives; raises ServingError where it is not served."""
        return metadata_of(self.models.find(name, version), self.models.versions(name))

    def index(self, *, ready: bool = False) -> list[ModelIndexEntry]:
        """All models, or those that are `ready`; what is not says why."""
        return [entry for entry in self.repository.index() if not ready or entry.state == READY]

    async def load(self, name: str, parameters: Mapping[str, Any] = NO_PARAMETERS) -> None:
        """Load a model of the folder again; raises ServingError where that is not to be."""
        self._check_may_load()
        if parameters:
            raise invalid(
                "a model is loaded with the file and the settings that are in the folder; this "
                f"server takes none by request ({', '.join(sorted(parameters))[:200]})"
            )
        is_there = bool(name) and await self.repository.load(name)
        if not is_there:
            raise ServingError(
                HTTPStatus.INTERNAL_SERVER_ERROR,
                f"failed to load '{name[:200]}', failed to poll from model repository",
            )
        problems = self.repository.problems_of(name)
        if problems or not self.models.has(name):
            raise ServingError(
                HTTPStatus.INTERNAL_SERVER_ERROR, f"failed to load '{name}': {problems}"
            )

    async def unload(self, name: str) -> None:
        """Serve a model no more; raises ServingError where requests may not say so."""
        self._check_may_load()
        await self.repository.unload(name)
        self.sequences.close_model(name)

    def _check_may_load(self) -> None:
        if not self.is_ready:
            raise ServingError(HTTPStatus.SERVICE_UNAVAILABLE, _ABOUT_TO_END)
        if not self.options.allow_load:
            raise ServingError(
                HTTPStatus.FORBIDDEN,
                "explicit model load / unload is not allowed: this server was started without "
                "--allow-load",
            )

    def model_config(self, name: str, version: str = "") -> dict[str, Any]:
        """How a model is served; raises ServingError where it is not."""
        return config_of(self.models.find(name, version))

    def model_statistics(self, name: str = "", version: str = "") -> dict[str, Any]:
        """Counts and times of a model, or of all; raises ServingError where it is not served."""
        if name and not self.models.has(name, version):
            raise invalid(f"requested model '{name[:200]}' is not available")
        return {
            "model_stats": [
                model.statistics.told(model.name, model.version, model.executions)
                for model in self.models
                if name in ("", model.name) and version in ("", model.version)
            ]
        }
