"""What an engine says that makes no sense is told as its mistake; nobody gets a foreign error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import nnasync as nn
from nnasync._core.drivers.null import NullEngine
from nnasync.engine import BoundCall, CacheFiles, Plan, deliver
from nnasync.errors import GeneralFailure, InvalidArgument
from tests.rigs import ROW, double, doubler, runtime

pytestmark = [
    pytest.mark.one_loop("What engines say is the same on every loop."),
    pytest.mark.anyio,
    pytest.mark.usefixtures("no_leaks"),
]


class Saying(NullEngine):
    """An engine whose methods give, or raise, what a test says."""

    cores = 1

    def __init__(self, **said: Any) -> None:
        super().__init__("saying", compute=double, cache_files=(1, 0))
        self.said = said

    def _say(self, name: str, usual: Any) -> Any:
        said = self.said.get(name, usual)
        if isinstance(said, BaseException):
            raise said
        return said

    def lowerings(self, model: nn.Model, preference: Any) -> Any:
        """What the test says."""
        return self._say("lowerings", ())

    def compile(self, model: nn.Model, preference: Any, lowering: Any = None) -> Any:
        """A plan whose `bind` does what the test says."""
        plan: Any = super().compile(model, preference)
        if "bind" in self.said:
            bind = plan.bind
            plan.bind = lambda i, o: self._say("bind", None) or bind(i, o)
        return plan

    def serialize(self, plan: Any) -> Any:
        """What the test says."""
        return self._say("serialize", CacheFiles(model=(b"x",)))

    def loading_ns(self) -> Any:
        """What the test says."""
        return self._say("loading_ns", 0)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (None, "lowerings gave None, it must give a list of Lowering"),
        ("fast", "lowerings gave 'fast', it must give a list of Lowering"),
        (["fast"], "lowerings gave ['fast'], it must give a list of Lowering"),
        (KeyError("x"), "lowerings failed: KeyError: 'x'"),
    ],
)
async def test_lowerings_that_are_none(
    said: Any, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with runtime(Saying(lowerings=said)) as rt, await rt.compile(doubler()) as net:
        assert (await net(ROW) == 2 * ROW).all()
    assert f"saying: {told}: a mistake of the driver" in caplog.text


@pytest.mark.parametrize("said", [None, "3", -1, ValueError("no clock")])
async def test_a_loading_time_that_is_none(
    said: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        runtime(Saying(loading_ns=said)) as rt,
        await rt.compile(doubler(), cache_dir=tmp_path) as net,
    ):
        assert (await net(ROW) == 2 * ROW).all()
    assert "saying: loading_ns gave" in caplog.text


async def test_a_plan_that_is_kept_in_what_are_no_files(tmp_path: Path) -> None:
    async with (
        runtime(Saying(serialize={"model": b""})) as rt,
        await rt.compile(doubler(), cache_dir=tmp_path) as net,
    ):
        assert "saying gave dict, which is no CacheFiles" in net.report().cache_reason


@pytest.mark.parametrize("error", [SystemExit(3), ValueError("no room"), StopIteration()])
async def test_what_bind_raises_is_typed(error: BaseException) -> None:
    async with runtime(Saying(bind=error)) as rt, await rt.compile(doubler()) as net:
        with pytest.raises(GeneralFailure, match=f"memory failed: {type(error).__name__}"):
            await net(ROW)


@pytest.mark.parametrize("count", [0, 2])
async def test_another_number_of_results_than_outputs(count: int) -> None:
    class Call(BoundCall):
        def __init__(self, outputs: Any) -> None:
            self.outputs = outputs

        def run(self, stop: Any, given: Any = None) -> bool:
            deliver(self.outputs, [ROW] * count)
            return True

    class Miscounting(NullEngine):
        def compile(self, model: nn.Model, preference: Any) -> Any:
            class MiscountingPlan(Plan):
                def bind(self, inputs: Any, outputs: Any) -> BoundCall:
                    return Call(outputs)

            return MiscountingPlan()

    async with runtime(Miscounting()) as rt, await rt.compile(doubler()) as net:
        with pytest.raises(GeneralFailure, match=f"{count} results were given for 1 output"):
            await net(ROW)


async def test_numbers_of_an_engine_are_checked_before_it_is_used() -> None:
    engine = Saying()
    engine.concurrency = -1
    with pytest.raises(InvalidArgument, match="`concurrency` is -1: it must be a whole number"):
        async with runtime(engine):
            pass
