"""Networks that outlive the process of their device: they are compiled again when it is lost.

Calls that were in flight have failed by then, and those that begin meanwhile fail too. When the new
process is there and has the model, calls go to it. A burst ends with its process, and its state
with it.

Nothing that fails here is fatal: it is logged, and tried again or left as it is.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Awaitable, Callable, Sequence

import anyio

from nnasync._core.compilation import Compilation, bring_in
from nnasync._core.execution import Net
from nnasync._core.runtime.device_list import Losable
from nnasync._core.wakeup import Waiter
from nnasync.fences import Fence

logger = logging.getLogger(__name__)

_FIRST_PAUSE_S = 0.25
_LONGEST_PAUSE_S = 4.0


class Reviver:
    """Compiles one network again whenever an isolated device that it uses has died."""

    def __init__(
        self, devices: Sequence[Losable], again: Callable[[], Awaitable[Compilation]]
    ) -> None:
        """Made before the network is compiled, so that no death is missed."""
        self._devices = devices
        self._again = again
        self._lost: dict[str, Fence] = {}
        self._look()

    async def run(self, reference: weakref.ref[Net]) -> None:
        """Until the network is gone, or this is cancelled."""
        while True:
            net = reference()
            if net is None:
                return
            used = {part.device for part in net.report().partitions}
            name = net.model.name
            del net
            await _any([fence for device, fence in self._lost.items() if device in used])
            compilation = await self._compiled(name)
            net = reference()
            if net is None or not net._take_over(compilation):
                await _close(compilation, name)
                return
            del net
            logger.info("network %r is there again", name)
            if compilation.later is not None:
                await bring_in(reference, compilation.later)

    async def _compiled(self, name: str) -> Compilation:
        """Another compilation, as soon as there can be one."""
        pause_s, told = _FIRST_PAUSE_S, ""
        while True:
            try:
                for device in self._devices:
                    await device.connected()
                self._look()
                return await self._again()
            except Exception as error:
                text = f"{type(error).__name__}: {error}"
                level = logging.DEBUG if text == told else logging.WARNING
                logger.log(level, "network %r is not there again yet: %s", name, text)
                told = text
            await anyio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _look(self) -> None:
        self._lost = {device.name: device.lost for device in self._devices}


async def _close(compilation: Compilation, name: str) -> None:
    """Give back what came too late."""
    try:
        with anyio.CancelScope(shield=True):
            await compilation.prepared.close()
    except Exception:
        logger.exception("what network %r did not take was not closed", name)


async def _any(fences: Sequence[Fence]) -> None:
    """Wait until one of the fences is settled; for ever where there are none."""
    waiter = Waiter()
    for fence in fences:
        fence.add_callback(waiter.wake)
    try:
        await waiter
    finally:
        for fence in fences:
            fence.remove_callback(waiter.wake)
