"""Compilation: which device takes a model, what is refused, and the report of why."""

from __future__ import annotations

import threading
from typing import Any

import anyio
import msgspec
import pytest

import nnasync as nn
from nnasync import hal
from nnasync._core.drivers.null import NullEngine
from nnasync.errors import (
    DeviceError,
    GeneralFailure,
    InvalidArgument,
    MissedDeadlinePersistent,
    ModelError,
    ResourceExhaustedPersistent,
)
from tests.rigs import ROW, attempt, calculator, double, doubler, missed_under_way, runtime

rare: Any = nn.CompileOptions

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.usefixtures("no_leaks"),
    pytest.mark.filterwarnings("ignore:network .* was dropped:ResourceWarning"),
]

REFERENCE = "nnasync-reference"
KIND = "-".join
NOTHING: tuple[int, ...] = ()


def devices_of(net: nn.Net) -> list[str]:
    return [partition.device for partition in net.report().partitions]


async def test_the_first_device_that_takes_the_whole_model_gets_it() -> None:
    first, second = NullEngine("first", compute=double), NullEngine("second", compute=double)
    async with runtime(first, second, REFERENCE) as rt:
        assert [device.name for device in rt.devices] == ["first", "second", REFERENCE]
        assert devices_of(await rt.compile(doubler())) == ["first"]
        assert (first.counters.compile, second.counters.compile) == (1, 0)


async def test_the_order_of_devices_breaks_ties() -> None:
    first, second = NullEngine("first", compute=double), NullEngine("second", compute=double)
    async with runtime(first, second) as rt:
        for order in (["second", "first"], [rt.device("second"), rt.device("first")]):
            net = await rt.compile(doubler(), devices=order)
            assert devices_of(net) == ["second"]
            assert (await net(ROW)).tolist() == [[2, 4, 6, 8]]
        assert first.counters.compile == first.counters.run == 0


async def test_nothing_but_the_named_devices_is_used() -> None:
    poor = NullEngine("poor", operation_types=NOTHING)
    async with runtime(poor, REFERENCE) as rt:
        with pytest.raises(GeneralFailure, match="ADD is not supported") as caught:
            await rt.compile(doubler(), devices=["poor"])
        assert "poor" in str(caught.value)
        with pytest.raises(DeviceError):
            await rt.compile(doubler(), devices=[])
        net = await rt.compile(doubler(), devices=["poor", REFERENCE])
        assert devices_of(net) == [REFERENCE]
        assert devices_of(await rt.compile(doubler())) == [REFERENCE]


async def test_a_failed_prepare_falls_back_to_the_reference_and_says_so() -> None:
    broken = NullEngine("broken")
    broken.fail("compile", RuntimeError("no more"))
    async with runtime(broken, REFERENCE) as rt:
        net = await rt.compile(doubler())
        report = net.report()
        assert devices_of(net) == [REFERENCE]
        assert report.partitions[0].reason == "fallback"
        assert [(each.device, each.operation) for each in report.rejections] == [("broken", -1)]
        assert "no more" in report.rejections[0].reason
        assert (await net(ROW)).tolist() == [[2, 4, 6, 8]]
        with pytest.raises(GeneralFailure, match="no more") as caught:
            await rt.compile(doubler(), devices=["broken"])
        assert isinstance(caught.value.__cause__, RuntimeError)


async def test_a_device_that_has_no_room_is_passed_over() -> None:
    small = NullEngine("small", compute=double, max_models=1)
    async with runtime(small, REFERENCE) as rt:
        held = await rt.compile(doubler(), devices=["small"])
        assert devices_of(held) == ["small"]
        assert devices_of(await rt.compile(doubler())) == [REFERENCE]
        with pytest.raises(ResourceExhaustedPersistent, match="small"):
            await rt.compile(doubler("another"), devices=["small"])


