"""Calls that come together are spread over the cores, and one that comes alone is not."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from nnasync._core.drivers.null import NullEngine
from nnasync.hal import Array
from tests.engine_device.rig import Rig, Row, doubled

pytestmark = pytest.mark.anyio

Rigs = Callable[..., Rig]


@pytest.mark.parametrize("path", ["alone", "company"])
async def test_the_first_of_several_goes_to_another_core(rigs: Rigs, path: str) -> None:
    """Where others usually come while one runs, it leaves the thread of the loop to them."""
    threads: list[str] = []

    def noted(inputs: Any) -> list[Array]:
        threads.append(threading.current_thread().name)
        return doubled(inputs)

    rig = rigs(NullEngine(compute=noted), cores=2)
    prepared = await rig.prepare()
    estimate = prepared.estimate
    estimate.samples = 100
    estimate.ns = estimate.best_ns = estimate.floor_ns = estimate.high_ns = 1_000_000.0
    for _ in range(100 if path == "company" else 0):
        rig.workers.turns.here.company.note(has_others=True)
    await rig.workers.turns.next()
    row = Row()
    await prepared.execute_synchronously(row.request)
    assert row.is_right
    here = threading.current_thread().name
    assert [name == here for name in threads] == [path == "alone"]
