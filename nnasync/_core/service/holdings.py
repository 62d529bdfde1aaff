"""What one client made in a service, by its numbers, and what each of its messages does with it."""

from __future__ import annotations

import functools
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import anyio
import anyio.lowlevel

from nnasync._core.clock import Deadline
from nnasync._core.engine_device.reasons import explained, first_of
from nnasync._core.message_queue import Handover
from nnasync._core.service.client_account import ClientAccount
from nnasync._core.service.executions import Start, executions_of
from nnasync._core.service.limits import Limits
from nnasync._core.service.served_bursts import ServedBurst
from nnasync._core.service.served_memories import Memories, Usage, read_bytes
from nnasync._core.service.service_tracing import Tracing
from nnasync._core.wire.connection import Frame, close_all
from nnasync._core.wire.messages import (
    Allocate,
    Answer,
    CancelLaunch,
    CloseBuffer,
    CloseBurst,
    ClosePrepared,
    CopyBuffer,
    ForgetLaunch,
    ForgetMemory,
    ForgetModel,
    GetLowerings,
    GetReasons,
    GetStatus,
    Launch,
    LaunchEnded,
    LaunchInfo,
    OfferMemory,
    OfferModel,
    OpenBurst,
    Ping,
    PoolForm,
    Prepare,
    PrepareFromCache,
    Share,
    Supports,
    Trace,
    failed,
)
from nnasync._core.wire.model_transfer import model_of
from nnasync._core.workers.anyio_threads import in_helper_thread
from nnasync.device import (
    Buffer,
    Device,
    FencedExecution,
    Lowering,
    LoweringDevice,
    PreparedModel,
    PrepareModelConfig,
    SharingDevice,
)
from nnasync.errors import GeneralFailure, InvalidArgument, NNError
from nnasync.fences import Fence
from nnasync.hal import Model, Request
from nnasync.scheduler import NEVER_NS

logger = logging.getLogger(__name__)

ANSWERED = object()
"""What a call returns that has sent its answer itself."""

Work = Callable[[], Awaitable[Any]]


