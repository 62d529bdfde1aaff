"""Choices and pins: what reproduces a compilation, as a string."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import nnasync as nn
from nnasync._core.compilation.choice import Choice, Part, parse_pin, pin_of, spread, tell_lowering
from nnasync.engine import Lowering
from nnasync.errors import InvalidArgument
from tests.compilation.rig import REFERENCE, FakeEngine, ManualClock, competing, way
from tests.compilation.rig import clock as clock
from tests.rigs import ROW, calculator, doubler

pytestmark = [
    pytest.mark.filterwarnings("ignore:network .* was dropped:ResourceWarning"),
    pytest.mark.one_loop("A choice is the same on every loop."),
]

DIGEST = "0123456789abcdef"
_texts = st.text(min_size=1, max_size=12)
_parts = st.builds(Part, _texts, _texts, _texts, st.integers(1, 256))


@st.composite
def choices(draw: st.DrawFn) -> Choice:
    """Choices as compilations make them."""
    parts = tuple(draw(st.lists(_parts, min_size=1, max_size=4)))
    if len(parts) == 1:
        return Choice(parts)
    runs = st.tuples(st.integers(0, len(parts) - 1), st.integers(1, 50))
    return Choice(parts, tuple(draw(st.lists(runs, min_size=1, max_size=6))))


@given(choices())
def test_a_pin_says_the_choice(choice: Choice) -> None:
    assert parse_pin(pin_of(choice, DIGEST), DIGEST) == choice


@given(st.one_of(st.text(), st.from_regex(r"([a-z]*:){1,9}[0-9x,]*:0123456789abcdef")))
def test_what_is_no_pin_is_refused_or_read(text: str) -> None:
    try:
        assert isinstance(parse_pin(text, DIGEST), Choice)
    except InvalidArgument as error:
        assert "pin" in str(error)


@pytest.mark.parametrize(
    "pin",
    [
        "",
        "x",
        DIGEST,
        f"a:1:f32:{DIGEST}",
        f"a:1:f32:-1:{DIGEST}",
        f"a:1:f32:1e3:{DIGEST}",
        f"a:1:f32:99999999:{DIGEST}",
        f"a:1:f32:1:0x5:{DIGEST}",
        f"a:1:f32:1:b:1:f32:1:{DIGEST}",
        f"a:1:f32:1:b:1:f32:1:2x5:{DIGEST}",
        f"a:1:f32:1:b:1:f32:1:0x5,1:{DIGEST}",
        "a" * 200_000,
    ],
)
def test_a_pin_that_makes_no_sense_is_refused(pin: str) -> None:
    with pytest.raises(InvalidArgument, match="pin"):
        parse_pin(pin, DIGEST)


def test_a_pin_for_another_model_says_so() -> None:
    pin = pin_of(Choice((Part("a", "1"),)), "f" * 16)
    with pytest.raises(InvalidArgument, match=f"another model.*{DIGEST}"):
        parse_pin(pin, DIGEST)


def test_runs_of_an_assignment() -> None:
    assert spread([0, 0, 1, 0]) == ((0, 2), (1, 1), (0, 1))
    assert spread([]) == ()


def test_lowerings_in_words() -> None:
    assert tell_lowering(None) == "whole model"
    assert tell_lowering(Lowering("bf16", threads=2)) == "bf16, 2 threads"


# -- following a pin

asynchronous = [pytest.mark.anyio, pytest.mark.usefixtures("no_leaks")]


def engines(clock: ManualClock) -> tuple[FakeEngine, FakeEngine]:
    return (
        FakeEngine("a", clock, way(us=100), way("int8", us=50)),
        FakeEngine("b", clock, way(us=10), way("bf16", us=1, reduces_precision=True)),
    )


@pytest.mark.anyio
async def test_a_pin_reproduces_the_choice(clock: ManualClock) -> None:
    a, b = engines(clock)
    async with competing(a, b) as rt:
        first = await rt.compile(doubler(), devices=["a"])
        pin = first.report().pin
        assert pin.startswith("a:1:int8:1:")
        measured = clock.now_ns
        a.compiled.clear()
        again = await rt.compile(doubler(), options=nn.CompileOptions(pin=pin))
        assert again.report().pin == pin
        assert again.report().partitions[0].reason == "pinned"
        assert (a.compiled, clock.now_ns) == (["int8*1"], measured)
        assert (await again(ROW)).tolist() == [[2, 4, 6, 8]]


@pytest.mark.anyio
async def test_a_pin_that_does_not_fit_says_what_differs(clock: ManualClock) -> None:
    a, b = engines(clock)
    async with competing(a, b, REFERENCE) as rt:
        pin = (await rt.compile(doubler(), devices=["a"])).report().pin
        with pytest.raises(InvalidArgument, match="another model"):
            await rt.compile(calculator(), options=nn.CompileOptions(pin=pin))
        with pytest.raises(InvalidArgument, match="names the device a, .*among: b"):
            await rt.compile(doubler(), options=nn.CompileOptions(pin=pin), devices=["b"])
        a.version = "2"
        with pytest.raises(InvalidArgument, match="version 1 of a, here is version 2"):
            await rt.compile(doubler(), options=nn.CompileOptions(pin=pin))
        a.version = "1"
        a.ways.pop()
        with pytest.raises(InvalidArgument, match="a with int8.* not offered.*a with f32"):
            await rt.compile(doubler(), options=nn.CompileOptions(pin=pin))
        with pytest.raises(InvalidArgument, match="reduces precision"):
            await rt.compile(
                doubler(), options=nn.CompileOptions(pin=pin.replace("a:1:int8", "b:1:bf16"))
            )


@pytest.mark.anyio
@pytest.mark.parametrize("pin", [5, b"x", ["a"], "", "nonsense"])
async def test_what_is_no_pin_is_refused(pin: Any) -> None:
    async with nn.open_runtime(devices=[REFERENCE]) as rt:
        with pytest.raises(InvalidArgument, match="pin"):
            await rt.compile(doubler(), options=nn.CompileOptions(pin=pin))
