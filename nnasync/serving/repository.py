"""The models of a server: loaded from files, exchanged when these change, and closed.

A version is compiled while the one before it goes on answering, takes its place in one step, and
the old one is closed when its last request and sequence are done. A file that is broken leaves
what is served as it is; the index says why.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import anyio.to_thread
import msgspec

from nnasync._core.execution import Net
from nnasync._core.runtime import CompileOptions, Runtime
from nnasync.errors import BadState, NNError
from nnasync.serving.messages import ModelIndexEntry
from nnasync.serving.model_files import ModelFile, Stamp, found_in, oddities_of
from nnasync.serving.model_settings import ModelSettings, check_name
from nnasync.serving.models import Models
from nnasync.serving.served_model import ServedModel

logger = logging.getLogger(__name__)

READY = "READY"
LOADING = "LOADING"
UNLOADING = "UNLOADING"
UNAVAILABLE = "UNAVAILABLE"

_Key = tuple[str, str]


class Repository:
    """Models of a folder and of files that were named; to be used with `async with`."""

    def __init__(
        self,
        runtime: Runtime,
        models: Models,
        *,
        folder: Path | None,
        files: Sequence[Path],
        cache_dir: Path | None,
    ) -> None:
        self._runtime = runtime
        self._models = models
        self._folder = folder
        self._files = tuple(files)
        self._cache_dir = cache_dir
        self._stamps: dict[_Key, Stamp] = {}
        self._seen: dict[Path, Stamp] = {}
        self._entries: dict[_Key, ModelIndexEntry] = {}
        self._known: set[_Key] = set()
        self._loaded: dict[Path, _Key] = {}
        """What the files were served under when they were loaded last."""
        self._unloaded: set[str] = set()
        self._retiring: set[ServedModel] = set()
        self._noticed: set[str] = set()
        self._turn = anyio.Lock()
        self._tasks: anyio.abc.TaskGroup | None = None

    async def open(self, tasks: anyio.abc.TaskGroup) -> None:
        """Load what is there; raises OSError where the folder cannot be looked at."""
        self._tasks = tasks
        for file in self._files:  # At the start who named it is told; later it may come back.
            await anyio.Path(file).stat()
        await self.look(at_once=True)

    async def watch(self, period_s: float) -> None:
        """Looks at the files every `period_s` seconds, until cancelled."""
        while True:
            await anyio.sleep(period_s)
            try:
                await self.look(at_once=False)
            except (NNError, OSError) as error:
                self._tell_once([f"the models cannot be looked at: {error}"])
            except Exception:
                # Whatever lies in a folder, what is served goes on.
                logger.exception("the models cannot be looked at")

    async def look(self, *, at_once: bool, only: str = "") -> bool:
        """Load what is new or was changed, and serve no more what is gone.

        Unless it is to be `at_once`, a file is loaded when it was the same at two looks: it may be
        written at this moment. `only` limits it to one model. Returns whether there was any.
        """
        async with self._turn:
            found, odd = await anyio.to_thread.run_sync(_looked_at, self._folder, self._files)
            self._tell_once(odd)
            wanted = [file for file in found if only in ("", file.name)]
            for file in wanted:
                if file.name not in self._unloaded and self._is_due(file, at_once=at_once):
                    await self._load(file)
            if not only:
                self._drop_all_but({self._key_of(file) for file in found})
            return bool(wanted)

    def _tell_once(self, texts: Iterable[str]) -> None:
        """Logs what is odd now, but not again what was so at the last look."""
        before, self._noticed = self._noticed, set(texts)
        for text in sorted(self._noticed - before):
            logger.warning("%s", text)

    def _key_of(self, file: ModelFile) -> _Key:
        """Returns the key for a file's state.

        The one it is served under, if the file is broken now. It is not the key of another file,
        whose name it would take.
        """
        if not file.problem:
            return file.key
        loaded = self._loaded.get(file.path)
        if loaded is not None:
            return loaded
        return file.path.name if file.key in self._loaded.values() else file.name, file.version

    def _is_due(self, file: ModelFile, *, at_once: bool) -> bool:
        is_settled = self._seen.get(file.path) == file.stamp
        self._seen[file.path] = file.stamp
        if file.problem:
            key = self._key_of(file)
            is_served = self._loaded.get(file.path) == key and self._models.has(*key)
            entry = self._entries.get(key)
            if entry is None or entry.reason != file.problem:
                logger.warning("model %s, version %s: %s", *key, file.problem)
            self._note(key, READY if is_served else UNAVAILABLE, file.problem)
            return False
        is_new = self._stamps.get(file.key) != file.stamp
        return is_new and (at_once or is_settled)

    async def _load(self, file: ModelFile) -> None:
        """Serves the model in a file, or notes why it cannot be served."""
        key = file.key
        self._stamps[key] = file.stamp
        if not self._models.has(*key):
            self._note(key, LOADING)
        settings = file.settings
        try:
            net = await self._runtime.compile(
                file.path,
                devices=settings.devices or None,
                priority=settings.level,
                precision=settings.precision,
                io=settings.io,
                name=file.name,
                cache_dir=self._cache_dir,
                options=CompileOptions(value_limit_bytes=settings.value_limit_bytes),
            )
            await self.put(net, msgspec.structs.replace(settings, name=file.name))
            self._loaded[file.path] = key
        except (NNError, OSError) as error:
            self._failed(key, str(error))
        except Exception as error:
            logger.exception("model %s cannot be loaded", file.path)
            self._failed(key, f"{type(error).__name__}: {error}")

    def _failed(self, key: _Key, reason: str) -> None:
        logger.warning("model %s, version %s: %s", *key, reason)
        state = READY if self._models.has(*key) else UNAVAILABLE
        self._note(key, state, reason)

    async def put(self, net: Net[Any], settings: ModelSettings) -> None:
        """Serve a network from now on, in place of the same version of before.

        Raises InvalidArgument where the settings do not fit it; it is closed then.
        """
        tasks = self._tasks
        if tasks is None:
            raise BadState("the server is not open: use it inside `async with`")
        try:
            model = ServedModel(check_name(settings.name), net, settings)
            if settings.batching is not None:
                await tasks.start(model.join_requests)
        except BaseException:
            net.close()
            raise
        replaced = self._models.put(model)
        self._note((model.name, model.version), READY)
        if replaced is not None:
            self._begin(replaced)

    def _drop_all_but(self, keys: set[_Key]) -> None:
        """Serve no more what was loaded from files that are gone."""
        self._known = keys
        self._loaded = {path: key for path, key in self._loaded.items() if key in keys}
        for key in [key for key in self._stamps if key not in keys]:
            del self._stamps[key]
            self._take(key)
        for key in [key for key in self._entries if key not in keys]:
            if not self._models.has(*key) and self._entries[key].state == UNAVAILABLE:
                del self._entries[key]

    def _take(self, key: _Key) -> None:
        model = self._models.take(*key)
        if model is None:
            self._note(key, UNAVAILABLE, "unloaded")
        else:
            self._note(key, UNLOADING)
            self._begin(model)

    def _begin(self, model: ServedModel) -> None:
        if self._tasks is None:
            raise BadState("the repository is not open")
        self._retiring.add(model)
        self._tasks.start_soon(self._retire, model)

    async def _retire(self, model: ServedModel) -> None:
        await model.retire()
        self._retiring.discard(model)
        key = (model.name, model.version)
        entry = self._entries.get(key)
        if entry is None or entry.state != UNLOADING:
            return
        if key in self._known:
            self._note(key, UNAVAILABLE, "unloaded")
        else:
            del self._entries[key]

    async def load(self, name: str) -> bool:
        """Loads a model of the folder again.

        Returns False where the folder has none of that name.
        """
        self._unloaded.discard(name)
        for key in [key for key in self._stamps if key[0] == name and not self._models.has(*key)]:
            del self._stamps[key]
        return await self.look(at_once=True, only=name)

    async def unload(self, name: str) -> None:
        """Serve a model no more, until it is loaded again."""
        async with self._turn:
            if name in {known for known, _ in self._known}:
                self._unloaded.add(name)
            for version in self._models.versions(name):
                self._stamps.pop((name, version), None)
                self._take((name, version))

    def index(self) -> list[ModelIndexEntry]:
        """Returns an entry for each version: whether it is served, or why it is not."""
        return [self._told(key) for key in sorted(self._entries)]

    def _told(self, key: _Key) -> ModelIndexEntry:
        """Returns the entry for a version, with the remark of the model that is served."""
        entry = self._entries[key]
        if entry.state != READY or entry.reason or not self._models.has(*key):
            return entry
        return ModelIndexEntry(*key, READY, self._models.find(*key).remark)

    def problems_of(self, name: str) -> str:
        """Returns why files of a model could not be loaded; empty where all were."""
        reasons = [self._entries[key].reason for key in sorted(self._entries) if key[0] == name]
        return "; ".join(reason for reason in reasons if reason)

    def close(self) -> None:
        """Close all networks at once; their calls end with errors."""
        for model in list(self._models):
            self._models.take(model.name, model.version)
            self._retiring.add(model)
        while self._retiring:
            self._retiring.pop().net.close()

    def _note(self, key: _Key, state: str, reason: str = "") -> None:
        self._entries[key] = ModelIndexEntry(*key, state, reason)


def _looked_at(folder: Path | None, files: Sequence[Path]) -> tuple[list[ModelFile], Iterable[str]]:
    """Returns the models of a server, and what is odd about its folder; blocks."""
    return found_in(folder, files), () if folder is None else oddities_of(folder)
