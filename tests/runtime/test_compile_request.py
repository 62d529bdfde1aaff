"""Rare settings of a compilation, and the keywords that they were before."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import nnasync as nn
from nnasync._core.runtime import compile_request
from nnasync._core.runtime.compile_request import spec_fields, taking_old_keywords
from nnasync.errors import InvalidArgument
from tests.rigs import ROW, doubler, runtime

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("no_leaks")]


@taking_old_keywords
def given(*, options: nn.CompileOptions | None = None) -> nn.CompileOptions | None:
    return options


old: Any = given


def test_old_keywords_become_fields() -> None:
    assert given() is None
    with pytest.warns(DeprecationWarning, match=r"CompileOptions\(wait=") as caught:
        assert old(optimise_after=3) == nn.CompileOptions(wait="first")
    assert caught[0].filename == __file__
    with pytest.warns(DeprecationWarning, match="pin="):
        found = old(pin="a", options=nn.CompileOptions(token=bytes(32)))
    assert found == nn.CompileOptions(pin="a", token=bytes(32))
    with pytest.raises(TypeError):
        old(pim="a")


async def test_a_model_is_compiled_with_old_keywords() -> None:
    assert "options" in inspect.signature(nn.Runtime.compile).parameters
    async with runtime() as rt:
        first = await rt.compile(doubler())
        compile: Any = rt.compile
        with pytest.warns(DeprecationWarning, match=r"CompileOptions\(pin=") as caught:
            net = await compile(doubler(), pin=first.report().pin)
        assert caught[0].filename == __file__
        assert (await net(ROW)).tolist() == (2 * ROW).tolist()


async def test_options_are_of_their_type() -> None:
    async with runtime() as rt:
        with pytest.raises(InvalidArgument, match="CompileOptions"):
            await rt.compile(doubler(), options={"pin": "a"})  # type: ignore[arg-type]  # the mistake


async def test_the_older_form_of_the_first_answer_warns() -> None:
    with pytest.warns(DeprecationWarning, match='wait="first"') as caught:
        options = nn.CompileOptions(optimize_after=3)
    assert caught[0].filename == __file__
    assert spec_fields(options)["wait"] == "first"
    assert spec_fields(nn.CompileOptions())["wait"] == compile_request.DEFAULT_WAIT


async def test_what_to_wait_for_is_checked() -> None:
    wrong: Any = "second"
    async with runtime() as rt:
        with pytest.raises(InvalidArgument, match="wait must be 'first' or 'best', got 'second'"):
            await rt.compile(doubler(), options=nn.CompileOptions(wait=wrong))
