"""A model as text and as a graph; the memory plan as text."""

from __future__ import annotations

import re

import numpy as np
import pytest

from nnasync.drivers.cpu import MemoryPlan, PlannedBlock, memory_plan
from nnasync.dump import model_dot, model_text, plan_text
from nnasync.hal import ChannelQuant, Model, OperandType, OperationType
from nnasync.model import ModelBuilder
from tests.validation.models import EXAMPLE, branching, changed, looping, replace


def lines(text: str, containing: str) -> list[str]:
    return [line for line in text.splitlines() if containing in line]


def test_text_tells_operations_with_their_arguments() -> None:
    text = model_text(EXAMPLE)
    assert text.startswith("model 'example'\n  first in HAL 1.0\n")
    assert "main subgraph: 7 operands, 2 operations" in text
    (add,) = lines(text, "= ADD(")
    assert re.fullmatch(r'\s+0  %\d "[^"]+" = ADD\(a=%0, b=%1, activation=0\)', add)
    assert 'state %1 "h" becomes' in text


def test_text_tells_of_each_operand_who_writes_and_reads_it() -> None:
    total = ModelBuilder("reading")
    x = total.input("x", (2, 0))
    twice = total.add(x, x)
    total.output("y", total.mul(twice, x))
    text = model_text(total.build())
    (row,) = lines(text, '%0 "x"')
    assert re.fullmatch(r'\s+%0 "x" +TENSOR_FLOAT32 +2x\? +input +\? +0, 0, 1', row)
    (row,) = lines(text, '"y" ')[1:]
    assert row.endswith("1")


def test_text_tells_quantisation_ranks_and_pools() -> None:
    m = ModelBuilder()
    q = {"type": OperandType.TENSOR_QUANT8_ASYMM, "scale": 0.5, "zero_point": 3}
    w = m.constant(
        np.ones((2, 1, 1, 1), np.int8),
        channel_quant=ChannelQuant((0.25, 0.75), 0),
        name="w",
    )
    x = m.input("x", (1, 1, 1, 1), **q)  # type: ignore[arg-type]
    y = m.operation(OperationType.DEQUANTIZE, w)
    m.output("y", y)
    m.output("z", m.relu(x))
    model = m.build()
    text = model_text(model)
    assert "scale 0.5 zero point 3" in text
    assert "2 scales 0.25 to 0.75 along 0" in text
    assert "first in HAL 1.2" in text
    anyhow = model_text(changed(changed(EXAMPLE, 0, dimensions=()), 0, name="x\x1b[2J\n"))
    assert "any rank" in anyhow
    assert '%0 "x?[2J?"' in anyhow


def test_text_has_all_subgraphs() -> None:
    text = model_text(looping())
    assert "referenced subgraph 0: " in text
    assert "referenced subgraph 1: " in text
    assert "= WHILE(subgraph 0, subgraph 1, %2" in text
    assert "= LESS(" in text


STATEMENT = re.compile(
    r"""\s*(
    digraph\ "(\\.|[^"\\])*"\ \{ | subgraph\ cluster_\d+\ \{ | \} | compound=true; |
    label="[^"]*"; |
    (node|edge|[a-z]\w*(\ ->\ [a-z]\w*)?)(\ \[(\w+=("(\\.|[^"\\])*"|[\w#]+)(,\ )?)+\])?;
    )""",
    re.VERBOSE,
)


@pytest.mark.parametrize(
    "model",
    [EXAMPLE, looping(), branching(), replace(EXAMPLE, name='odd "name" \\ {')],
    ids=["example", "while", "if", "odd"],
)
def test_graph_is_a_digraph(model: Model) -> None:
    text = model_dot(model)
    assert [line for line in text.splitlines() if not STATEMENT.fullmatch(line)] == []
    assert text.count("{\n") == text.count("}\n")
    nodes = set(re.findall(r"^\s*(\w+) \[", text, re.MULTILINE))
    edges = re.findall(r"^\s*(\w+) -> (\w+)", text, re.MULTILINE)
    assert edges
    assert {end for edge in edges for end in edge} <= nodes


def test_graph_has_the_model_s_edges() -> None:
    text = model_dot(EXAMPLE)
    edges = set(re.findall(r"^\s*(\w+) -> (\w+)", text, re.MULTILINE))
    total = EXAMPLE.main.operations[0].outputs[0]
    assert {("min0", "m0"), ("min1", "m0"), ("m0", "m1"), ("m1_c1", "m1")} <= edges
    assert ("m0", f"mout{total}") in edges or total not in EXAMPLE.main.output_indexes
    assert "1 MUL\\nactivation 0" in text
    called = set(re.findall(r"-> s(\d) \[style=dashed", model_dot(branching())))
    assert called == {"0", "1"}


def test_plan_has_bytes_and_bars() -> None:
    plan = MemoryPlan(
        blocks=(
            PlannedBlock("y", 64, 1, 2, 0),
            PlannedBlock("x", 128, -1, 0, 0),
            PlannedBlock("h", 64, 0, 1, 128),
        ),
        operations=("ADD", "MUL"),
        total=192,
        unshared=256,
        lower_bound=160,
    )
    text = plan_text(plan)
    assert "shared       192 bytes\n" in text
    assert "unshared     256 bytes; sharing saves 25.0%\n" in text
    assert "160 bytes alive at once; shared is 1.20 times that" in text
    assert [line.split() for line in text.splitlines()[-3:]] == [
        ["x", "128", "0", "-1..0", "##.."],
        ["h", "64", "128", "0..1", ".##."],
        ["y", "64", "0", "1..2", "..##"],
    ]


def test_long_plans_have_bars_that_fit() -> None:
    blocks = tuple(PlannedBlock(f"b{i}", 1, i, i, 0) for i in range(1000))
    text = plan_text(MemoryPlan(blocks, ("ADD",) * 1000, 1, 1000, 1))
    bars = [line.split()[-1] for line in text.splitlines()[-1000:]]
    assert {len(bar) for bar in bars} == {64}
    assert all(1 <= bar.count("#") <= 2 for bar in bars)
    assert [bar.index("#") for bar in bars] == sorted(bar.index("#") for bar in bars)


def test_plan_of_a_model() -> None:
    plan = memory_plan(EXAMPLE)
    text = plan_text(plan)
    assert f"shared       {plan.total} bytes" in text
    assert len(text.splitlines()) == 7 + len(plan.blocks)
    assert plan_text(MemoryPlan((), (), 0, 0, 0)).startswith("memory of one execution\n")
