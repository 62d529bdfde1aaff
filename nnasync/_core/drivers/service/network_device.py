"""A device on another machine, as an ordinary Device.

It is a device of a service as any other, and its connection is watched in the same way. What is
different is that nothing is shared: values travel with each execution, times as what remains of
them, cache files and traces not at all.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from nnasync._core.clock import now_ns
from nnasync._core.device_helpers import begun_at
from nnasync._core.drivers.service.device import ServiceDevice
from nnasync._core.drivers.service.link import Link
from nnasync._core.drivers.service.network_buffers import NetworkBuffer
from nnasync._core.drivers.service.network_launches import NetworkBurst, NetworkExecution
from nnasync._core.drivers.service.network_requests import Parcels
from nnasync._core.drivers.service.network_runs import NetworkRun
from nnasync._core.drivers.service.network_source import NetworkPeer
from nnasync._core.drivers.service.offered_memories import OfferedMemories
from nnasync._core.drivers.service.prepared import ServicePreparedModel, sendable
from nnasync._core.drivers.service.supervisor import ConnectedSession, Supervisor
from nnasync._core.wire.messages import Prepare, Share
from nnasync._core.wire.network_messages import remaining
from nnasync.burst import BurstCallback, Channel
from nnasync.device import DEFAULT_PREPARE, Buffer, PreparedModel, PrepareModelConfig
from nnasync.errors import DeviceDied, GeneralFailure, InvalidArgument
from nnasync.fences import Fence
from nnasync.hal import (
    DEFAULT_CONFIG,
    ExecutionConfig,
    ExecutionResult,
    Model,
    Priority,
    Request,
    is_fully_specified,
)
from nnasync.scheduler import at_ns
from nnasync.tracing import Tracer


class NetworkPreparedModel(ServicePreparedModel):
    """A prepared model on another machine; when the connection ends, its calls raise DeviceDied."""

    def __init__(
        self, link: Link, memories: OfferedMemories, number: int, name: str, model: Model
    ) -> None:
        """`model` says what requests look like."""
        super().__init__(link, memories, number, name)
        self.model = model
        self._parcels = Parcels(model)

    async def execute_fenced(  # type: ignore[override]  # Both are executions of the contract.
        self,
        request: Request,
        wait_for: Sequence[Fence] = (),
        config: ExecutionConfig = DEFAULT_CONFIG,
    ) -> NetworkExecution:
        """Launch behind fences, which are waited for here."""
        self.check_open()
        parcel = self._parcels.of(request)
        if not self._is_settled(request):
            raise InvalidArgument(f"{self._name}: a fenced execution needs fully specified outputs")
        if all(fence.done for fence in wait_for):
            config = begun_at(config, now_ns())
        config = sendable(config)
        self.link.check_time(config.deadline_ns)
        execution = NetworkExecution(self.link, self.number, parcel, config, self)
        execution.begin_after(wait_for)
        return execution

    async def configure_execution_burst(  # type: ignore[override]  # The same.
        self, callback: BurstCallback, request_channel: Channel, result_channel: Channel
    ) -> NetworkBurst:
        """Serve a burst, in which each request waits for the one before it."""
        self.check_open()
        burst = NetworkBurst(self.link, self.number, self._parcels, callback, result_channel)
        request_channel.listen(burst.receive)
        return burst

    async def _execute(
        self, request: Request, config: ExecutionConfig, *, at_once: bool
    ) -> ExecutionResult:
        self.check_open()
        config = sendable(config)
        self.link.check_time(config.deadline_ns)
        run = NetworkRun(self.link, self.number, self._parcels.of(request), config)
        try:
            await self.link.settled(run.fence, config.deadline_ns, run.give_up)
        except DeviceDied:
            self.check_alive()
            raise
        return run.result()

    def _is_settled(self, request: Request) -> bool:
        main = self.model.main
        operands = [main.operands[index] for index in main.output_indexes]
        return all(
            is_fully_specified(operand.type, argument.dimensions or operand.dimensions)
            for argument, operand in zip(request.outputs, operands, strict=True)
        )


class NetworkDevice(ServiceDevice):
    """A device of HAL 1.3 at an address; it is connected again when the next model is prepared."""

    may_stay_away = True

    def __init__(
        self, source: object, supervisor: Supervisor, session: ConnectedSession, called: str = ""
    ) -> None:
        super().__init__(source, supervisor, session, called)  # type: ignore[arg-type]  # A Source.
        self.answers = msgspec.structs.replace(self.answers, cache_files=(0, 0), caches_late=False)

    async def prepare_model(
        self, model: Model, config: PrepareModelConfig = DEFAULT_PREPARE
    ) -> PreparedModel:
        """Compile there; nothing is cached here."""
        session = await self._supervisor.connected()
        peer = session.link.peer
        trip_ns = peer.trip_ns if isinstance(peer, NetworkPeer) else 0
        deadline_ns = at_ns(config.deadline)
        async with session.models.named(model) as number:
            prepared = await self._number_of_prepared(
                session.link,
                lambda call, prepared: Prepare(
                    call,
                    number,
                    prepared,
                    config.preference,
                    config.priority,
                    remaining(deadline_ns, now_ns(), trip_ns),
                    0,
                    0,
                    b"",
                    config.lowering,
                ),
                (),
                deadline_ns,
            )
        return NetworkPreparedModel(session.link, session.memories, prepared, self.name, model)

    async def prepare_model_from_cache(self, config: PrepareModelConfig) -> PreparedModel:
        """Raise GeneralFailure: cache files do not travel."""
        raise GeneralFailure(f"{self.name}: a device on another machine has no cache files here")

    async def share(self, prepared: PreparedModel, priority: Priority) -> PreparedModel:
        """Another prepared model of a plan in the service, of another priority."""
        link = self.link
        if not isinstance(prepared, NetworkPreparedModel) or prepared.link is not link:
            raise InvalidArgument(f"the prepared model to share is not of this {self.name}")
        prepared.check_open()
        number = await self._number_of_prepared(
            link,
            lambda call, number: Share(call, number, prepared.number, priority),
            (),
            at_ns(None),
        )
        memories = self._last.memories
        return NetworkPreparedModel(link, memories, number, self.name, prepared.model)

    def observe(self, tracer: Tracer) -> None:
        """Tell nothing: the clock of another machine is not ours."""

    def _buffer(self, session: ConnectedSession, number: int, token: int) -> Buffer:
        return NetworkBuffer(session.link, number, token)
