"""A device in another process, as an ordinary Device."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import anyio
import anyio.to_thread

from nnasync.clock import Deadline
from nnasync.device import Buffer, PreparedModel
from nnasync.drivers.service.buffers import RemoteBuffer
from nnasync.drivers.service.link import Link, Source
from nnasync.drivers.service.memories import Memories
from nnasync.drivers.service.messages import (
    MAGIC,
    PROTOCOL,
    Allocate,
    Allocated,
    ClosePrepared,
    ForgetModel,
    GetStatus,
    Hello,
    Prepare,
    PrepareFromCache,
    Status,
    Supported,
    Supports,
    Welcome,
)
from nnasync.drivers.service.models import Offer
from nnasync.drivers.service.prepared import ServicePreparedModel
from nnasync.engine.caching import library_version
from nnasync.errors import (
    DeviceDied,
    DeviceUnavailable,
    GeneralFailure,
    InvalidArgument,
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
from nnasync.tracing import vlog

__all__ = ["ServiceDevice"]

PATIENCE_S = 60.0
"""How long a service may take until it serves: it may have to load an engine."""


class _Session:
    """One connection, and what the service knows through it."""

    def __init__(self, link: Link, welcome: Welcome) -> None:
        self.link = link
        self.welcome = welcome
        self.memories = Memories(link)
        self._models: dict[int, tuple[weakref.ref[Model], int]] = {}

    async def number_of(self, model: Model) -> int:
        """The number of a model, which is sent if it is new to the service."""
        known = self._models.get(id(model))
        if known is not None:
            return known[1]
        offer = await anyio.to_thread.run_sync(Offer, model)
        link, models, key = self.link, self._models, id(model)
        number = link.number()
        await link.call(lambda n: offer.message(n, number), offer.fds)

        def forget(_: object) -> None:
            models.pop(key, None)
            link.tell_soon(ForgetModel(number))

        models[key] = (weakref.ref(model, forget), number)
        return number


class ServiceDevice:
    """A device behind a socket; it is connected again after its service died.

    Prepared models belong to one connection and die with it.
    """

    def __init__(self, source: Source, session: _Session) -> None:
        self.source = source
        self._session = session
        self._facts = session.welcome
        self._connecting = anyio.Lock()
        self._closed = False

    @classmethod
    async def open(cls, source: Source, name: str = "") -> ServiceDevice:
        """Connect to a service, which is started where it has to be.

        Raises DeviceUnavailable where there is none, or one of another version of nnasync.
        """
        return cls(source, await _connect(source, name or str(source)))

    @property
    def name(self) -> str:
        """Name of the device that is served."""
        return self._facts.name

    @property
    def version(self) -> str:
        """Its version."""
        return self._facts.device_version

    @property
    def type(self) -> DeviceType:
        """Kind of hardware."""
        return self._facts.type

    @property
    def feature_level(self) -> HalVersion:
        """HAL 1.3: the service makes up for what an older device lacks."""
        return HalVersion.V1_3

    @property
    def link(self) -> Link:
        """The current connection, which may be over."""
        return self._session.link

    async def get_status(self) -> DeviceStatus:
        """What the service says; OFFLINE once closed, or while the service is dead."""
        link = self._session.link
        if self._closed or link.error is not None:
            return DeviceStatus.OFFLINE
        try:
            answer: Status = await link.call(GetStatus, answer=Status)
        except DeviceDied:
            return DeviceStatus.OFFLINE
        return answer.status

    async def get_capabilities(self) -> Capabilities:
        """Performance figures, those that the service said when it was found."""
        return self._facts.capabilities

    async def get_supported_extensions(self) -> tuple[Extension, ...]:
        """Extensions of the device."""
        return self._facts.extensions

    async def get_number_of_cache_files_needed(self) -> tuple[int, int]:
        """Numbers of cache files."""
        return self._facts.cache_files

    async def get_supported_operations(self, model: Model) -> tuple[bool, ...]:
        """What the device says; connects again if the service died."""
        session = await self._connected()
        number = await session.number_of(model)
        answer: Supported = await session.link.call(lambda n: Supports(n, number), answer=Supported)
        return answer.operations

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
        """Compile in the service; the cache files travel as descriptors."""
        session = await self._connected()
        if not _are_open([*model_cache, *data_cache]):
            vlog.driver("%s: a cache file is not open: nothing is cached", self.name)
            model_cache = data_cache = ()
        number = await session.number_of(model)
        return await self._prepared(
            session,
            lambda n, prepared: Prepare(
                n,
                number,
                prepared,
                preference,
                priority,
                _at_ns(deadline),
                len(model_cache),
                len(data_cache),
                token,
            ),
            [*model_cache, *data_cache],
            _at_ns(deadline),
        )

    async def prepare_model_from_cache(
        self,
        deadline: Deadline | None,
        model_cache: Sequence[int],
        data_cache: Sequence[int],
        token: bytes,
    ) -> PreparedModel:
        """Load in the service what `prepare_model` wrote."""
        if not _are_open([*model_cache, *data_cache]):
            raise GeneralFailure(f"{self.name}: a cache file cannot be used: it is not open")
        session = await self._connected()
        return await self._prepared(
            session,
            lambda n, prepared: PrepareFromCache(
                n, prepared, _at_ns(deadline), len(model_cache), len(data_cache), token
            ),
            [*model_cache, *data_cache],
            _at_ns(deadline),
        )

    async def allocate(
        self,
        desc: BufferDesc,
        prepared_models: Sequence[PreparedModel],
        input_roles: Sequence[BufferRole],
        output_roles: Sequence[BufferRole],
    ) -> Buffer:
        """Allocate in the service; raises what its device does."""
        session = await self._connected()
        link, numbers = session.link, []
        for prepared in prepared_models:
            if not isinstance(prepared, ServicePreparedModel) or prepared.link is not link:
                raise InvalidArgument(f"a prepared model is not of this {self.name}, or is dead")
            numbers.append(prepared.number)
        buffer = link.number()
        answer: Allocated = await link.call(
            lambda n: Allocate(
                n, buffer, desc, tuple(numbers), tuple(input_roles), tuple(output_roles)
            ),
            answer=Allocated,
        )
        return RemoteBuffer(link, session.memories, buffer, answer.token)

    async def close(self) -> None:
        """End the connection; a service that was started for it ends too."""
        self._closed = True
        link = self._session.link
        link.close()
        await link.ended

    async def _prepared(
        self,
        session: _Session,
        make: Callable[[int, int], Any],
        fds: Sequence[int],
        deadline_ns: int,
    ) -> PreparedModel:
        link = session.link
        link.check_time(deadline_ns)
        prepared = link.number()
        try:
            await link.call(lambda n: make(n, prepared), fds, deadline_ns=deadline_ns)
        except BaseException:
            link.tell(ClosePrepared(0, prepared))
            raise
        return ServicePreparedModel(link, session.memories, prepared, self.name)

    async def _connected(self) -> _Session:
        """The connection, a new one where the last one died."""
        async with self._connecting:
            if self._closed:
                raise DeviceUnavailable(f"{self.name} is closed")
            if self._session.link.error is not None:
                session = await _connect(self.source, self.name)
                if _identity(session.welcome) != _identity(self._facts):
                    session.link.close()
                    raise DeviceUnavailable(
                        f"another device answers in place of {self.name} {self.version}: "
                        f"{session.welcome.name} {session.welcome.device_version}"
                    )
                self._session = session
            return self._session


async def _connect(source: Source, name: str) -> _Session:
    """Open a connection and greet; raises DeviceUnavailable where that fails."""
    link = await anyio.to_thread.run_sync(Link, source, name)
    version = library_version()
    try:
        with anyio.fail_after(PATIENCE_S):
            welcome: Welcome = await link.call(
                lambda n: Hello(MAGIC, PROTOCOL, version, n), answer=Welcome
            )
    except TimeoutError as error:
        link.close()
        raise DeviceUnavailable(f"{name}: no answer within {PATIENCE_S:g} s") from error
    except DeviceDied as error:
        raise DeviceUnavailable(f"{name}: the service ended before it served") from error
    except GeneralFailure as error:
        link.close()
        raise DeviceUnavailable(f"{name}: {error}") from error
    except BaseException:
        link.close()
        raise
    return _Session(link, welcome)


def _identity(welcome: Welcome) -> tuple[str, str]:
    return welcome.name, welcome.device_version


def _are_open(fds: Sequence[int]) -> bool:
    try:
        for fd in fds:
            os.fstat(fd)
    except (OSError, OverflowError):
        return False
    return True


def _at_ns(deadline: Deadline | None) -> int:
    return NEVER_NS if deadline is None else deadline.at_ns