async def test_a_device_that_cannot_say_what_it_supports_is_passed_over() -> None:
    def supports(*_: Any) -> bool:
        raise KeyError("table")

    async with runtime(NullEngine("confused", supports=supports), REFERENCE) as rt:
        net = await rt.compile(doubler())
        assert devices_of(net) == [REFERENCE]
        assert "table" in net.report().rejections[0].reason


async def test_a_device_that_answers_for_too_few_operations_is_passed_over() -> None:
    class Short(NullEngine):
        def supported_operations(self, model: hal.Model) -> list[bool]:
            return [True]

    async with runtime(Short("short"), REFERENCE) as rt:
        assert devices_of(await rt.compile(calculator())) == [REFERENCE]


async def test_a_report_says_where_and_why() -> None:
    add_only = NullEngine("adder", operation_types=[nn.OperationType.ADD])
    async with runtime(add_only, REFERENCE) as rt:
        report = (await rt.compile(calculator())).report()
        (partition,) = report.partitions
        assert (partition.device, partition.operations) == (REFERENCE, (0, 1))
        assert partition.reason
        (rejection,) = report.rejections
        assert (rejection.device, rejection.operation) == ("adder", 1)
        assert rejection.reason == "MUL is not supported as it is used here"
        assert [each.device for each in report.candidates] == ["adder", REFERENCE]
        assert report.candidates[1].verdict == "chosen"
        for candidate in report.candidates:
            assert candidate.lowering
            assert candidate.agreement
            assert candidate.median_us is None
        assert report.cache_hit is False
        assert report.cache_reason
        assert report.pin.startswith(f"{REFERENCE}:")


async def test_a_pin_names_device_model_and_version() -> None:
    engine = NullEngine("null")
    async with runtime(engine, REFERENCE) as rt:
        pins = [
            (await rt.compile(model, devices=[device])).report().pin
            for model in (doubler(), calculator())
            for device in ("null", REFERENCE)
        ]
        assert len(set(pins)) == 4
        assert (await rt.compile(doubler(), devices=["null"])).report().pin == pins[0]
        engine.version = "2"
        assert (await rt.compile(doubler(), devices=["null"])).report().pin != pins[0]


# -- deadlines


async def test_a_deadline_that_has_passed_is_persistent() -> None:
    engine = NullEngine()
    async with runtime(engine) as rt:
        with pytest.raises(MissedDeadlinePersistent):
            await rt.compile(doubler(), deadline=nn.within(ms=-1))
        assert engine.counters.compile == 0
        await rt.compile(doubler(), deadline=nn.within(s=3600))


class Slow(NullEngine):
    """Blocks in one call until it is let go."""

    def __init__(self, where: str) -> None:
        super().__init__("slow", compute=double)
        self.let_go = threading.Event()
        self.where = where

    def supported_operations(self, model: hal.Model) -> list[bool]:
        if self.where == "supported_operations":
            self.let_go.wait()
        return super().supported_operations(model)

    def compile(self, model: hal.Model, preference: hal.ExecutionPreference) -> Any:
        plan = super().compile(model, preference)
        if self.where == "compile":
            self.let_go.wait()
        return plan


@pytest.mark.parametrize("where", ["supported_operations", "compile"])
async def test_the_answer_comes_at_the_deadline_although_the_device_hangs(where: str) -> None:
    slow = Slow(where)
    async with runtime(slow, REFERENCE) as rt:
        try:
            error = await missed_under_way(
                lambda deadline: rt.compile(doubler(), deadline=deadline), ms=50
            )
            assert "slow" in str(error)
            net = await rt.compile(doubler(), devices=[REFERENCE])
            assert (await net(ROW)).tolist() == [[2, 4, 6, 8]]
        finally:
            slow.let_go.set()


@pytest.mark.parametrize("where", ["supported_operations", "compile"])
async def test_compiling_is_cancelled_at_once(where: str) -> None:
    slow = Slow(where)
    async with runtime(slow) as rt:
        try:
            async with anyio.create_task_group() as group:
                call = await attempt(group, lambda: rt.compile(doubler()))
                call.scope.cancel()
            assert call.scope.cancelled_caught
        finally:
            slow.let_go.set()
        assert rt.statistics().nets == 0
        assert (await (await rt.compile(doubler()))(ROW)).tolist() == [[2, 4, 6, 8]]


