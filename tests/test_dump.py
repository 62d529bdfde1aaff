"""A model and a plan as text and as graphs; the memory plan as text."""

from __future__ import annotations

import io
import logging
import re

import numpy as np
import pytest

from nnasync._core.compilation.choice import Choice, Part, pin_of, spread
from nnasync._core.drivers.cpu.plan import memory_plan
from nnasync._core.model import ModelBuilder
from nnasync._core.partition import INTERPRETER, distribute
from nnasync._core.plans.arena import MemoryPlan, PlannedBlock
from nnasync.dump import graph_dump, memory_text, model_dot, model_text
from nnasync.dump.memory import memory_plan_text
from nnasync.dump.plan_graphs import outline_dot
from nnasync.dump.plans import outline, steps_text
from nnasync.errors import InvalidArgument
from nnasync.hal import ChannelQuant, Model, OperandType, OperationType
from tests.partition.control_flow_models import RandomNest, counting, everything
from tests.partition.control_flow_models import branching as shared_branches
from tests.partition.models import summed
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


def test_text_tells_quantization_ranks_and_pools() -> None:
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
    digraph\ "(\\.|[^"\\])*"\ \{ | subgraph\ cluster_\w+\ \{ | \} | compound=true; |
    label="[^"]*"; |
    style=filled;\ fillcolor="\#\w+"; | style=dashed;\ fillcolor="\#\w+"; |
    (node|edge|[a-z]\w*(\ ->\ [a-z]\w*)?)(\ \[(\w+=("(\\.|[^"\\])*"|[\w#]+)(,\ )?)+\])?;
    )""",
    re.VERBOSE,
)


def assert_is_graph(text: str) -> None:
    """Lines of Graphviz, whose arrows end at nodes that there are."""
    assert [line for line in text.splitlines() if not STATEMENT.fullmatch(line)] == []
    assert text.count("{\n") == text.count("}\n")
    nodes = re.findall(r"^\s*(\w+) \[", text, re.MULTILINE)
    edges = re.findall(r"^\s*(\w+) -> (\w+)", text, re.MULTILINE)
    assert edges
    assert {end for edge in edges for end in edge} <= set(nodes)
    assert len(set(nodes)) == len(nodes)
    clusters = re.findall(r"subgraph (\w+)", text)
    assert len(set(clusters)) == len(clusters)
    assert set(re.findall(r"lhead=(\w+)", text)) <= set(clusters)


@pytest.mark.parametrize(
    "model",
    [EXAMPLE, looping(), branching(), replace(EXAMPLE, name='odd "name" \\ {')],
    ids=["example", "while", "if", "odd"],
)
def test_graph_is_a_digraph(model: Model) -> None:
    text = model_dot(model)
    assert_is_graph(text)


def test_a_graph_goes_to_a_stream(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="nnasync.dump")
    stream = io.StringIO()
    graph_dump("mine", EXAMPLE, stream)
    assert stream.getvalue() == model_dot(replace(EXAMPLE, name="mine"))
    assert stream.getvalue().startswith('digraph "mine" {')
    assert caplog.records == []


def test_a_graph_goes_to_the_log_without_a_stream(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.INFO, logger="nnasync.dump")
    graph_dump("100%s", EXAMPLE)
    assert {(each.name, each.levelname) for each in caplog.records} == {("nnasync.dump", "INFO")}
    assert "\n".join([*caplog.messages, ""]) == model_dot(replace(EXAMPLE, name="100%s"))
    assert capsys.readouterr().out == ""


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
    text = memory_plan_text(plan)
    assert "shared       192 bytes\n" in text
    assert "unshared     256 bytes; sharing saves 25.0%\n" in text
    assert "160 bytes alive at once; shared is 1.20 times that" in text
    assert [line.split() for line in text.splitlines()[-3:]] == [
        ["x", "128", "0", "start..0", "##.."],
        ["h", "64", "128", "0..1", ".##."],
        ["y", "64", "0", "1..end", "..##"],
    ]


@pytest.mark.parametrize("size", [1, 3, 16, 1000])
def test_sharing_is_never_told_to_cost(size: int) -> None:
    """What alignment takes is counted with sharing and without."""
    builder = ModelBuilder("chain")
    x = builder.input("x", (1, size))
    for _ in range(5):
        x = builder.tanh(x)
    builder.output("y", x)
    plan = memory_plan(builder.build())
    assert plan.lower_bound <= plan.total <= plan.unshared
    assert "saves -" not in memory_plan_text(plan)


def test_long_plans_have_bars_that_fit() -> None:
    blocks = tuple(PlannedBlock(f"b{i}", 1, i, i, 0) for i in range(1000))
    text = memory_plan_text(MemoryPlan(blocks, ("ADD",) * 1000, 1, 1000, 1))
    bars = [line.split()[-1] for line in text.splitlines()[-1000:]]
    assert {len(bar) for bar in bars} == {64}
    assert all(1 <= bar.count("#") <= 2 for bar in bars)
    assert [bar.index("#") for bar in bars] == sorted(bar.index("#") for bar in bars)


def test_plan_of_a_model() -> None:
    plan = memory_plan(EXAMPLE)
    text = memory_text(EXAMPLE)
    assert f"shared       {plan.total} bytes" in text
    assert len(text.splitlines()) == 7 + len(plan.blocks)
    assert memory_plan_text(MemoryPlan((), (), 0, 0, 0)).startswith("memory of one execution\n")


# -- plans

FAST, SLOW = Part("fast", "2.1", "int8", 2), Part("slow", "1")


def plan(model: Model, choice: Choice) -> str:
    return pin_of(choice, "0123456789abcdef")


def test_plan_of_one_device() -> None:
    model = summed([(0, 0), (1, 0)])
    found = outline(model, plan(model, Choice((FAST,))))
    assert steps_text(found).splitlines() == [
        "plan of summed: 1 step",
        "  fast 2.1, int8, 2 threads: 1 step, 2 operations",
        "",
        "step 0: fast, int8, 2 threads",
        "  runs      0 ADD, 1 MUL",
        '  reads     %0 "x" TENSOR_FLOAT32 1x4, 16 bytes, input 0',
        '  writes    %4 "y2" TENSOR_FLOAT32 1x4, 16 bytes, output 0',
        "",
        "borders: 0 values, 0 bytes",
    ]
    assert_is_graph(outline_dot(found))


def test_plan_tells_what_crosses_borders() -> None:
    model = summed([(0, 0), (1, 1), (1, 2)])
    found = outline(model, plan(model, Choice((FAST, SLOW), ((0, 1), (1, 1), (0, 1)))))
    told = steps_text(found)
    assert "  slow 1, its only way: 1 step, 1 operation" in told
    first = found.partitioned.model.main.operations[0].outputs[0]
    assert f"  writes    %{first} TENSOR_FLOAT32 1x4, 16 bytes, to steps 1, 2" in told
    assert f"  reads     %{first} TENSOR_FLOAT32 1x4, 16 bytes, from step 0" in told
    assert told.endswith("borders: 2 values, 32 bytes\n")
    graph = outline_dot(found)
    assert_is_graph(graph)
    assert 'm0 -> m1 [label="16 bytes", style=bold];' in graph
    colors = re.findall(r'label="step \d: (\w+).*\n.*fillcolor="(.*)"', graph)
    assert [device for device, _ in colors] == ["fast", "slow", "fast"]
    assert len({color for _, color in colors}) == 2


def test_plan_shows_what_is_inside_control_flow() -> None:
    model = shared_branches()
    bodies = ((0, ((0, 1), (1, 1))), (1, ((1, 2),)))
    found = outline(model, plan(model, Choice((FAST, SLOW), ((0, 1), (2, 1), (0, 1)), bodies)))
    told = steps_text(found).splitlines()
    start = told.index("step 1: control-flow interpreter")
    assert told[start + 1] == "  runs      1 IF"
    inside = told[start:]
    assert "  then: subgraph 0" in inside
    assert "    step 1: slow, its only way" in inside
    assert "  else: subgraph 1" in inside
    assert "      runs      0 MUL, 1 MUL" in inside
    assert told[0] == "plan of branching: 6 steps"
    graph = outline_dot(found)
    assert_is_graph(graph)
    assert "m1 -> m1then_0 [style=dashed, lhead=cluster_m1then_];" in graph
    assert "subgraph cluster_m1else_0 {" in graph


@pytest.mark.parametrize("seed", range(4))
def test_plans_of_nests_are_graphs(seed: int) -> None:
    model = RandomNest(seed).model
    found = outline(model, _interpreted(model))
    assert_is_graph(outline_dot(found))
    told = steps_text(found)
    assert "  body: subgraph" in told or "  then: subgraph" in told


def _interpreted(model: Model) -> str:
    found = distribute(
        model, [everything(model)], lambda place: [[1.0] * len(place.main.operations)]
    )
    runs, *inner = (
        spread(1 if owner == INTERPRETER else owner for owner in row)
        for row in (found.main, *found.bodies.values())
    )
    return plan(model, Choice((FAST,), runs, tuple(zip(found.bodies, inner, strict=True))))


def test_many_operations_are_counted_by_kind() -> None:
    model = summed([(index, 0) for index in range(11)])
    told = steps_text(outline(model, plan(model, Choice((FAST,)))))
    assert "  runs      11 operations, 0-10: ADD 6, MUL 5" in told
    alternating = Choice((FAST, SLOW), ((0, 1), (1, 1), (0, 9)))
    told = steps_text(outline(model, plan(model, alternating)))
    assert "  runs      9 operations, 2-10: ADD 5, MUL 4" in told


def test_what_is_no_plan() -> None:
    with pytest.raises(InvalidArgument, match="pin"):
        outline(counting(), "nonsense")
    with pytest.raises(InvalidArgument, match="cannot be interpreted"):
        outline(summed([(0, 0)]), plan(EXAMPLE, Choice((FAST,), ((1, 1),), ((0, ((0, 1),)),))))
