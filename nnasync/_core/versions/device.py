"""A device of HAL 1.0, 1.1 or 1.2 as a whole device of HAL 1.3."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from nnasync import hal
from nnasync._core.clock import Deadline
from nnasync._core.device_helpers import Answers, KnownDevice
from nnasync._core.validation import (
    older_model,
    validate_buffer_desc,
    validate_preference,
    validate_priority,
)
from nnasync._core.versions.errands import Errands
from nnasync._core.versions.interfaces import OlderDevice
from nnasync._core.versions.model_slices import View, view_of
from nnasync._core.versions.prepared import VersionedPreparedModel
from nnasync._core.versions.versioned_results import older_error
from nnasync._core.workers.anyio_threads import in_helper_thread
from nnasync.device import DEFAULT_PREPARE, Buffer, PreparedModel, PrepareModelConfig
from nnasync.errors import (
    DeviceUnavailable,
    GeneralFailure,
    InvalidArgument,
)
from nnasync.hal import (
    BufferDesc,
    BufferRole,
    DeviceStatus,
    HalVersion,
    Model,
    Priority,
)
from nnasync.scheduler import at_ns

logger = logging.getLogger(__name__)

T = TypeVar("T")

_CACHE = ("model_cache", "data_cache", "token")


class Versioned(KnownDevice):
    """An older device with what its version lacks made up for; `feature_level` stays its own."""

    def __init__(self, inner: OlderDevice, answers: Answers, errands: Errands) -> None:
        """`answers` are what it said of itself when it was found, and go on to be the answers."""
        super().__init__(answers)
        self._inner: Any = inner
        self.inner: object = inner
        """The device that was written for the older version."""
        self._level = answers.feature_level
        self._told: set[str] = set()
        self._closed = False
        self.errands = errands

    async def get_status(self) -> DeviceStatus:
        """Returns the device's status; OFFLINE once closed."""
        if self._closed:
            return DeviceStatus.OFFLINE
        return DeviceStatus(await self._ask(self._inner.get_status))

    async def get_supported_operations(self, model: Model) -> tuple[bool, ...]:
        """Returns the device's answers; False for what its version cannot express.

        Raises InvalidArgument if the model is not legal, GeneralFailure where the device fails.
        """
        view = await self._view(model)
        count = len(model.main.operations)
        if not view.fault:
            asked, numbers = older_model(self._level, model)[0], tuple(range(count))
        elif view.slice is not None:
            asked, numbers = view.slice.model, view.slice.operations
        else:
            return (False,) * count
        try:
            found = tuple(map(bool, await self._ask(self._inner.get_supported_operations, asked)))
        except InvalidArgument as error:
            raise GeneralFailure(f"{self.name} does not take a legal model: {error}") from error
        if len(found) != len(numbers):
            return (False,) * count
        supported = {number for number, is_so in zip(numbers, found, strict=True) if is_so}
        return tuple(number in supported for number in range(count))

    async def prepare_model(
        self, model: Model, config: PrepareModelConfig = DEFAULT_PREPARE
    ) -> PreparedModel:
        """Compile with what the version takes; answers at the deadline.

        Raises GeneralFailure for a model that the version cannot express.
        """
        validate_preference(config.preference)
        validate_priority(config.priority)
        view = await self._view(model)
        name = hal.version_name(self._level)
        if view.fault:
            raise GeneralFailure(f"{self.name} is of {name}, which cannot express: {view.fault}")
        for loss in view.lost:
            self._tell_once(f"{loss} of {model.name!r}" if model.name else loss)
        if config.priority != Priority.MEDIUM:
            self._tell_once("priorities")
        known: list[object] = [older_model(self._level, model)[0]]
        caches: dict[str, object] = {}
        if self._level >= HalVersion.V1_1:
            known.append(config.preference)
        if self._level >= HalVersion.V1_2:
            caches = {name: getattr(config, name) for name in _CACHE}
        prepare = self._inner.prepare_model
        found = await self._ask(prepare, *known, deadline=config.deadline, **caches)
        return self._adopted(found, model)

    async def prepare_model_from_cache(self, config: PrepareModelConfig) -> PreparedModel:
        """Load with the device; raises GeneralFailure before HAL 1.2."""
        if self._level < HalVersion.V1_2:
            name = hal.version_name(self._level)
            raise GeneralFailure(f"{self.name} is of {name}, which has no compilation cache")
        load, given = self._inner.prepare_model_from_cache, (getattr(config, n) for n in _CACHE)
        return self._adopted(await self._ask(load, *given, deadline=config.deadline), None)

    async def allocate(
        self,
        desc: BufferDesc,
        prepared_models: Sequence[PreparedModel],
        input_roles: Sequence[BufferRole],
        output_roles: Sequence[BufferRole],
    ) -> Buffer:
        """Raises InvalidArgument for roles that are not legal, else GeneralFailure."""
        models = [
            each.model if isinstance(each, VersionedPreparedModel) else None
            for each in prepared_models
        ]
        validate_buffer_desc(desc, models, input_roles, output_roles)
        name = hal.version_name(self._level)
        raise GeneralFailure(f"{self.name} is of {name}, which has no driver-managed buffers")

    async def close(self) -> None:
        """Close the device, if it can be closed."""
        self._closed = True
        close = getattr(self._inner, "close", None)
        if close is not None:
            await close()

    async def _view(self, model: Model) -> View:
        return await in_helper_thread(view_of, model, self._level)

    async def _ask(
        self,
        question: Callable[..., Awaitable[T]],
        *arguments: object,
        deadline: Deadline | None = None,
        **named: object,
    ) -> T:
        """Call the device; raises typed errors that its version has, MissedDeadline of our own."""
        if self._closed:
            raise DeviceUnavailable(f"{self.name} is closed")

        async def asked() -> T:
            try:
                return await question(*arguments, **named)
            except Exception as error:
                failure = older_error(error, self._level, None, self.name)
                raise failure from failure.__cause__

        return await self.errands.call(self.name, asked, at_ns(deadline))

    def _adopted(self, found: Any, model: Model | None) -> PreparedModel:
        if found is None:
            raise GeneralFailure(f"{self.name} says that it prepared a model, but gives none")
        title = model.name if model is not None else ""
        who = f"{title or 'model'} on {self.name}"
        return VersionedPreparedModel(found, model, self._level, who, self.errands)

    def _tell_once(self, lost: str) -> None:
        if lost not in self._told:
            self._told.add(lost)
            logger.warning("%s, of %s, loses %s", self.name, hal.version_name(self._level), lost)
