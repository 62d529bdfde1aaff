"""An engine as a whole Device of HAL 1.3."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from typing import TypeVar

import anyio
import anyio.to_thread

from nnasync.clock import Deadline, now_ns
from nnasync.device import Buffer, PreparedModel
from nnasync.engine.contract import Engine, Lowering, LoweringEngine, Plan
from nnasync.engine.prepared import EnginePreparedModel
from nnasync.errors import (
    DeviceUnavailable,
    GeneralFailure,
    MissedDeadlinePersistent,
    MissedDeadlineTransient,
)
from nnasync.hal import (
    BufferDesc,
    BufferRole,
    Capabilities,
    DeviceStatus,
    DeviceType,
    ExecutionPreference,
    Extension,
    HalVersion,
    Model,
    Priority,
)
from nnasync.scheduler import NEVER_NS
from nnasync.validation import (
    validate_buffer_desc,
    validate_model,
    validate_preference,
    validate_priority,
)
from nnasync.workers import Workers, contained

__all__ = ["EngineDevice"]

T = TypeVar("T")


class EngineDevice:
    """An engine as a Device of HAL 1.3, on the workers of a runtime."""

    def __init__(
        self, engine: Engine, workers: Workers, *, capabilities: Capabilities | None = None
    ) -> None:
        """`capabilities` are measured figures, reported in place of the engine's own."""
        self.engine = engine
        self.workers = workers
        self.closed = False
        self._capabilities = capabilities
        if isinstance(engine, LoweringEngine):
            engine.cores = workers.cores
        self._prepared: weakref.WeakSet[EnginePreparedModel] = weakref.WeakSet()
        self._lock = threading.Lock()

    @property
    def name(self) -> str:
        """Name of the engine."""
        return self.engine.name

    @property
    def version(self) -> str:
        """Version of the engine."""
        return self.engine.version

    @property
    def type(self) -> DeviceType:
        """Kind of hardware."""
        return self.engine.type

    @property
    def feature_level(self) -> HalVersion:
        """HAL 1.3."""
        return HalVersion.V1_3

    async def get_status(self) -> DeviceStatus:
        """AVAILABLE until closed, then OFFLINE."""
        return DeviceStatus.OFFLINE if self.closed else DeviceStatus.AVAILABLE

    async def get_capabilities(self) -> Capabilities:
        """Performance figures, as measured where they were."""
        return self._capabilities or self.engine.capabilities

    @property
    def is_calibrated(self) -> bool:
        """Whether its figures were measured on this machine."""
        return self._capabilities is not None

    async def get_supported_extensions(self) -> tuple[Extension, ...]:
        """Extensions of the engine."""
        return self.engine.extensions

    async def get_number_of_cache_files_needed(self) -> tuple[int, int]:
        """(0, 0): engines have no compilation cache yet."""
        return (0, 0)

    async def get_supported_operations(self, model: Model) -> tuple[bool, ...]:
        """What the engine says; a wrong number of answers counts as nothing supported."""
        return await self._in_thread(lambda: self._supported(model), None)

    async def prepare_model(
        self,
        model: Model,
        preference: ExecutionPreference = ExecutionPreference.FAST_SINGLE_ANSWER,
        priority: Priority = Priority.MEDIUM,
        deadline: Deadline | None = None,
        *,
        model_cache: Sequence[int] = (),
        data_cache: Sequence[int] = (),
        token: bytes = b"",
    ) -> PreparedModel:
        """Compile on a thread; answers at the deadline even if the engine does not.

        Cache files are left alone: `get_number_of_cache_files_needed` asks for none.
        """
        validate_preference(preference)
        validate_priority(priority)

        def compiled() -> Plan:
            validate_model(model)
            return self.engine.compile(model, preference)

        return self.adopt(model, await self._in_thread(compiled, deadline), priority)

    async def lowerings(
        self, model: Model, preference: ExecutionPreference
    ) -> tuple[Lowering, ...]:
        """The ways of the engine to run a supported model; none if it knows one way only."""
        engine = self.engine
        if not isinstance(engine, LoweringEngine):
            return ()
        return await self._in_thread(lambda: tuple(engine.lowerings(model, preference)), None)

    async def compile_plan(
        self,
        model: Model,
        preference: ExecutionPreference,
        deadline: Deadline | None = None,
        lowering: Lowering | None = None,
    ) -> Plan:
        """Compile a legal model in one of its lowerings, on a thread, for `adopt`."""
        engine = self.engine

        def compiled() -> Plan:
            if lowering is not None and isinstance(engine, LoweringEngine):
                return engine.compile(model, preference, lowering)
            return engine.compile(model, preference)

        return await self._in_thread(compiled, deadline)

    def adopt(
        self,
        model: Model,
        plan: Plan,
        priority: Priority,
        *,
        name: str | None = None,
        concurrency: int | None = None,
    ) -> EnginePreparedModel:
        """A plan of this device's engine as a prepared model of this device.

        `name` and `concurrency` are those of the plan where other engines have a part in it.
        """
        self._check_open()
        prepared = EnginePreparedModel(
            model,
            plan,
            self.workers,
            priority=priority,
            concurrency=self.engine.concurrency if concurrency is None else concurrency,
            name=f"{model.name or 'model'} on {name or self.name}",
        )
        with self._lock:
            self._prepared.add(prepared)
        return prepared

    async def prepare_model_from_cache(
        self,
        deadline: Deadline | None,
        model_cache: Sequence[int],
        data_cache: Sequence[int],
        token: bytes,
    ) -> PreparedModel:
        """Raises GeneralFailure: engines have no compilation cache yet."""
        raise GeneralFailure(f"{self.name} has no compilation cache; compile with prepare_model")

    async def allocate(
        self,
        desc: BufferDesc,
        prepared_models: Sequence[PreparedModel],
        input_roles: Sequence[BufferRole],
        output_roles: Sequence[BufferRole],
    ) -> Buffer:
        """Raises InvalidArgument for roles that are not legal, else GeneralFailure.

        Engines have no driver-managed buffers.
        """
        mine = self._all_prepared()
        models = [
            each.model if isinstance(each, EnginePreparedModel) and each in mine else None
            for each in prepared_models
        ]
        validate_buffer_desc(desc, models, input_roles, output_roles)
        raise GeneralFailure(f"{self.name} has no driver-managed buffers; use shared memory")

    async def close(self) -> None:
        """Close the device and its prepared models."""
        self.closed = True
        for prepared in self._all_prepared():
            await prepared.close()

    def trim(self) -> None:
        """Have every prepared model give back scratch that it has not used since the last call."""
        for prepared in self._all_prepared():
            prepared.trim()

    def _all_prepared(self) -> list[EnginePreparedModel]:
        # The watchdog's thread trims while the loop prepares.
        with self._lock:
            return list(self._prepared)

    def _supported(self, model: Model) -> tuple[bool, ...]:
        validate_model(model)
        answers = tuple(map(bool, self.engine.supported_operations(model)))
        if len(answers) != len(model.main.operations):
            return (False,) * len(model.main.operations)
        return answers

    async def _in_thread(self, work: Callable[[], T], deadline: Deadline | None) -> T:
        self._check_open()
        remaining_ns = NEVER_NS if deadline is None else deadline.remaining_ns(now_ns())
        if remaining_ns <= 0:
            raise MissedDeadlinePersistent(f"the deadline of {self.name} had passed at the start")

        def guarded() -> T:
            # On the thread, where neither a TimeoutError nor a SystemExit means anything yet.
            try:
                return work()
            except BaseException as error:
                failure = contained(error, self.name)
                raise failure from failure.__cause__

        try:
            with anyio.fail_after(None if deadline is None else remaining_ns / 1e9):
                return await anyio.to_thread.run_sync(guarded, abandon_on_cancel=True)
        except TimeoutError as error:
            text = f"{self.name} was not ready by the deadline"
            raise MissedDeadlineTransient(text) from error

    def _check_open(self) -> None:
        if self.closed:
            raise DeviceUnavailable(f"{self.name} is closed")
