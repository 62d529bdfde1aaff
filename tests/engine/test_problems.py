"""What is missing of an engine, a plan and a bound call is named, where it is first seen."""

from __future__ import annotations

from typing import Any

import pytest

import nnasync as nn
from nnasync._core.drivers.cpu import ReferenceEngine
from nnasync._core.drivers.null import NullEngine
from nnasync.engine import BoundCall, EngineBase, Plan, problems
from nnasync.errors import GeneralFailure, InvalidArgument
from nnasync.hal import (
    Capabilities,
    DeviceType,
    ExecutionPreference,
    Model,
    PerformanceInfo,
    lookup,
)
from tests.rigs import REFERENCE, ROW, double, doubler, runtime

pytestmark = [
    pytest.mark.one_loop("Problems are the same on every loop."),
    pytest.mark.anyio,
    pytest.mark.usefixtures("no_leaks"),
    pytest.mark.filterwarnings("ignore:network .* was dropped:ResourceWarning"),
]

MEMBERS = (
    "name",
    "version",
    "type",
    "capabilities",
    "supported_operations",
    "compile",
)


OPTIONAL = (
    "caches_late",
    "concurrency",
    "extensions",
    "get_ready",
    "loading_ns",
    "loads_in_ms",
    "tries_ahead",
    "why_not",
)


_OF_A_CALL = "reads_given", "rewind", "run"


class Part:
    """An object that has some attributes of another one."""

    def __init__(self, whole: Any, *names: str) -> None:
        for name in names:
            setattr(self, name, getattr(whole, name))


class PartEngine(Part, EngineBase):
    """An engine that lacks what a test says."""

    def supported_operations(self, model: Any) -> list[bool]:
        """All."""
        return [True] * len(model.main.operations)


def engine_without(*missing: str) -> Any:
    names = {name for name in MEMBERS if name not in (*missing, "supported_operations")}
    return PartEngine(NullEngine(), *names)


@pytest.mark.parametrize("engine", [NullEngine(), ReferenceEngine()])
def test_whole_engines_have_no_problems(engine: Any) -> None:
    assert problems(engine) == ()


@pytest.mark.parametrize("name", [name for name in MEMBERS if name != "supported_operations"])
def test_what_is_missing_is_named(name: str) -> None:
    assert problems(engine_without(name)) == (f"it has no `{name}`",)


def test_all_that_is_missing_is_named_at_once() -> None:
    found = problems(engine_without("capabilities", "version"))
    assert found == ("it has no `capabilities`", "it has no `version`")


def test_what_an_engine_would_inherit_is_named() -> None:
    whole = Part(NullEngine(), *MEMBERS)
    assert problems(whole) == tuple(
        f"it has no `{name}` (engines inherit it from EngineBase)" for name in OPTIONAL
    )


def test_what_is_no_method_and_what_fails_is_named() -> None:
    class Odd(NullEngine):
        compile = 5  # type: ignore[assignment]  # the mistake of the test

        @property
        def type(self) -> Any:
            raise RuntimeError("no card")

        @type.setter
        def type(self, value: Any) -> None:
            """The base sets it."""

    assert problems(Odd()) == (
        "its `compile` is no method but int",
        "its `type` fails: RuntimeError: no card",
    )


def test_a_class_is_not_yet_an_engine() -> None:
    assert problems(NullEngine) == ("it is a class: make one of it, NullEngine()",)


@pytest.mark.parametrize("name", ["cache_files", "serialize", "deserialize"])
def test_half_a_cache_is_a_problem(name: str) -> None:
    engine = engine_without()
    setattr(engine, name, (1, 1))
    assert len(problems(engine)) >= 2
    assert all(
        "an engine that caches needs" in each or "no method" in each for each in problems(engine)
    )


def test_lowerings_need_cores() -> None:
    engine = engine_without()
    engine.lowerings = lambda model, preference: ()
    assert problems(engine) == ("it has no `cores` (an engine with `lowerings` needs it)",)


@pytest.mark.parametrize("missing", ["capabilities", "version", "compile"])
async def test_opening_a_runtime_tells(missing: str) -> None:
    with pytest.raises(InvalidArgument, match=rf"PartEngine is no Engine: it has no `{missing}`"):
        async with runtime(engine_without(missing)):
            pass


async def test_opening_a_runtime_with_a_class_tells() -> None:
    with pytest.raises(InvalidArgument, match=r"make one of it, NullEngine\(\)"):
        async with runtime(NullEngine):
            pass


async def test_an_engine_where_a_device_is_due_tells() -> None:
    async with runtime(REFERENCE) as rt:
        wrong: Any = NullEngine()
        with pytest.raises(InvalidArgument, match="an engine is given to open_runtime"):
            await rt.compile(doubler(), devices=[wrong])


async def no_answer(*_: Any) -> Any:
    """A coroutine function, in place of a method."""


@pytest.mark.parametrize("name", ["supported_operations", "compile", "why_not", "get_ready"])
def test_a_coroutine_function_is_a_problem(name: str) -> None:
    engine = NullEngine()
    setattr(engine, name, no_answer)
    told = f"its `{name}` is a coroutine function: it must be a plain one"
    assert problems(engine) == (told,)


