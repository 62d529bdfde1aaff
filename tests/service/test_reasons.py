"""A device behind a service tells why it does not take an operation."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

import nnasync as nn
from nnasync import hal
from nnasync._core.drivers.null import NullEngine
from nnasync._core.engine_device.reasons import LONGEST, MOST_SENT, explained
from nnasync._core.wire.messages import decode, encode
from nnasync.errors import GeneralFailure
from nnasync.hal import OperationType
from tests import rigs
from tests.rigs import REFERENCE
from tests.service.rig import served

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.one_loop,
]


class Adder(NullEngine):
    """Takes ADD, and says the same of all other operations."""

    def __init__(self, said: str | None) -> None:
        super().__init__("adder", operation_types=[OperationType.ADD])
        self.said = said

    def why_not(self, model: hal.Model) -> Sequence[str | None]:
        """The same text for each."""
        return [self.said] * len(model.main.operations)


def products(count: int) -> nn.Model:
    """x to the power of 2**count."""
    builder = nn.ModelBuilder("products")
    x = builder.input("x", (1, 4))
    for _ in range(count):
        x = builder.mul(x, x)
    builder.output("y", x)
    return builder.build()


async def test_reports_of_the_client_have_the_reason_of_the_engine() -> None:
    async with served(Adder("no products today")) as service:
        model = rigs.calculator()
        assert await service.device.why_not(model) == (None, "MUL: no products today")
        async with nn.open_runtime(devices=[service.device, REFERENCE]) as rt:
            net = await rt.compile(model)
            told = [(each.operation, each.reason) for each in net.report().rejections]
            assert told == [(1, "MUL: no products today")]
            await net.close()


@pytest.mark.parametrize("said", ["x" * 100_000, "\x1b[2J\n" * 9_000, "\ud7ff" * 9_000, "\u202e"])
async def test_what_is_said_is_short_and_harmless(said: str) -> None:
    async with served(Adder(said)) as service:
        model = products(2)
        first, second = await explained(service.device, model, (False, False))
        assert first == second
        assert first.startswith("MUL: ")
        assert len(first) <= LONGEST + len("MUL: ")
        assert first.isprintable()


async def test_a_large_model_is_explained_in_part() -> None:
    model = products(MOST_SENT + 40)
    async with served(Adder("x" * 1000)) as service:
        reasons = await service.device.why_not(model)
        assert [reason is None for reason in reasons] == [False] * MOST_SENT + [True] * 40
        told = await explained(service.device, model, (False,) * len(reasons))
        assert told[-1] == "MUL is not supported as it is used here"


async def test_an_engine_without_reasons_is_spoken_for() -> None:
    async with served(NullEngine("plain", operation_types=())) as service:
        (reason,) = await service.device.why_not(rigs.doubler())
        assert reason == "ADD is not supported as it is used here"


@pytest.mark.parametrize("reasons", [[None], [1], "text", [["x"]], 5])
async def test_anything_but_texts_is_refused(reasons: object) -> None:
    with pytest.raises(GeneralFailure, match="cannot be decoded"):
        decode(encode(reasons), tuple[str, ...])
