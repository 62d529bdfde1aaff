"""The fixture that makes workers, and closes them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from nnasync._core.clock import Watchdog
from nnasync._core.workers.demotion import LowOsPriority
from nnasync.scheduler import AGING_NS, Policy
from tests.workers import steering
from tests.workers.steering import Rig


@pytest.fixture
def rigs() -> Iterator[Callable[..., Rig]]:
    made: list[Rig] = []
    steering.others.clear()
    steering.others.update(threading.enumerate())

    def make(
        cores: int = 1,
        *,
        queue_limit: int = 1000,
        watchdog: Watchdog | None = None,
        policy: Policy | None = None,
        aging_ns: int = AGING_NS,
        low_os_priority: LowOsPriority = False,
        nicer: bool = False,
    ) -> Rig:
        dog = watchdog or Watchdog()
        made.append(Rig(cores, queue_limit, dog, policy, aging_ns, low_os_priority, nicer=nicer))
        return made[-1]

    yield make
    for rig in made:
        rig.close()
