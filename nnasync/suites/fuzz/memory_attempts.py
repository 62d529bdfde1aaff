"""Driver-managed buffers of a prepared model: allocated, copied, executed with and closed."""

from __future__ import annotations

import msgspec

from nnasync import hal
from nnasync._core.clock import now_ns
from nnasync.device import Buffer, Device, PreparedModel
from nnasync.errors import DeviceDied, NNError
from nnasync.hal import BufferDesc, DataLocation, ExecutionConfig, Model, Request, RequestArgument
from nnasync.memory import Pool
from nnasync.suites.fuzz.memory_inputs import MemoryAct, MemoryDeed
from nnasync.suites.fuzz.verdicts import Broken, BrokenPromise, Ending

_MOST_BYTES = 1 << 20
_DEADLINE_NS = 5_000_000_000


async def with_buffers(
    device: Device,
    prepared: PreparedModel,
    model: Model,
    request: Request | None,
    acts: tuple[MemoryAct, ...],
) -> Ending:
    """Carry the acts out; every one succeeds or ends with an error of `errors`."""
    work = _Buffers(device, prepared, model, request)
    ending = Ending.NOT_RUN
    try:
        for act in acts:
            if await work.does(act) and act.deed is MemoryDeed.EXECUTE:
                ending = Ending.RAN
    finally:
        await work.close()
    return ending


class _Buffers:
    """The buffers that there are so far."""

    def __init__(
        self, device: Device, prepared: PreparedModel, model: Model, request: Request | None
    ) -> None:
        self._device = device
        self._prepared = prepared
        self._model = model
        self._request = request
        self._buffers: list[Buffer] = []

    async def close(self) -> None:
        """Give all buffers back."""
        for buffer in self._buffers:
            await buffer.close()

    async def does(self, act: MemoryAct) -> bool:
        """Carry one act out; whether it succeeded. Raises BrokenPromise."""
        try:
            await self._do(act)
        except DeviceDied:
            raise
        except NNError:
            return False
        except Exception as error:
            text = f"{act.deed.value}: {type(error).__name__}: {error}"
            raise BrokenPromise(Broken.ERROR, text) from error
        return True

    async def _do(self, act: MemoryAct) -> None:
        if act.deed is MemoryDeed.ALLOCATE:
            self._buffers.append(
                await self._device.allocate(
                    BufferDesc(act.dimensions), [self._prepared], act.inputs, act.outputs
                )
            )
        if not self._buffers:
            return
        buffer = self._buffers[act.which % len(self._buffers)]
        if act.deed is MemoryDeed.COPY_IN:
            with Pool.allocate(self._size(act)) as pool:
                await buffer.copy_from(pool, act.dimensions)
        elif act.deed is MemoryDeed.COPY_OUT:
            with Pool.allocate(self._size(act)) as pool:
                await buffer.copy_to(pool)
        elif act.deed is MemoryDeed.EXECUTE:
            await self._execute(act, buffer)
        elif act.deed is MemoryDeed.CLOSE:
            await buffer.close()

    def _size(self, act: MemoryAct) -> int:
        """The size that an act says, or that of the operand that it is about."""
        if act.size is not None:
            return act.size or 1
        main = self._model.main
        ends = (*main.input_indexes, *main.output_indexes)
        operand = main.operands[ends[act.place % len(ends)]]
        size = hal.byte_size(operand.type, operand.dimensions) if hal.has_dtype(operand.type) else 1
        return min(max(1, size), _MOST_BYTES)

    async def _execute(self, act: MemoryAct, buffer: Buffer) -> None:
        """Execute with the buffer in place of one argument."""
        if self._request is None:
            return
        request = self._request
        field = "inputs" if act.is_input else "outputs"
        arguments = list(getattr(request, field))
        if not arguments:
            return
        place = DataLocation(len(request.pools), act.offset, act.length)
        arguments[act.place % len(arguments)] = RequestArgument(location=place)
        token = buffer.token if act.token is None else act.token
        changed = msgspec.structs.replace(
            request, pools=(*request.pools, token), **{field: tuple(arguments)}
        )
        config = ExecutionConfig(deadline_ns=now_ns() + _DEADLINE_NS)
        await self._prepared.execute_synchronously(changed, config)
