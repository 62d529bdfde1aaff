"""What failed on the thread of a loop is repeated on a worker, if something stands by for it."""

from __future__ import annotations

import pytest

from nnasync._core.engine_device.beside import run_beside
from nnasync._core.plans.guarded import Health
from nnasync.errors import DeviceError, GeneralFailure
from nnasync.hal import DEFAULT_CONFIG, ExecutionConfig, ExecutionResult, Request

pytestmark = [pytest.mark.anyio, pytest.mark.one_loop("Nothing here waits.")]

RESULT = ExecutionResult(())


@pytest.mark.parametrize("suspects", [None, False, True])
async def test_a_failure_is_repeated_where_something_stands_by(suspects: bool | None) -> None:
    asked: list[bool] = []
    health = None if suspects is None else Health()
    if health is not None and suspects:
        health.doubted(GeneralFailure("out of order"))

    async def on_worker(
        request: Request, config: ExecutionConfig, *, is_spread: bool = False
    ) -> ExecutionResult:
        asked.append(is_spread)
        if is_spread:
            raise GeneralFailure("out of order")
        return RESULT

    request = Request((), (), ())
    if suspects:
        assert await run_beside(on_worker, request, DEFAULT_CONFIG, health) is RESULT
        assert asked == [True, False]
        return
    with pytest.raises(DeviceError):
        await run_beside(on_worker, request, DEFAULT_CONFIG, health)
    assert asked == [True]
