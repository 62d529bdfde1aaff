"""A device in another process, as an ordinary Device."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, Self, TypeVar

import anyio
import msgspec

from nnasync._core.device_helpers import Answers, KnownDevice
from nnasync._core.drivers.service.heartbeat import HANG_AFTER_S
from nnasync._core.drivers.service.link import Link, Source
from nnasync._core.drivers.service.prepared import ServicePreparedModel
from nnasync._core.drivers.service.remote_buffers import RemoteBuffer
from nnasync._core.drivers.service.supervisor import ConnectedSession, Supervisor
from nnasync._core.wire.messages import (
    Allocate,
    CloseBuffer,
    ClosePrepared,
    GetLowerings,
    GetReasons,
    GetStatus,
    Message,
    Prepare,
    PrepareFromCache,
    Share,
    Supports,
    Welcome,
)
from nnasync.device import DEFAULT_PREPARE, Buffer, Lowering, PreparedModel, PrepareModelConfig
from nnasync.errors import (
    DeviceDied,
    DeviceUnavailable,
    GeneralFailure,
    InvalidArgument,
)
from nnasync.fences import Fence
from nnasync.hal import (
    BufferDesc,
    BufferRole,
    DeviceStatus,
    ExecutionPreference,
    HalVersion,
    Model,
    Priority,
)
from nnasync.scheduler import at_ns
from nnasync.tracing import Tracer, vlog

T = TypeVar("T")


class ServiceDevice(KnownDevice):
    """A device of HAL 1.3 behind a socket; it is connected again after its service died.

    Prepared models belong to one connection and die with it.
    """

    may_stay_away = False
    """Whether it is on another machine, which may be gone for longer than a process is."""

    def __init__(
        self, source: Source, supervisor: Supervisor, session: ConnectedSession, called: str = ""
    ) -> None:
        """`called` is its name in this process, if that is not its own."""
        welcome = session.welcome
        super().__init__(_answers(msgspec.structs.replace(welcome, name=called or welcome.name)))
        self.source = source
        self._supervisor = supervisor
        self._closed = False

    @classmethod
    async def open(
        cls,
        source: Source,
        name: str = "",
        *,
        called: str = "",
        hang_after_s: float = HANG_AFTER_S,
    ) -> Self:
        """Connect to a service, which is started where it has to be; `name` is for errors so far.

        Raises DeviceUnavailable where there is none, or one of another version of nnasync.
        """
        who = name or str(source)
        supervisor = Supervisor(source, who, hang_after_s=hang_after_s, called=called)
        try:
            session = await supervisor.connected()
        except BaseException:
            supervisor.close()
            with anyio.CancelScope(shield=True):
                await supervisor.ended()
            raise
        supervisor.name = called or session.welcome.name
        return cls(source, supervisor, session, called)

    @property
    def link(self) -> Link:
        """The current connection, which may be over."""
        return self._last.link

    @property
    def pid(self) -> int:
        """The process of the service, or the one that is about to serve; 0 while there is none."""
        return self._supervisor.pid

    @property
    def lost(self) -> Fence:
        """Signaled when the connection that there is now is over."""
        return self.link.over

    async def connected(self) -> None:
        """Wait for a connection; raises DeviceUnavailable where none can be had."""
        await self._supervisor.connected()

    async def get_status(self) -> DeviceStatus:
        """Returns what the service says; OFFLINE once closed, or while the service is dead."""
        link = self.link
        if self._closed or link.error is not None:
            return DeviceStatus.OFFLINE
        try:
            status: DeviceStatus = await link.call(GetStatus, answer=DeviceStatus)
        except DeviceDied:
            return DeviceStatus.OFFLINE
        return status

    async def get_supported_operations(self, model: Model) -> tuple[bool, ...]:
        """Returns the device's answers."""
        return await self._asked(model, Supports, answer=tuple[bool, ...])

    async def why_not(self, model: Model) -> tuple[str | None, ...]:
        """Returns for each operation why the device does not take it, if the service tells."""
        reasons = await self._asked(model, GetReasons, answer=tuple[str, ...])
        return tuple(reason or None for reason in reasons)

    async def lowerings(
        self, model: Model, preference: ExecutionPreference
    ) -> tuple[Lowering, ...]:
        """The ways in which the device behind the service runs a model."""
        return await self._asked(model, GetLowerings, preference, answer=tuple[Lowering, ...])

    async def prepare_model(
        self, model: Model, config: PrepareModelConfig = DEFAULT_PREPARE
    ) -> PreparedModel:
        """Compile in the service; the cache files travel as descriptors."""
        session = await self._supervisor.connected()
        if not _are_open([*config.model_cache, *config.data_cache]):
            vlog.driver("%s: a cache file is not open: nothing is cached", self.name)
            config = msgspec.structs.replace(config, model_cache=(), data_cache=())
        deadline_ns, counts = at_ns(config.deadline), _counts(config)
        async with session.models.named(model) as number:
            return await self._prepared(
                session,
                lambda n, prepared: Prepare(
                    n,
                    number,
                    prepared,
                    config.preference,
                    config.priority,
                    deadline_ns,
                    *counts,
                    config.token,
                    config.lowering,
                ),
                [*config.model_cache, *config.data_cache],
                deadline_ns,
                polls=config.preference != ExecutionPreference.LOW_POWER,
            )

    async def prepare_model_from_cache(self, config: PrepareModelConfig) -> PreparedModel:
        """Load in the service what `prepare_model` wrote."""
        fds, deadline_ns = [*config.model_cache, *config.data_cache], at_ns(config.deadline)
        if not _are_open(fds):
            raise GeneralFailure(f"{self.name}: a cache file cannot be used: it is not open")
        session = await self._supervisor.connected()
        return await self._prepared(
            session,
            lambda n, prepared: PrepareFromCache(
                n, prepared, deadline_ns, *_counts(config), config.token
            ),
            fds,
            deadline_ns,
        )

    async def share(self, prepared: PreparedModel, priority: Priority) -> PreparedModel:
        """Another prepared model of a plan in the service, of another priority."""
        link = self.link
        if not isinstance(prepared, ServicePreparedModel) or prepared.link is not link:
            raise InvalidArgument(f"the prepared model to share is not of this {self.name}")
        prepared.check_open()
        return await self._prepared(
            self._last,
            lambda n, number: Share(n, number, prepared.number, priority),
            (),
            at_ns(None),
            polls=prepared.polls,
        )

    async def allocate(
        self,
        desc: BufferDesc,
        prepared_models: Sequence[PreparedModel],
        input_roles: Sequence[BufferRole],
        output_roles: Sequence[BufferRole],
    ) -> Buffer:
        """Allocate in the service; raises what its device does."""
        session = await self._supervisor.connected()
        link, numbers = session.link, []
        for prepared in prepared_models:
            if isinstance(prepared, ServicePreparedModel):
                prepared.check_alive()
            if not isinstance(prepared, ServicePreparedModel) or prepared.link is not link:
                raise InvalidArgument(f"a prepared model is not of this {self.name}")
            numbers.append(prepared.number)
        buffer = link.number()
        try:
            token = await link.call(
                lambda n: Allocate(
                    n, buffer, desc, tuple(numbers), tuple(input_roles), tuple(output_roles)
                ),
                answer=int,
            )
        except BaseException:
            # It may have been allocated all the same.
            link.notify_soon(CloseBuffer(0, buffer))
            raise
        return self._buffer(session, buffer, token)

    def _buffer(self, session: ConnectedSession, number: int, token: int) -> Buffer:
        """A buffer that was allocated under a number."""
        return RemoteBuffer(session.link, session.memories, number, token)

    def observe(self, tracer: Tracer) -> None:
        """Have the service tell what it does, while instruments want to know."""
        self._supervisor.traces.observe(tracer)

    async def close(self) -> None:
        """End the connection; a service that was started for it ends too."""
        self._closed = True
        try:
            await self._supervisor.traces.finish()
        finally:
            self._supervisor.close()
        await self._supervisor.ended()

    async def _asked(
        self, model: Model, message: Callable[..., Message], *arguments: object, answer: type[T]
    ) -> T:
        """Asks the service about a model; connects again if the service died."""
        session = await self._supervisor.connected()
        async with session.models.named(model) as number:
            found: T = await session.link.call(
                lambda n: message(n, number, *arguments), answer=answer
            )
        return found

    async def _prepared(
        self,
        session: ConnectedSession,
        make: Callable[[int, int], Any],
        fds: Sequence[int],
        deadline_ns: int,
        *,
        polls: bool = True,
    ) -> PreparedModel:
        prepared = await self._number_of_prepared(session.link, make, fds, deadline_ns)
        memories = session.memories
        return ServicePreparedModel(session.link, memories, prepared, self.name, polls=polls)

    async def _number_of_prepared(
        self,
        link: Link,
        make: Callable[[int, int], Any],
        fds: Sequence[int],
        deadline_ns: int,
    ) -> int:
        """Have a model prepared; `make` says how, of the numbers of the call and of the model."""
        link.check_time(deadline_ns)
        prepared = link.number()
        try:
            await link.call(lambda n: make(n, prepared), fds, deadline_ns=deadline_ns)
        except BaseException:
            link.notify(ClosePrepared(0, prepared))
            raise
        return prepared

    @property
    def _last(self) -> ConnectedSession:
        session = self._supervisor.session
        if session is None:
            raise DeviceUnavailable(f"{self.name} was never connected")
        return session


def _answers(welcome: Welcome) -> Answers:
    """Returns what a service says of its device, with defaults for an older one."""
    return Answers(
        welcome.name,
        welcome.device_version,
        welcome.type,
        HalVersion.V1_3,
        welcome.capabilities,
        welcome.extensions,
        welcome.cache_files,
        welcome.caches_late,
    )


def _counts(config: PrepareModelConfig) -> tuple[int, int]:
    return len(config.model_cache), len(config.data_cache)


def _are_open(fds: Sequence[int]) -> bool:
    try:
        for fd in fds:
            os.fstat(fd)
    except (OSError, OverflowError):
        return False
    return True
