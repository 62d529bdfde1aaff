"""Networks that outlive the process of their device: they are compiled again when it is lost.

Calls that were in flight have failed by then, and those that begin meanwhile fail too. When the new
process is there and has the model, calls go to it. Where it was on another machine and that takes
long, the network goes to others of its devices, once one of those elsewhere is there. A burst ends
with its process, and its state with it.

Nothing that fails here is fatal: it is logged, and tried again or left as it is.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Awaitable, Callable, Sequence

import anyio
import msgspec

from nnasync._core.compilation import Compilation, CompileSpec, bring_in
from nnasync._core.execution import Net
from nnasync._core.runtime.device_list import Losable
from nnasync._core.wakeup import Waiter
from nnasync.fences import Fence

logger = logging.getLogger(__name__)

_FIRST_PAUSE_S = 0.25
_LONGEST_PAUSE_S = 4.0
_OTHERS_WAIT_S = 0.5
"""A connection that ended is there sooner again as a rule; the node of a cluster is not."""


class Reviver:
    """Compiles one network again whenever an isolated device that it uses has died."""

    def __init__(
        self,
        devices: Sequence[Losable],
        spec: CompileSpec,
        again: Callable[[CompileSpec], Awaitable[Compilation]],
    ) -> None:
        """Begins to watch the devices before the network is compiled, so that no death is missed.

        `spec` is what it was compiled to, and `again` compiles it, perhaps for fewer `devices`.
        """
        names = {device.name for device in spec.devices}
        self._devices = [device for device in devices if device.name in names]
        self._spec = spec
        self._again = again
        self._lost: dict[str, Fence] = {}
        self._look()

    async def run(self, reference: weakref.ref[Net]) -> None:
        """Revives the network until it is gone, or this is cancelled."""
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
        """Compiles the network again, as soon as that can be done."""
        pause_s, told = _FIRST_PAUSE_S, ""
        while True:
            try:
                missing = await self._missing()
                self._look()
                there = [each for each in self._spec.devices if each.name not in missing]
                anew = msgspec.structs.replace(self._spec, devices=there, wait="best")
                return await self._again(anew)
            except Exception as error:
                text = f"{type(error).__name__}: {error}"
                level = logging.DEBUG if text == told else logging.WARNING
                logger.log(level, "network %r is not there again yet: %s", name, text)
                told = text
            await anyio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def _missing(self) -> frozenset[str]:
        """Returns which devices are missing once one is there.

        Raises the last error if none can be.
        """
        here: set[str] = set()
        failures: list[Exception] = []
        one, every = anyio.Event(), anyio.Event()

        async def look_for(device: Losable) -> None:
            try:
                await device.connected()
            except Exception as error:
                failures.append(error)
            else:
                here.add(device.name)
                one.set()
            if len(here) + len(failures) == len(self._devices):
                one.set()
                every.set()

        async with anyio.create_task_group() as tasks:
            for device in self._devices:
                tasks.start_soon(look_for, device)
            await one.wait()
            with anyio.move_on_after(_OTHERS_WAIT_S):
                await every.wait()
            if not all(each.may_stay_away for each in self._devices if each.name not in here):
                await every.wait()
            tasks.cancel_scope.cancel()
        if not here:
            raise failures[-1]
        return frozenset(device.name for device in self._devices) - here

    def _look(self) -> None:
        self._lost = {device.name: device.lost for device in self._devices}


async def _close(compilation: Compilation, name: str) -> None:
    """Closes a compilation that came too late."""
    try:
        with anyio.CancelScope(shield=True):
            await compilation.prepared.close()
    except Exception:
        logger.exception("what network %r did not take was not closed", name)


async def _any(fences: Sequence[Fence]) -> None:
    """Waits until one of the fences is settled; for ever where there are none."""
    waiter = Waiter()
    for fence in fences:
        fence.add_callback(waiter.wake)
    try:
        await waiter
    finally:
        for fence in fences:
            fence.remove_callback(waiter.wake)
