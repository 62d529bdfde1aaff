"""A partitioned model as an ordinary device: names, figures, every path of execution, errors."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import nnasync as nn
from nnasync._core.drivers.cpu import ReferenceEngine
from nnasync._core.drivers.null import NullEngine
from nnasync._core.engine_device import EngineDevice
from nnasync._core.partition import CompositeEngine, split
from nnasync.device import PrepareModelConfig
from nnasync.engine import Lowering, Plan
from nnasync.errors import (
    GeneralFailure,
    InvalidArgument,
    ModelError,
    ResourceExhaustedPersistent,
)
from nnasync.hal import (
    DeviceType,
    ExecutionPreference,
    Extension,
    Model,
    Priority,
    dtype_of,
    type_performance,
)
from tests.engine_device.rig import Rig, Row, finished, reached, until_inline
from tests.partition.models import FAST, chain, in_parts, on_reference, row, run, summed, zeros
from tests.rigs import POOL, counter, floats, gated, runtime, until

DOUBLE_DOUBLE = summed([(0, 0), (1, 1)])
"""y = (2 x) squared, an ADD and a MUL."""


class Lowered(ReferenceEngine):
    """A reference with two lowerings, which notes the ones that it compiled with."""

    name = "lowered"
    type = DeviceType.ACCELERATOR
    concurrency = 2
    extensions: tuple[Extension, ...] = (Extension("com.acme.x"),)

    def __init__(self) -> None:
        super().__init__()
        self.cores = 1
        self.compiled: list[tuple[str, str | None]] = []

    def lowerings(self, model: Model, preference: ExecutionPreference) -> Sequence[Lowering]:
        return [Lowering("plain"), Lowering("fast")]

    def compile(  # type: ignore[override]
        self, model: Model, preference: ExecutionPreference, lowering: Lowering | None = None
    ) -> Plan:
        self.compiled.append((model.name, None if lowering is None else lowering.name))
        return super().compile(model, preference)


def two(model: Model = DOUBLE_DOUBLE) -> CompositeEngine:
    """The model on two reference engines in turn."""
    count = len(model.main.operations)
    parts = split(model, [index % 2 for index in range(count)])
    return CompositeEngine(parts, [ReferenceEngine(), ReferenceEngine()])


# -- as an engine


def test_it_is_named_after_its_engines() -> None:
    engine = CompositeEngine(split(chain(2), [1, 0]), [ReferenceEngine(), Lowered()])
    assert engine.name == "lowered+nnasync-reference"
    assert engine.version == ReferenceEngine().version
    assert engine.type == DeviceType.OTHER
    assert engine.concurrency == 2
    extensions = {each.name for each in engine.extensions}
    assert extensions == {"org.nnasync.common", "org.nnasync.tflite", "com.acme.x"}


def test_engines_that_have_no_step_do_not_count() -> None:
    engine = CompositeEngine(split(chain(2), [0, 0]), [ReferenceEngine(), Lowered()])
    assert (engine.name, engine.type) == ("nnasync-reference", DeviceType.CPU)
    assert engine.concurrency == 0


def test_its_figures_are_the_worst_of_its_engines() -> None:
    slow = NullEngine("slow")
    engine = CompositeEngine(split(chain(2), [0, 1]), [ReferenceEngine(), slow])
    for type in (nn.OperandType.TENSOR_FLOAT32, nn.OperandType.INT32):
        each = [type_performance(e.capabilities, type) for e in (engine, ReferenceEngine(), slow)]
        assert each[0].exec_time == max(each[1].exec_time, each[2].exec_time)
        assert each[0].power_usage == max(each[1].power_usage, each[2].power_usage)


def test_it_says_what_the_engines_say_of_their_steps() -> None:
    picky = NullEngine("picky", operation_types=[nn.OperationType.MUL])
    model = summed([(0, 0), (1, 1), (2, 2)])
    engine = CompositeEngine(split(model, [1, 1, 0]), [ReferenceEngine(), picky])
    assert engine.supported_operations(model) == [False, True, True]
    assert engine.supported_operations(chain(3)) == [False, False, False]


def test_steps_are_compiled_with_their_lowerings() -> None:
    lowered = Lowered()
    parts = split(chain(3), [0, 1, 0])
    engine = CompositeEngine(parts, [lowered, ReferenceEngine()], {2: Lowering("fast")})
    assert run(engine.compile(parts.model, FAST), parts.model, [row()])
    assert lowered.compiled == [("summed, step 1/3", None), ("summed, step 3/3", "fast")]


def test_another_model_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="for model 'summed' alone, not for 'doubler'"):
        two().compile(msgspec.structs.replace(chain(2), name="doubler"), FAST)


def test_an_equal_model_is_taken() -> None:
    model = summed([(0, 0), (1, 1)])
    assert model is not DOUBLE_DOUBLE
    assert run(two().compile(model, FAST), model, [row()])[0].tolist() == [[4, 16, 36, 64]]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ModelError("no"), ModelError),
        (ResourceExhaustedPersistent("no"), ResourceExhaustedPersistent),
        (ValueError("no"), GeneralFailure),
    ],
)
def test_an_engine_that_fails_to_compile_is_named(error: Exception, kind: type[Exception]) -> None:
    broken = NullEngine("broken")
    broken.fail("compile", error)
    engine = CompositeEngine(split(chain(2), [0, 1]), [ReferenceEngine(), broken])
    text = r"step 1 \(1 operation from 1 to 1\) on broken.*: no"
    with pytest.raises(kind, match=text) as caught:
        engine.compile(chain(2), FAST)
    assert type(caught.value) is kind


@pytest.mark.parametrize(
    ("lowerings", "engines", "text"),
    [
        ({}, 1, "step 1 is on device 1 of 1"),
        ({5: Lowering("x")}, 2, "a lowering for step 5, which is not there"),
        ({0: Lowering("x")}, 2, "nnasync-reference, which runs step 0, has no lowerings"),
    ],
)
def test_steps_need_their_engines(lowerings: dict[int, Lowering], engines: int, text: str) -> None:
    with pytest.raises(InvalidArgument, match=text):
        CompositeEngine(split(chain(2), [0, 1]), [ReferenceEngine()] * engines, lowerings)


# -- as a device


@pytest.fixture
def rigs(no_leaks: None) -> Iterator[Callable[..., Rig]]:
    made: list[Rig] = []

    def make(engine: Any, **options: Any) -> Rig:
        made.append(Rig(engine, **options))
        return made[-1]

    yield make
    for rig in made:
        rig.close()


@pytest.mark.anyio
async def test_it_executes_in_a_thread_inline_and_fenced(rigs: Callable[..., Rig]) -> None:
    rig, model = rigs(two()), DOUBLE_DOUBLE
    prepared = await rig.prepare(model)
    request = Row(1, 2, 3, 4)
    await prepared.execute(request.request)
    assert request.y.tolist() == [[4, 16, 36, 64]]
    await until_inline(rig, prepared, request.request)
    request.x[...] = 5
    await prepared.execute_synchronously(request.request)
    assert request.y.tolist() == [[100] * 4]
    request.x[...] = 6
    launched = await prepared.execute_fenced(request.request)
    assert await finished(launched.fence) is None
    assert request.y.tolist() == [[144] * 4]
    await prepared.close()


@pytest.mark.anyio
async def test_a_higher_priority_runs_between_two_steps(rigs: Callable[..., Rig]) -> None:
    """LOW is in its first step when HIGH comes; its second one waits until HIGH is done."""
    order: list[str] = []

    def noted(name: str) -> Callable[[Any], list[Any]]:
        def compute(inputs: Any) -> list[Any]:
            order.append(name)
            return [inputs[0] * 2]

        return compute

    first, above = (gated(noted(name), name=name) for name in ("first", "above"))
    second = NullEngine("second", compute=noted("second"))
    rig = rigs(
        CompositeEngine(split(DOUBLE_DOUBLE, [0, 1]), [first, second]), cores=1, inline_budget_ns=0
    )
    rig.at_end += [first.gate.open_wide, above.gate.open_wide]
    low = await rig.prepare(DOUBLE_DOUBLE, Priority.LOW)
    high = await EngineDevice(above, rig.workers).prepare_model(
        DOUBLE_DOUBLE, PrepareModelConfig(priority=Priority.HIGH)
    )
    low_row, high_row = Row(1, 2, 3, 4), Row(1, 2, 3, 4)
    slow = await low.execute_fenced(low_row.request)
    await reached(first, lambda counters: counters.waiting >= 1)
    quick = await high.execute_fenced(high_row.request)
    await reached(above, lambda counters: counters.run >= 1)
    first.gate.open_wide()
    await until(lambda: rig.workers.statistics().preemptions == 1)
    above.gate.open_wide()
    assert await finished(quick.fence) is None
    assert await finished(slow.fence) is None
    assert order == ["first", "above", "second"]
    assert low_row.y.tolist() == [[4, 8, 12, 16]]


@pytest.mark.anyio
async def test_a_burst_carries_the_state_through_the_steps() -> None:
    engine = two(counter())
    async with runtime(engine, options=POOL) as rt:
        net = await rt.compile(counter(), devices=[engine.name])
        async with net.burst() as burst:
            for turn in range(1, 4):
                y = await burst(floats(1, 2, 3, 4))
                assert list(y[0]) == [turn, 2 * turn, 3 * turn, 4 * turn]


# -- real networks

FOLDER = Path(__file__).resolve().parent.parent.parent.parent / "shared" / "models"
INDEX = FOLDER / "index.json"
NAMES = [e["file"] for e in json.loads(INDEX.read_text("utf-8"))] if INDEX.is_file() else []


@pytest.mark.skipif(not NAMES, reason="needs the reference data in ../shared beside the checkout")
@pytest.mark.parametrize("name", NAMES)
def test_a_real_network_in_parts(name: str, shared: Path) -> None:
    """On random inputs, states included, on three devices at random."""
    model = nn.load(shared / "models" / name)
    numbers, values = random.Random(name), np.random.default_rng(7)
    parts = split(model, [numbers.randrange(3) for _ in model.main.operations])
    assert len(parts.steps) > 1
    inputs = zeros(model, model.main.input_indexes)
    for position, array in zip(model.main.input_indexes, inputs, strict=True):
        dtype = dtype_of(model.main.operands[position].type)
        array[...] = values.uniform(0, 100, array.shape).astype(dtype)
    for ours, whole in zip(in_parts(parts, inputs), on_reference(model, inputs), strict=True):
        assert ours.tobytes() == whole.tobytes()