class Holdings:
    """Everything that one client has at the service."""

    def __init__(
        self,
        device: Device,
        limits: Limits,
        send: Callable[..., None],
        account: ClientAccount,
        start: Start,
        *,
        trusts: bool,
    ) -> None:
        """`start` begins a task of the session; `send` may be called from any thread."""
        self._start = start
        self._account = account
        self._device = device
        self._limits = limits
        self._send = send
        self._trusts = trusts
        self._tracing = Tracing(device, trusts=trusts)
        self.usage = self._usage = Usage(limits)
        self._memories = Memories(limits, self._usage, trusts=trusts)
        self._models: dict[int, tuple[Model, int]] = {}
        self._prepared: dict[int, PreparedModel | None] = {}
        self._launches: dict[int, FencedExecution | None] = {}
        self._forgotten: set[int] = set()
        self._bursts: dict[int, ServedBurst] = {}
        self._buffers: dict[int, Buffer | None] = {}
        self._tokens: set[int] = set()
        self._reading = anyio.CapacityLimiter(2)
        self._answers: dict[type, Callable[[Any, Frame], Work]] = {
            GetStatus: self._status,
            Ping: self._ping,
            OfferModel: self._offer_model,
            Supports: self._supports,
            GetLowerings: self._lowerings,
            GetReasons: self._reasons,
            Prepare: self._prepare,
            PrepareFromCache: self._prepare_from_cache,
            Share: self._share,
            ClosePrepared: self._close_prepared,
            Launch: self._launch,
            LaunchInfo: self._launch_info,
            OpenBurst: self._open_burst,
            Allocate: self._allocate,
            CopyBuffer: self._copy_buffer,
            CloseBuffer: self._close_buffer,
            Trace: self._trace,
        }

    def asked(self, message: Any, frame: Frame) -> Work:
        """Returns the work that answers a call; raises where it need not even begin."""
        return self._tracing.timed(message, self._answers[type(message)](message, frame))

    def notified(self, message: Any, frame: Frame) -> None:
        """Handles a message without an answer; raises what is wrong about it."""
        match message:
            case OfferMemory():
                self._memories.offer(message, frame)
            case ForgetMemory():
                self._memories.forget(message)
                for burst in tuple(self._bursts.values()):
                    burst.forget(message.memory)
            case ForgetModel():
                _, size = self._models.pop(message.model, (None, 0))
                self._usage.give(size)
            case CancelLaunch():
                launched = self._launches.get(message.launch)
                if launched is not None:
                    launched.cancel()
            case ForgetLaunch():
                self._forget_launch(message.launch)
            case CloseBurst():
                self._end_burst(message.burst)

    async def close(self) -> None:
        """Closes and frees all of it."""
        self._tracing.off()
        for burst in list(self._bursts.values()):
            burst.end()
        for launched in list(self._launches.values()):
            if launched is not None and not launched.fence.done:
                launched.cancel()
        self._launches.clear()
        self._bursts.clear()
        prepared, self._prepared = self._prepared, {}
        buffers, self._buffers = self._buffers, {}
        for each in (*prepared.values(), *buffers.values()):
            if each is not None:
                try:
                    await each.close()
                except Exception:
                    logger.exception("what a client left behind cannot be closed")
        self._models.clear()
        self._memories.close()

    def _trace(self, message: Trace, _frame: Frame) -> Work:
        return self._tracing.asked(message)

    # -- models

    def _status(self, _message: GetStatus, _frame: Frame) -> Work:
        return self._device.get_status

    def _ping(self, _message: Ping, _frame: Frame) -> Work:
        async def work() -> None:
            return None

        return work

    def _offer_model(self, message: OfferModel, frame: Frame) -> Work:
        handed = handed_pools(message)
        if len(handed) != len(frame.fds):
            raise InvalidArgument(f"{len(frame.fds)} descriptors for {len(handed)} pools came")
        size = sum(max(form.size, 0) for form in handed) + read_bytes(len(message.form))
        read = functools.partial(model_of, message, tuple(frame.fds), trusts=self._trusts)
        return self._model_read(message, size, read)

    def _model_read(self, message: OfferModel, size: int, read: Callable[[], Model]) -> Work:
        """Returns the work that keeps a model of so many bytes, which is read on a thread."""
        _check_new(message.model, self._models, "model")
        self._limits.check("models", len(self._models))
        self._usage.take(size)

        async def work() -> None:
            try:
                model = await in_helper_thread(read, limiter=self._reading)
                # A client that gave up meanwhile has forgotten it, and would not do so again.
                await anyio.lowlevel.checkpoint_if_cancelled()
                _check_new(message.model, self._models, "model")
            except BaseException:
                self._usage.give(size)
                raise
            self._models[message.model] = (model, size)

        return work

    def _supports(self, message: Supports, _frame: Frame) -> Work:
        model = self._model(message.model)

        return lambda: self._device.get_supported_operations(model)

    def _reasons(self, message: GetReasons, _frame: Frame) -> Work:
        model = self._model(message.model)

        async def work() -> Sequence[str]:
            answers = await self._device.get_supported_operations(model)
            if len(answers) != len(model.main.operations):
                return ()
            return first_of(await explained(self._device, model, answers))

        return work

    def _lowerings(self, message: GetLowerings, _frame: Frame) -> Work:
        model = self._model(message.model)

        async def work() -> Sequence[Lowering]:
            if not isinstance(self._device, LoweringDevice):
                return ()
            return await self._device.lowerings(model, message.preference)

        return work

    def _prepare(self, message: Prepare, frame: Frame) -> Work:
        model = self._model(message.model)
        files = _files(message, frame)
        if message.lowering is not None and not isinstance(self._device, LoweringDevice):
            raise InvalidArgument(f"{self._device.name} knows one way to run a model only")
        config = PrepareModelConfig(
            message.preference,
            min(message.priority, self._limits.priority),
            _deadline(message.deadline_ns),
            *files,
            message.token,
            message.lowering,
        )
        self._reserve(message.prepared)

        async def work() -> None:
            await self._keep(message.prepared, lambda: self._device.prepare_model(model, config))

        return work

    def _prepare_from_cache(self, message: PrepareFromCache, frame: Frame) -> Work:
        model_cache, data_cache = _files(message, frame)
        config = PrepareModelConfig(
            deadline=_deadline(message.deadline_ns),
            model_cache=model_cache,
            data_cache=data_cache,
            token=message.token,
        )
        self._reserve(message.prepared)

        async def work() -> None:
            await self._keep(
                message.prepared, lambda: self._device.prepare_model_from_cache(config)
            )

        return work

    def _share(self, message: Share, _frame: Frame) -> Work:
        device, shared = self._device, self._prepared_model(message.of)
        if not isinstance(device, SharingDevice):
            raise GeneralFailure(f"{device.name} does not share what it prepared")
        priority = min(message.priority, self._limits.priority)
        self._reserve(message.prepared)

        async def work() -> None:
            await self._keep(message.prepared, lambda: device.share(shared, priority))

        return work

    def _close_prepared(self, message: ClosePrepared, _frame: Frame) -> Work:
        prepared = self._prepared.get(message.prepared)
        if prepared is not None:
            del self._prepared[message.prepared]

        async def work() -> None:
            if prepared is not None:
                with anyio.CancelScope(shield=True):
                    await prepared.close()

        return work

    def _reserve(self, number: int) -> None:
        _check_new(number, self._prepared, "prepared model")
        self._limits.check("prepared", len(self._prepared))
        self._prepared[number] = None

    async def _keep(self, number: int, preparing: Callable[[], Awaitable[PreparedModel]]) -> None:
        try:
            async with self._account.compiling():
                prepared = await preparing()
            self._account.own(prepared)
            self._prepared[number] = prepared
        except BaseException:
            self._prepared.pop(number, None)
            raise

    # -- executions

    def _launch(self, message: Launch, frame: Frame) -> Work:
        _check_new(message.launch, self._launches, "launch")
        self._limits.check("launches", len(self._launches))
        prepared = self._prepared_model(message.prepared)
        request = self._request(message.form)
        # Those that it waits for, and that of its own fence.
        descriptors = max(message.fences, 0) + 1
        self._usage.take(0, descriptors)
        try:
            fences = _fences(frame, message.fences)
        except BaseException:
            self._usage.give(0, descriptors)
            raise
        self._launches[message.launch] = None

        async def launch() -> FencedExecution:
            try:
                config = self._limits.bounded(message.config)
                launched = await prepared.execute_fenced(request, fences, config)
            except BaseException:
                self._launches.pop(message.launch, None)
                self._usage.give(0, descriptors)
                raise
            launched.fence.add_callback(lambda _: self._usage.give(0, descriptors))
            return launched

        async def work() -> object:
            with self._tracing.launching(message.launch):
                launched = await launch()
            self._launches[message.launch] = launched
            self._tracing.follow(message.launch, launched.fence)
            fd = launched.fence.export_fd()
            self._send(Answer(message.call, b""), (fd,))
            close_all([fd])
            launched.fence.add_callback(functools.partial(self._launch_ended, message.launch))
            return ANSWERED

        return work

    def _launch_ended(self, number: int, fence: Fence) -> None:
        failure = None if fence.error is None else failed(fence.error)
        self._send(LaunchEnded(number, failure))
        if number in self._forgotten:
            self._forgotten.discard(number)
            self._launches.pop(number, None)

    def _forget_launch(self, number: int) -> None:
        """Drops a launch; one that is under way, when it is over."""
        if number not in self._launches:
            return
        self._forgotten.add(number)
        # The fence signals on other threads: by now its callback may have dropped the launch.
        launched = self._launches.get(number)
        if launched is not None and launched.fence.done:
            self._forgotten.discard(number)
            self._launches.pop(number, None)

    def _launch_info(self, message: LaunchInfo, _frame: Frame) -> Work:
        launched = self._launches.get(message.launch)
        if launched is None:
            raise InvalidArgument(f"launch {message.launch} is not known to the service")

        return launched.get_execution_info

    # -- bursts and buffers

    def _open_burst(self, message: OpenBurst, frame: Frame) -> Work:
        _check_new(message.burst, self._bursts, "burst")
        kind = "bursts" if message.ordered else "queues"
        alike = sum(each.ordered is message.ordered for each in self._bursts.values())
        self._limits.check(kind, alike)
        prepared = self._prepared_model(message.prepared)
        self._usage.take(0, 2 * Handover.COUNT)
        try:
            fds = frame.take(len(frame.fds))
            burst = ServedBurst(
                message.burst,
                self._memories,
                fds,
                self._account,
                polls=message.polls,
                ordered=message.ordered,
                most_urgent=self._limits.priority,
                check_tokens=self._check_tokens,
            )
        except BaseException:
            self._usage.give(0, 2 * Handover.COUNT)
            raise
        self._bursts[message.burst] = burst

        async def work() -> None:
            try:
                if message.ordered:
                    context = await prepared.configure_execution_burst(burst, burst, burst)
                else:
                    context = executions_of(prepared, burst, self._start)
                burst.begin(context, self._device)
            except BaseException:
                self._end_burst(message.burst)
                raise

        return work

    def _end_burst(self, number: int) -> None:
        burst = self._bursts.pop(number, None)
        if burst is not None:
            burst.end()
            self._usage.give(0, 2 * Handover.COUNT)

    def _allocate(self, message: Allocate, _frame: Frame) -> Work:
        _check_new(message.buffer, self._buffers, "buffer")
        self._limits.check("buffers", len(self._buffers))
        prepared = [self._prepared_model(number) for number in message.prepared]
        self._buffers[message.buffer] = None

        async def work() -> int:
            try:
                await anyio.lowlevel.checkpoint_if_cancelled()
                buffer = await self._device.allocate(
                    message.desc, prepared, message.input_roles, message.output_roles
                )
            except BaseException:
                self._buffers.pop(message.buffer, None)
                raise
            self._buffers[message.buffer] = buffer
            self._tokens.add(buffer.token)
            return buffer.token

        return work

    def _copy_buffer(self, message: CopyBuffer, _frame: Frame) -> Work:
        buffer = self._buffers.get(message.buffer)
        if buffer is None:
            raise InvalidArgument(f"buffer {message.buffer} is not known to the service")
        pool = self._memories.pool(message.memory)

        async def work() -> None:
            if message.is_from:
                await buffer.copy_from(pool, message.dimensions)
            else:
                await buffer.copy_to(pool)

        return work

    def _close_buffer(self, message: CloseBuffer, _frame: Frame) -> Work:
        buffer = self._buffers.get(message.buffer)
        if buffer is not None:
            del self._buffers[message.buffer]
            self._tokens.discard(buffer.token)

        async def work() -> None:
            if buffer is not None:
                with anyio.CancelScope(shield=True):
                    await buffer.close()

        return work

    def _check_tokens(self, tokens: Sequence[int]) -> None:
        """Raises InvalidArgument for tokens of other clients, which mean nothing here."""
        if not self._tokens.issuperset(tokens):
            raise InvalidArgument("a memory token of the request stands for no buffer (any more)")

    def _request(self, form: bytes) -> Request:
        request = self._memories.request(form)
        self._check_tokens([each for each in request.pools if isinstance(each, int)])
        return request

    # -- by number

    def _model(self, number: int) -> Model:
        if number not in self._models:
            raise InvalidArgument(f"model {number} is not known to the service")
        return self._models[number][0]

    def _prepared_model(self, number: int) -> PreparedModel:
        prepared = self._prepared.get(number)
        if prepared is None:
            raise InvalidArgument(f"prepared model {number} is not known to the service")
        return prepared


