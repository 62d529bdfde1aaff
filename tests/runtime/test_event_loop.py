"""Programs that have no event loop yet, and those that have one."""

from __future__ import annotations

import pytest

import nnasync as nn
from nnasync.errors import BadState, InvalidArgument


async def answer(question: int = 6) -> int:
    return 7 * question


def test_a_function_is_run_with_its_arguments() -> None:
    assert nn.run(answer) == 42
    assert nn.run(answer, 3) == 21


def test_a_coroutine_is_no_function() -> None:
    with pytest.raises(InvalidArgument, match=r"nn.run\(main, ...\), not nn.run\(main\(...\)\)"):
        nn.run(answer())  # type: ignore[arg-type]  # That is what is wrong.


@pytest.mark.anyio
@pytest.mark.one_loop("asyncio runs")
async def test_where_a_loop_is_running_one_awaits() -> None:
    with pytest.raises(BadState, match=r"`await main\(\)` there"):
        nn.run(answer)
    with pytest.raises(RuntimeError, match="await main"):  # As asyncio.run raises it.
        nn.run(answer)
