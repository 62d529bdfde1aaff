"""Memory for a first call is bound ahead where its size is known."""

from __future__ import annotations

from typing import Any

import pytest

import nnasync as nn
from nnasync._core.execution.ahead import bound_ahead
from tests.rigs import doubler, runtime

pytestmark = pytest.mark.anyio


def open_doubler() -> nn.Model:
    builder = nn.ModelBuilder("open")
    x = builder.input("x", (0, 4))
    builder.output("y", builder.add(x, x))
    return builder.build()


async def test_a_request_is_bound_before_any_call() -> None:
    async with runtime() as rt, rt.compile(doubler()) as net:
        prepared: Any = net._prepared
        before = set(prepared._bindings)
        found = bound_ahead(net.model, prepared)
        assert found is not None
        assert found.prepared is net._prepared
        assert set(prepared._bindings) - before == {id(found.slot.request)}
        net._slots.adopt(found.slot)
        assert net._slots.take() is found.slot


async def test_nothing_is_bound_for_shapes_that_are_open_or_in_another_process() -> None:
    elsewhere: Any = object()
    async with runtime() as rt, rt.compile(open_doubler()) as net:
        assert bound_ahead(net.model, net._prepared) is None
    assert bound_ahead(doubler(), elsewhere) is None