def handed_pools(message: OfferModel) -> list[PoolForm]:
    """Returns the pools of a model that come with its message."""
    forms = [each for each in (message.values, *message.pools) if isinstance(each, PoolForm)]
    return [form for form in forms if not form.refusal]


def _check_new(number: int, table: dict[int, Any], what: str) -> None:
    if number <= 0 or number in table:
        raise InvalidArgument(f"{what} {number} is there already, or is no number above 0")


def _files(
    message: Prepare | PrepareFromCache, frame: Frame
) -> tuple[Sequence[int], Sequence[int]]:
    """Returns the descriptors of model cache and data cache, which the frame closes."""
    models, data = message.model_files, message.data_files
    if models < 0 or data < 0 or models + data != len(frame.fds):
        raise InvalidArgument(
            f"{len(frame.fds)} descriptors for {models} and {data} cache files came"
        )
    return tuple(frame.fds[:models]), tuple(frame.fds[models:])


def _fences(frame: Frame, count: int) -> list[Fence]:
    if count != len(frame.fds):
        raise InvalidArgument(f"{len(frame.fds)} descriptors for {count} fences came")
    fds = frame.take(count)
    try:
        return [Fence.import_fd(fds.pop(0)) for _ in range(count)]
    except NNError:
        close_all(fds)
        raise


def _deadline(at_ns: int) -> Deadline | None:
    return None if at_ns == NEVER_NS else Deadline(at_ns)