# -- what is not legal


def broken_models() -> list[Any]:
    model = doubler()
    main = model.main
    operation = main.operations[0]
    replace = msgspec.structs.replace

    def with_main(**changes: Any) -> nn.Model:
        return replace(model, main=replace(main, **changes))

    return [
        pytest.param(with_main(operations=()), id="no operation"),
        pytest.param(with_main(operations=(replace(operation, inputs=(99, 0)),)), id="no operand"),
        pytest.param(with_main(operations=(replace(operation, inputs=(-1, 0)),)), id="negative"),
        pytest.param(with_main(operations=(replace(operation, outputs=()),)), id="no output"),
        pytest.param(with_main(input_indexes=(77,)), id="no such input"),
        pytest.param(with_main(output_indexes=()), id="nothing comes out"),
        pytest.param(replace(model, operand_values=b""), id="no values"),
        pytest.param(replace(model, state=(hal.StatePair(5, 6),)), id="no such state"),
    ]


@pytest.mark.parametrize("model", broken_models())
async def test_an_illegal_model_is_refused(model: nn.Model) -> None:
    async with runtime(NullEngine(), REFERENCE) as rt:
        with pytest.raises(ModelError):
            await rt.compile(model)
        assert (await (await rt.compile(doubler(), devices=[REFERENCE]))(ROW)).size == 4


@pytest.mark.parametrize("model", [None, "model.txt", b"", doubler, object()])
async def test_what_is_no_model_is_refused(model: Any) -> None:
    async with runtime() as rt:
        with pytest.raises(InvalidArgument, match="model"):
            await rt.compile(model)


@pytest.mark.parametrize(
    "options",
    [
        {"devices": ["unheard-of"]},
        {"devices": REFERENCE},
        {"devices": [42]},
        {"devices": 42},
        {"devices": [NullEngine()]},
        {"deadline": 5},
        {"deadline": float("nan")},
        {"options": rare(token=b"short")},
        {"options": rare(token=5)},
        {"options": rare(token="x" * 32)},
        {"precision": "half"},
        {"options": rare(preemption_quantum_ms=0)},
        {"options": rare(preemption_quantum_ms=float("nan"))},
        {"options": rare(preemption_quantum_ms="1")},
        {"preference": 99},
        {"preference": "FAST"},
        {"priority": 99},
        {"priority": "HIGH"},
        {"cache_dir": 5},
    ],
    ids=KIND,
)
async def test_an_option_that_makes_no_sense_is_refused(options: dict[str, Any]) -> None:
    async with runtime() as rt:
        with pytest.raises(InvalidArgument):
            await rt.compile(doubler(), **options)
        assert rt.statistics().nets == 0


async def test_options_that_make_sense_are_taken() -> None:
    async with runtime() as rt:
        net = await rt.compile(
            doubler(),
            devices=[REFERENCE],
            preference=nn.Preference.LOW_POWER,
            priority=nn.Priority.HIGH,
            deadline=nn.within(s=3600),
            precision="exact",
            options=nn.CompileOptions(token=bytes(32), preemption_quantum_ms=2.0),
        )
        assert (await net(ROW)).tolist() == [[2, 4, 6, 8]]


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"priority": "high"}, "'high' is none of Priority.LOW, Priority.MEDIUM, Priority.HIGH"),
        ({"preference": "fast"}, "'fast' is none of ExecutionPreference.LOW_POWER, "),
    ],
)
async def test_a_choice_that_is_none_is_told_with_those_that_are(
    said: dict[str, Any], told: str
) -> None:
    async with runtime() as rt:
        with pytest.raises(InvalidArgument, match=told):
            await rt.compile(doubler(), **said)
