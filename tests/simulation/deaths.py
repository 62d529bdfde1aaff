"""One seed of a network whose isolated device dies again and again, and is compiled again.

The reviver and the background tasks are the real ones; the device, the network and the compilations
stand in. Deaths come at any time, also while the network is compiled again and while its better
plan is made; what is compiled fails with any error. A seed is clean if the application is never
disturbed, and the network runs on the last process of its device a while after the last death.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import Awaitable, Callable
from typing import Any

from nnasync import errors
from nnasync._core.compilation import CompileSpec
from nnasync._core.compilation.report import Better, Partition, Report
from nnasync._core.runtime.reviving import Reviver
from nnasync._core.runtime.tasks import tasks_of_this_loop
from nnasync.fences import Fence
from tests.rigs import doubler
from tests.simulation.threads import inside
from tests.simulation.world import Faults, World

_LAST_PAUSE_S = 60.0
_ERRORS: tuple[Callable[[], Exception], ...] = (
    lambda: errors.DeviceDied("simulated: died again"),
    lambda: errors.InvalidArgument("simulated: no such model"),
    lambda: OSError("simulated: the disk is full"),
    lambda: RuntimeError("can't start new thread"),
)


class _Service:
    """An isolated device: the number of its process, and the fence of that one's death."""

    name = "isolated"
    may_stay_away = False

    def __init__(self, world: World) -> None:
        self.world = world
        self.process = 0
        self.lost = Fence()

    async def connected(self) -> None:
        """Start a process, which takes its time and may fail."""
        await asyncio.sleep(self.world.random.random() * 0.2)
        if self.world.chance(0.2):
            raise self.world.random.choice(_ERRORS)()

    def die(self) -> None:
        """End this process; there is another one at once."""
        self.process += 1
        old, self.lost = self.lost, Fence()
        old.fail(errors.DeviceDied("simulated: died"))


class _Compilation:
    """What was compiled for one process of the device."""

    def __init__(self, process: int, later: Callable[[], Awaitable[Any]] | None) -> None:
        self.process, self.later, self.prepared = process, later, self

    async def close(self) -> None:
        """Give it back."""


class _Network:
    """A network: on which process of its device it runs."""

    def __init__(self) -> None:
        self.process = 0
        self.model = self
        self.name = "simulated"
        self._closed = False

    def report(self) -> Report:
        """One part, on the isolated device."""
        return Report((Partition(_Service.name, (0,), "chosen"),), (), (), False, "", "")

    def _take_over(self, compilation: _Compilation) -> bool:
        self.process = compilation.process
        return True

    def _improved(self, report: Report, model: object = None) -> None:
        """Hear of a better plan, or that none came."""


class Deaths:
    """The deaths of one seed."""

    def __init__(self, world: World) -> None:
        self.world, self.random = world, world.random
        self.service, self.net = _Service(world), _Network()
        self.failures = self.random.choice([0.0, 0.2, 0.6])

    async def run(self) -> None:
        """All of them; raises AssertionError for what is wrong."""
        self.world.faults = Faults()
        tasks = tasks_of_this_loop()
        await tasks.open()
        try:
            spec = CompileSpec(source=doubler(), fingerprint=b"", devices=[self.service])  # type: ignore[list-item]
            reviver: Any = Reviver([self.service], spec, self._again)  # type: ignore[arg-type]
            tasks.start(reviver.run, weakref.ref(self.net))
            for _ in range(self.random.randint(1, 6)):
                await asyncio.sleep(self.random.choice([0.01, 0.3, 3]) * self.random.random())
                self.service.die()
            self.failures = 0.0
            await asyncio.sleep(_LAST_PAUSE_S)
        except asyncio.CancelledError as error:
            raise AssertionError("a failure in the background cancelled the application") from error
        finally:
            await tasks.close()
        text = f"the network is left on process {self.net.process} of {self.service.process}"
        assert self.net.process == self.service.process, text

    async def _again(self, _spec: CompileSpec) -> _Compilation:
        process = self.service.process
        await asyncio.sleep(self.random.random() * 0.2)
        self._fail_perhaps()
        return _Compilation(process, self._later if self.world.chance(0.5) else None)

    async def _later(self) -> Any:
        await asyncio.sleep(self.random.random() * 0.5)
        if self.service.lost.done or self.world.chance(0.7):
            raise self.random.choice(_ERRORS)()
        return Better(doubler(), self.net.report(), None)

    def _fail_perhaps(self) -> None:
        if self.world.chance(self.failures):
            raise self.random.choice(_ERRORS)()


def simulate(seed: int) -> str | None:
    """Play one seed; what was found, None for nothing."""
    world = World(seed)
    logging.disable(logging.CRITICAL)
    try:
        with inside(world) as loop:
            loop.run_until_complete(Deaths(world).run())
    except AssertionError as error:
        return str(error)
    except BaseExceptionGroup as group:
        return f"the application ends with {group!r}"
    finally:
        logging.disable(logging.NOTSET)
    return None
