"""The state of a stream on a device in another process: it never leaves the device.

Pairs of the device's buffers (memory domains), which requests name by token, are the two sides that
take turns. What the application sets, at the beginning of the stream and by `load_state` and
`reset`, is a third side in shared memory, from which one execution reads. Where the device has no
buffers, or no room for more, the state stays in shared memory.
"""

from __future__ import annotations

from collections.abc import Sequence

from nnasync._core.clock import Watchdog, now_ns
from nnasync._core.execution.ports import Ports
from nnasync._core.execution.stream_state import StatePlace, StreamState, nbytes_of
from nnasync.device import Device, DistantBuffer, PreparedModel
from nnasync.errors import (
    DeviceUnavailable,
    GeneralFailure,
    InvalidArgument,
    ResourceExhausted,
)
from nnasync.fences import merge
from nnasync.hal import Array, BufferDesc, BufferRole
from nnasync.memory import Pool

PATIENCE_S = 1.0
"""How long `state()` waits at most for a device in another process."""

_STAGED = 2


class DistantState(StreamState):
    """State in buffers of a device in another process, and one side in shared memory."""

    following = (1, 0, 0)

    def __init__(
        self, state: StreamState, buffers: Sequence[Sequence[DistantBuffer]], watchdog: Watchdog
    ) -> None:
        """Continues from a state in shared memory; `buffers` has two for each of the states."""
        self._watchdog = watchdog
        self.ports = state.ports
        self._inputs, self._outputs = state._inputs, state._outputs
        self._arrays = [state._arrays[state.current]]
        self._buffers = [list(side) for side in zip(*buffers, strict=True)]
        self.places = [
            *([StatePlace(buffer.token, 0, 0) for buffer in side] for side in self._buffers),
            state.places[state.current],
        ]
        self._copies: list[Pool] = []
        self.current = self._before = _STAGED

    async def _readable(self) -> Sequence[Array]:
        if self.current == _STAGED:
            return self._arrays[0]
        # Kept only where all went well: late copies may still come there.
        copies, self._copies = self._copies or [Pool.allocate(nbytes_of(p)) for p in self.ports], []
        copied = merge(
            buffer.start_copy_to(pool)
            for buffer, pool in zip(self._buffers[self.current], copies, strict=True)
        )
        late = DeviceUnavailable(
            f"the device did not give the state of the stream within {PATIENCE_S:g} s"
        )
        alarm = self._watchdog.arm(now_ns() + int(PATIENCE_S * 1e9), lambda: copied.fail(late))
        try:
            await copied
        finally:
            alarm.disarm()
        self._copies = copies
        return [
            pool.array(port.dtype, port.shape)
            for pool, port in zip(copies, self.ports, strict=True)
        ]

    def _writable(self) -> Sequence[Array]:
        self.current = _STAGED
        return self._arrays[0]


async def moved_away(
    state: StreamState, ports: Ports, device: Device, prepared: PreparedModel, watchdog: Watchdog
) -> StreamState:
    """Returns the state moved into buffers of a device; unchanged where the device has none."""
    buffers = await _buffers(ports, device, prepared)
    return state if buffers is None else DistantState(state, buffers, watchdog)


async def _buffers(
    ports: Ports, device: Device, prepared: PreparedModel
) -> list[list[DistantBuffer]] | None:
    """Returns two device buffers for each state of a prepared model; None where it has none."""
    made: list[list[DistantBuffer]] = []
    for state, new in zip(ports.state_inputs, ports.state_outputs, strict=True):
        roles = [BufferRole(0, state.position)], [BufferRole(0, new.position)]
        pair: list[DistantBuffer] = []
        for _ in range(2):
            try:
                buffer = await device.allocate(BufferDesc(), [prepared], *roles)
            except (GeneralFailure, ResourceExhausted, InvalidArgument):
                # Also where the prepared model is not the device's own: the reference stands by
                # for it, and could not read the buffers of another device.
                return None
            if not isinstance(buffer, DistantBuffer):
                return None
            pair.append(buffer)
        made.append(pair)
    return made
