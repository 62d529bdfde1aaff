"""A server of models without any network of its own: what HTTP and gRPC put requests to.

What becomes of a request for an inference is in `inference`; here is the rest: how the server
begins and ends, what it serves, and what it says of that.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any, Self

import anyio

from nnasync._core.clock import Deadline
from nnasync._core.execution import Net
from nnasync._core.packages import VERSION
from nnasync._core.runtime import Runtime
from nnasync.serving.accounts import ClientAccounts
from nnasync.serving.inference import ABOUT_TO_END, Inferences
from nnasync.serving.messages import (
    NO_PARAMETERS,
    InferAnswer,
    InferRequest,
    ModelIndexEntry,
    ModelMetadata,
)
from nnasync.serving.model_config import config_of, metadata_of
from nnasync.serving.model_settings import ModelSettings
from nnasync.serving.models import Models
from nnasync.serving.problems import ServingError, invalid
from nnasync.serving.repository import READY, Repository
from nnasync.serving.serve_options import ServeOptions
from nnasync.serving.settings import LogSettings, TraceSettings
from nnasync.serving.shared_memory import ClientsMemory

NAME = "nnasync"
_CODING_THREADS = 2
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
        self.accounts = ClientAccounts(self.limits.clients)
        self.shared_memory = ClientsMemory(
            self.limits.regions, is_allowed=self.options.shared_memory
        )
        self._inferences = Inferences(
            self.models, self.accounts, self.shared_memory, self.options, runtime.options.cores
        )
        self.start = self._inferences.start
        """See `Inferences.start`; `infer` is the same for who awaits the answer anyway."""
        self.again = self._inferences.again
        """See `Inferences.again`."""
        self.memory_of = self._inferences.memory_of
        """The regions of shared memory of a client, by its name."""
        self.sequences = self._inferences.sequences
        self.trace = TraceSettings()
        self.log = LogSettings(may_change=self.options.allow_settings)
        self.coding_threads = anyio.CapacityLimiter(_CODING_THREADS)
        """Bodies that are unpacked at the same time: a small one may become as large as allowed."""
        self.repository = Repository(
            runtime,
            self.models,
            folder=None if folder is None else Path(folder),
            files=[Path(file) for file in files],
            cache_dir=self.options.cache_dir,
        )
        self._tasks = contextlib.AsyncExitStack()

    @property
    def is_ready(self) -> bool:
        """Returns whether loading of all models was tried, and the server is not about to end."""
        return self._inferences.is_open

    @is_ready.setter
    def is_ready(self, is_ready: bool) -> None:
        self._inferences.is_open = is_ready

    @property
    def is_idle(self) -> bool:
        """Returns whether no request is in flight."""
        return self._inferences.is_idle

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
        return await self._inferences.drain(self.options.drain_s)

    async def add(self, net: Net[Any], settings: ModelSettings) -> None:
        """Serve a network under the name of the settings; it is closed with this server.

        Raises InvalidArgument where the settings do not fit it.
        """
        await self.repository.put(net, settings)

    # -- inference

    async def infer(
        self, request: InferRequest, *, client: str = "", deadline: Deadline | None = None
    ) -> InferAnswer:
        """Answer a request by the earlier of `deadline` and its own timeout.

        Raises ServingError and nothing else; to be cancelled where the client hangs up.
        """
        found = self.start(request, client=client, deadline=deadline)
        answer: InferAnswer = found if isinstance(found, InferAnswer) else await found
        return answer

    # -- what there is

    def metadata(self) -> dict[str, Any]:
        """Returns the name, the version and the extensions of the server."""
        extensions = list(EXTENSIONS)
        if not self.options.shared_memory:
            extensions.remove("system_shared_memory")
        return {"name": NAME, "version": VERSION, "extensions": extensions}

    def model_ready(self, name: str, version: str = "") -> bool:
        """Returns whether a version of a model is served."""
        return self.models.has(name, version)

    def model_metadata(self, name: str, version: str = "") -> ModelMetadata:
        """Returns the inputs and outputs of a model; raises ServingError where it is not served."""
        return metadata_of(self.models.find(name, version), self.models.versions(name))

    def index(self, *, ready: bool = False) -> list[ModelIndexEntry]:
        """Returns an entry for each model, with the reason where it is not ready.

        With `ready` only those that are ready are listed.
        """
        return [entry for entry in self.repository.index() if not ready or entry.state == READY]

    async def load(self, name: str, parameters: Mapping[str, Any] = NO_PARAMETERS) -> None:
        """Loads a model of the folder again.

        Raises ServingError where that is not allowed or fails.
        """
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
        """Stops serving a model; raises ServingError where requests may not ask for that."""
        self._check_may_load()
        await self.repository.unload(name)
        self.sequences.close_model(name)

    def _check_may_load(self) -> None:
        if not self.is_ready:
            raise ServingError(HTTPStatus.SERVICE_UNAVAILABLE, ABOUT_TO_END)
        if not self.options.allow_load:
            raise ServingError(
                HTTPStatus.FORBIDDEN,
                "explicit model load / unload is not allowed: this server was started without "
                "--allow-load",
            )

    def model_config(self, name: str, version: str = "") -> dict[str, Any]:
        """Returns the configuration of a served model.

        Raises ServingError where it is not served.
        """
        return config_of(self.models.find(name, version))

    def model_statistics(self, name: str = "", version: str = "") -> dict[str, Any]:
        """Returns counts and times of a model, or of all.

        Raises ServingError where it is not served.
        """
        if name and not self.models.has(name, version):
            raise invalid(f"requested model '{name[:200]}' is not available")
        return {
            "model_stats": [
                model.statistics.told(model.name, model.version, model.executions)
                for model in self.models
                if name in ("", model.name) and version in ("", model.version)
            ]
        }
