"""What objects say of themselves, in a terminal and in a notebook."""

from __future__ import annotations

import asyncio
import re

import pytest

import nnasync as nn
from nnasync._core.notebook import html_lines, html_table
from nnasync.errors import BadState
from nnasync.streaming.account import Account, Latency, StreamStatistics
from tests import rigs

REFERENCE = [rigs.REFERENCE]


def test_what_others_wrote_is_escaped() -> None:
    told = html_table(["<b>"], [["<script>", 1]], title="a & b") + html_lines("<i>", ["<u>"])
    assert re.findall(r"<(?!/?(?:table|thead|tbody|caption|tr|th|td|p|ul|li)>)", told) == []
    assert "&lt;script&gt;" in told
    assert "a &amp; b" in told
    assert html_lines("nothing", []) == ""


def test_a_model_says_what_it_takes_and_gives() -> None:
    model = rigs.calculator()
    assert repr(model) == (
        "<Model 'calculator': 2 operations, a tensor_float32 [1, 4], b tensor_float32 [1, 4] -> "
        "sum tensor_float32 [1, 4], product tensor_float32 [1, 4]>"
    )
    assert model._repr_html_().count("<tr>") == 5


@pytest.mark.anyio
async def test_a_runtime_and_its_networks_say_where_they_are() -> None:
    runtime = nn.open_runtime(devices=REFERENCE)
    assert repr(runtime) == "<Runtime new: no devices yet; 0 networks>"
    async with runtime:
        net = await runtime.compile(rigs.counter())
        assert repr(runtime) == "<Runtime open: nnasync-reference; 1 network>"
        assert repr(net) == (
            "<Net 'counter' on nnasync-reference: x float32[1, 4] -> y float32[1, 4], 1 state>"
        )
        assert "nnasync-reference" in net._repr_html_()
        assert "<td>nnasync-reference</td>" in runtime._repr_html_()
        assert "&lt;Net &#x27;counter&#x27;" in runtime._repr_html_()
        assert repr(net.report()).startswith("<Report: runs on nnasync-reference")
        async with net.burst() as burst:
            await burst(rigs.ONES)
            assert repr(burst) == (
                "<Burst of 'counter', open: x float32[1, 4] -> y float32[1, 4], 1 state; "
                "1 of 1 calls succeeded>"
            )
            assert "<tr><td>state</td><td>total" in burst._repr_html_()
        await net.aclose()
        assert "closed" in repr(net)
    assert repr(runtime).startswith("<Runtime closed")
    assert "Networks" not in runtime._repr_html_()


def test_what_blocks_says_the_same() -> None:
    runtime = nn.sync.open_runtime(devices=REFERENCE)
    assert runtime._repr_html_() is None  # Jupyter takes the line.
    with runtime, runtime.compile(rigs.doubler()) as net, net.burst() as burst:
        assert "<td>nnasync-reference</td>" in str(runtime._repr_html_())
        assert "nnasync-reference" in net._repr_html_()
        assert "Burst of" in burst._repr_html_()


def test_a_notebook_awaits_a_runtime_in_one_cell_and_closes_it_in_another() -> None:
    """Each cell is a task of its own on a loop that stays."""
    with asyncio.Runner() as runner:

        async def opened() -> nn.Runtime:
            return await nn.open_runtime(devices=REFERENCE)

        async def called(rt: nn.Runtime) -> float:
            async with rt.compile(rigs.doubler()) as net:
                return float((await net(rigs.ONES))[0, 0])

        rt = runner.run(opened())
        assert runner.run(called(rt)) == 2
        runner.run(rt.aclose())
        runner.run(rt.aclose())
        with pytest.raises(BadState):
            runner.run(called(rt))


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["trio"])
async def test_on_trio_a_runtime_is_opened_by_a_block() -> None:
    with pytest.raises(BadState, match="async with"):
        await nn.open_runtime(devices=REFERENCE)


def test_an_account_says_its_sum() -> None:
    account = Account(submitted=31, completed=28, missed=2, pending=1)
    assert str(account) == "submitted 31 = completed 28 + missed 2 + pending 1"
    assert repr(account) == "Account(submitted=31, completed=28, missed=2, pending=1)"
    assert str(Account()) == "submitted 0 = 0"
    assert re.findall(r"<t[hd]>(\w+)</t[hd]><t[hd]>(\d+)", account._repr_html_()) == [
        ("submitted", "31"),
        ("completed", "28"),
        ("missed", "2"),
        ("pending", "1"),
    ]


def test_statistics_say_their_latencies_in_milliseconds() -> None:
    latency = Latency(28, 1_500_000, 2_000_000, 3_250_000, 4_000_000)
    statistics = StreamStatistics(Account(submitted=30, completed=28, missed=2), latency, 30, 28)
    assert str(statistics) == (
        "submitted 30 = completed 28 + missed 2; "
        "latency p50 1.50, p90 2.00, p99 3.25, max 4.00 ms of 28; 28 of 30 deadlines met"
    )
    assert "<td>93.33%</td>" in statistics._repr_html_()
    assert "deadlines" not in str(StreamStatistics())