async def test_coroutine_functions_of_plans_and_calls_are_told() -> None:
    class Async(NullEngine):
        def __init__(self, kind: str, name: str) -> None:
            super().__init__("async")
            self.wrong = kind, name

        def compile(self, model: nn.Model, preference: Any) -> Any:
            inner = super().compile(model, preference)
            plan: Any = Part(inner, "kept_in", "reads_in_place", "trim")
            plan.bind = lambda i, o: self.spoilt("call", Part(inner.bind(i, o), *_OF_A_CALL))
            return self.spoilt("plan", plan)

        def spoilt(self, kind: str, thing: Any) -> Any:
            if kind == self.wrong[0]:
                setattr(thing, self.wrong[1], no_answer)
            return thing

    for kind, name in (("plan", "bind"), ("plan", "trim"), ("call", "run"), ("call", "rewind")):
        async with runtime(Async(kind, name)) as rt:
            with pytest.raises(GeneralFailure, match=f"its `{name}` is a coroutine function"):
                net = await rt.compile(doubler())
                await net(ROW)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("concurrency", None),
        ("concurrency", "2"),
        ("concurrency", -1),
        ("concurrency", 1.5),
        ("loads_in_ms", None),
        ("loads_in_ms", float("nan")),
        ("cache_files", None),
        ("cache_files", 1),
        ("cache_files", ("1", "1")),
        ("cache_files", (1, -1)),
    ],
)
def test_numbers_that_make_no_sense_are_problems(name: str, value: Any) -> None:
    engine = NullEngine()
    setattr(engine, name, value)
    (told,) = problems(engine)
    assert told.startswith(f"its `{name}` is {value!r}: it must be ")


class Incomplete(NullEngine):
    """Gives plans, or calls, that lack something."""

    def __init__(self, plan: Any = None, call: Any = None) -> None:
        super().__init__("incomplete")
        self.plan, self.call = plan, call

    def compile(self, model: nn.Model, preference: Any) -> Any:
        """A plan of which only some is there."""
        inner = super().compile(model, preference)
        if self.plan is not None:
            return None if not self.plan else Part(inner, *self.plan)
        whole: Any = Part(inner, "kept_in", "reads_in_place", "trim")
        parts = self.call
        whole.bind = lambda i, o: Part(inner.bind(i, o), *parts) if parts else None
        return whole


INHERITED = "it has no `kept_in`; it has no `reads_in_place`; it has no `trim`"
PLANS = [
    ((), f"which is no Plan: it has no `bind`; {INHERITED}"),
    (("bind",), f"compile gave Part, which is no Plan: {INHERITED}"),
    (("trim",), "compile gave Part, which is no Plan: it has no `bind`"),
]
CALLS = [
    ((), "bind gave None, which is no BoundCall: it has no `reads_given`; it has no `rewind`"),
    (
        ("run",),
        "bind gave Part, which is no BoundCall: it has no `reads_given`; it has no `rewind`",
    ),
]


@pytest.mark.parametrize(("parts", "told"), PLANS)
async def test_an_incomplete_plan_is_told_when_it_was_compiled(parts: Any, told: str) -> None:
    async with runtime(Incomplete(plan=parts)) as rt:
        with pytest.raises(GeneralFailure, match=told):
            await rt.compile(doubler())


@pytest.mark.parametrize(("parts", "told"), CALLS)
async def test_an_incomplete_call_is_told_when_it_was_bound(parts: Any, told: str) -> None:
    async with runtime(Incomplete(call=parts)) as rt:
        with pytest.raises(GeneralFailure, match=told):
            net = await rt.compile(doubler())
            await net(ROW)


@pytest.mark.parametrize("kind", ["plan", "call"])
async def test_a_class_in_place_of_a_plan_or_a_call_is_told(kind: str) -> None:
    class Classes(NullEngine):
        def compile(self, model: nn.Model, preference: Any) -> Any:
            if kind == "plan":
                return Plan
            whole: Any = Part(
                super().compile(model, preference), "kept_in", "reads_in_place", "trim"
            )
            whole.bind = lambda i, o: BoundCall
            return whole

    told = r"gave the class \w+, which is no \w+: it is a class: make one of it"
    async with runtime(Classes()) as rt:
        with pytest.raises(GeneralFailure, match=told):
            net = await rt.compile(doubler())
            await net(ROW)


async def test_beside_the_reference_nothing_incomplete_costs_an_answer() -> None:
    for wrong in (Incomplete(plan=("bind",)), Incomplete(call=("run",))):
        async with runtime(wrong, REFERENCE) as rt:
            net = await rt.compile(doubler())
            assert (await net(ROW)).tolist() == [[2, 4, 6, 8]]
            report = net.report()
            told = [each.reason for each in report.rejections]
            told += [each.reason for each in report.fallbacks]
            assert any("it has no `" in each for each in told)


async def test_six_members_are_an_engine() -> None:
    class Least(EngineBase):
        name, version, type = "least", "1", DeviceType.CPU
        capabilities = Capabilities()

        def supported_operations(self, model: Model) -> list[bool]:
            return [True] * len(model.main.operations)

        def compile(self, model: Model, preference: ExecutionPreference) -> Plan:
            return NullEngine(compute=double).compile(model, preference)

    assert problems(Least()) == ()
    async with runtime(Least()) as rt:
        net = await rt.compile(doubler())
        assert (await net(ROW) == 2 * ROW).all()
        capabilities = await rt.device("least").get_capabilities()
        assert lookup(capabilities.operand_performance, 3) == PerformanceInfo()
