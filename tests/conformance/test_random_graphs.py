"""Random graphs: what is generated, what is held against a device, how failures become small."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import anyio
import msgspec
import numpy as np
import pytest

from nnasync._core.drivers.cpu import ReferenceEngine
from nnasync._core.model import fingerprint
from nnasync._core.runtime import Options, open_runtime
from nnasync._core.validation import validate_model
from nnasync.conformance.random_graphs import (
    KINDS,
    Examination,
    GraphVerdict,
    Order,
    OrderResult,
    RandomGraph,
    Size,
    WorkerAssignment,
    examination,
    examine,
    fleet,
    generate,
    generated_operations,
    load_graph,
    model_of,
    run_fleet,
    save_graph,
    shrink,
)
from nnasync.conformance.random_graphs.equivalents import float_twin
from nnasync.conformance.random_graphs.examination import REFERENCE
from nnasync.conformance.random_graphs.graph import Origin, graph_of
from nnasync.conformance.random_graphs.inspector import Inspector, operation_names
from nnasync.conformance.random_graphs.reference import evaluate, outputs_of
from nnasync.errors import GeneralFailure, InvalidArgument, ModelError
from nnasync.hal import Array, ExecutionPreference, Model, OperandType, OperationType
from nnasync.kernels import OPERATIONS, Arguments, Kernel, Operation, Step, Tensor
from nnasync.kernels.facts import CriterionClass

MANY = len(OPERATIONS)


def singles(operation: OperationType, kind: str | None = None) -> Iterator[RandomGraph]:
    """Graphs of one operation, for ever."""
    operations = generated_operations(kind)
    seed = operations.index(operation)
    while True:
        yield generate(Size.SINGLE, seed, kind)
        seed += len(operations)


def some(graphs: Iterator[RandomGraph], count: int) -> list[RandomGraph]:
    return [next(graphs) for _ in range(count)]


def examined(graph: RandomGraph, engine: Any = REFERENCE) -> Examination:
    async def main() -> Examination:
        async with open_runtime(devices=[engine], options=Options(cores=1)) as runtime:
            return await examine(graph, runtime.devices[0])

    return anyio.run(main)


# -- what is generated


def test_every_operation_is_generated() -> None:
    assert set(generated_operations()) == set(OPERATIONS)
    drawn = [generate(Size.SINGLE, seed).operations[0].type for seed in range(MANY)]
    assert sorted(drawn) == sorted(OPERATIONS)


@pytest.mark.parametrize("size", list(Size))
def test_graphs_are_legal_and_keep_to_the_limits(size: Size) -> None:
    for seed in range(MANY if size is Size.SINGLE else 8):
        graph = generate(size, seed)
        validate_model(model_of(graph))
        assert len(graph.operations) == size.operations
        assert graph.inputs
        assert graph.outputs
        for operand in graph.operands:
            assert np.prod(operand.shape, dtype=int) <= 10_000


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_kind_of_data_is_in_every_operation(kind: str) -> None:
    for graph in (generate(Size.SMALL, 3, kind), generate(Size.LARGE, 3, kind)):
        validate_model(model_of(graph))
        for operation in graph.operations:
            operands = (*operation.inputs, *operation.outputs)
            assert KINDS[kind] in {graph.operands[index].type for index in operands}


def test_operations_work_on_each_other_s_results() -> None:
    graphs = [generate(Size.LARGE, seed) for seed in range(5)]
    computed = read = 0
    for graph in graphs:
        made = {index for each in graph.operations for index in each.outputs}
        computed += len(made)
        read += len(made & {index for each in graph.operations for index in each.inputs})
    assert read > computed / 4


def test_constants_inputs_and_options_are_drawn() -> None:
    graphs = some(singles(OperationType.CONV_2D), 60)
    origins = {graph.operands[graph.operations[0].inputs[1]].origin for graph in graphs}
    assert origins == {Origin.INPUT, Origin.CONSTANT}
    assert {len(graph.operations[0].inputs) for graph in graphs} == {7, 8, 10, 11, 13}
    assert {graph.operands[graph.operations[0].inputs[1]].type for graph in graphs} >= {
        OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL,
        OperandType.TENSOR_FLOAT16,
    }


@pytest.mark.parametrize("operation", [OperationType.LOG, OperationType.RSQRT])
def test_arguments_have_the_properties_that_an_operation_needs(operation: OperationType) -> None:
    for graph in some(singles(operation), 5):
        (value,) = graph.input_values
        assert (value > 0).all()


def test_an_unknown_kind_is_an_error() -> None:
    with pytest.raises(KeyError):
        generate(Size.SINGLE, 0, "float64")


def contents(graph: RandomGraph) -> tuple[bytes, ...]:
    return fingerprint(model_of(graph)), *(value.tobytes() for value in graph.input_values)


def test_a_seed_gives_the_same_graph_again() -> None:
    for size in Size:
        assert contents(generate(size, 5)) == contents(generate(size, 5))
        assert contents(generate(size, 5)) != contents(generate(size, 6))


def test_a_seed_gives_the_same_graph_in_another_process() -> None:
    script = (
        "from nnasync.conformance.random_graphs import Size, generate, model_of\n"
        "from nnasync._core.model import fingerprint\n"
        "for size in Size:\n"
        "    print(fingerprint(model_of(generate(size, 7))).hex())\n"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "12345"}
    error_text = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, check=True, text=True
    ).stdout
    assert error_text.split() == [fingerprint(model_of(generate(size, 7))).hex() for size in Size]


# -- what is held against the reference


@pytest.mark.parametrize(
    ("size", "count"), [(Size.SINGLE, MANY), (Size.SMALL, 10), (Size.LARGE, 2)]
)
def test_the_reference_passes(size: Size, count: int) -> None:
    async def main() -> None:
        async with open_runtime(devices=[REFERENCE], options=Options(cores=1)) as runtime:
            for seed in range(1000, 1000 + count):
                found = await examine(generate(size, seed), runtime.devices[0])
                assert found == Examination(GraphVerdict.COMPARED), (size, seed)

    anyio.run(main)


Damage = Callable[[Arguments, Sequence[Array]], None]


def damaged(operation: OperationType, damage: Damage) -> Operation:
    """An operation whose results are changed after each run, by what was known before."""
    sound = OPERATIONS[operation]

    def compute(arguments: Arguments, outputs: Sequence[Tensor]) -> Kernel:
        kernel = sound._compute(arguments, outputs)

        def bind(inputs: Sequence[Any], outputs: Sequence[Array], scratch: Sequence[Array]) -> Step:
            inner = kernel.bind(inputs, outputs, scratch)

            def step() -> None:
                inner()
                damage(arguments, outputs)

            return step

        return Kernel(bind, kernel.scratch)

    return Operation(
        operation, sound.signatures, sound._rule, compute, empty=sound.empty, facts=sound.facts
    )


def found_damage(
    monkeypatch: pytest.MonkeyPatch, operation: OperationType, kind: str, damage: Damage
) -> set[str]:
    """The checks that fail on some graphs of a damaged operation."""
    monkeypatch.setitem(OPERATIONS, operation, damaged(operation, damage))
    return {examined(graph).check for graph in some(singles(operation, kind), 6)}


def test_a_plan_that_computes_something_else_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def damage(arguments: Arguments, outputs: Sequence[Array]) -> None:
        if arguments.inputs[1] is not None and arguments.inputs[1].value is not None:
            outputs[0] += 1

    found = found_damage(monkeypatch, OperationType.SUB, "float32", damage)
    assert found <= {"", "plan, as given", "plan, constants as inputs"}
    assert found - {""}


def test_wrong_steps_of_a_quantized_operation_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def damage(arguments: Arguments, outputs: Sequence[Array]) -> None:
        outputs[0] ^= 64

    assert found_damage(monkeypatch, OperationType.MAX_POOL_2D, "quant8", damage) == {"float twin"}


def test_signed_bytes_that_differ_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def damage(arguments: Arguments, outputs: Sequence[Array]) -> None:
        if outputs[0].dtype == np.int8:
            outputs[0] ^= 1

    assert found_damage(monkeypatch, OperationType.MEAN, "quant8", damage) == {"signed twin"}


def test_signed_bytes_may_be_a_step_away_where_an_operation_rounds_by_the_sign(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def damage(steps: int) -> Damage:
        def change(arguments: Arguments, outputs: Sequence[Array]) -> None:
            if outputs[0].dtype == np.int8:
                outputs[0] ^= steps

        return change

    average = OperationType.AVERAGE_POOL_2D
    assert found_damage(monkeypatch, average, "quant8", damage(0)) == {""}
    monkeypatch.undo()
    assert found_damage(monkeypatch, average, "quant8", damage(4)) == {"signed twin"}


def test_warnings_and_foreign_errors_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def warn(arguments: Arguments, outputs: Sequence[Array]) -> None:
        warnings.warn("something is odd", RuntimeWarning, stacklevel=1)

    def fail(arguments: Arguments, outputs: Sequence[Array]) -> None:
        raise ZeroDivisionError

    assert found_damage(monkeypatch, OperationType.ABS, "int32", warn) == {"evaluation"}
    assert found_damage(monkeypatch, OperationType.NEG, "int32", fail) == {"evaluation"}


def test_the_twin_of_a_quantized_operation_is_near() -> None:
    (graph,) = some(singles(OperationType.AVERAGE_POOL_2D, "quant8"), 1)
    twin = float_twin(graph)
    assert twin is not None
    operand = graph.operands[graph.outputs[0]]
    (steps,) = outputs_of(graph, evaluate(graph))
    (reals,) = outputs_of(twin, evaluate(twin))
    real = (steps.astype(np.float64) - operand.zero_point) * operand.scale
    assert np.abs(real - reals).max() <= 0.51 * operand.scale


@pytest.mark.parametrize(
    ("operation", "kind"), [(OperationType.CAST, "quant8"), (OperationType.ADD, "float32")]
)
def test_what_is_about_bytes_or_real_already_has_no_twin(
    operation: OperationType, kind: str
) -> None:
    (graph,) = some(singles(operation, kind), 1)
    assert float_twin(graph) is None


# -- what is held against a device


class Confused(ReferenceEngine):
    """Takes MINIMUM for MAXIMUM."""

    name = "confused"

    def compile(self, model: Model, preference: ExecutionPreference) -> Any:
        operations = tuple(
            msgspec.structs.replace(each, type=int(OperationType.MAXIMUM))
            if each.type == OperationType.MINIMUM
            else each
            for each in model.main.operations
        )
        main = msgspec.structs.replace(model.main, operations=operations)
        return super().compile(msgspec.structs.replace(model, main=main), preference)


class Limited(ReferenceEngine):
    """Supports no operation."""

    name = "limited"

    def supported_operations(self, model: Model) -> list[bool]:
        return [False] * len(model.main.operations)


class Unable(ReferenceEngine):
    """Fails to compile."""

    name = "unable"

    def compile(self, model: Model, preference: ExecutionPreference) -> Any:
        raise GeneralFailure("not today")


def test_wrong_results_are_found() -> None:
    (graph,) = some(singles(OperationType.MINIMUM, "quant8"), 1)
    found = examined(graph, Confused())
    assert (found.verdict, found.check) == (GraphVerdict.FAILED, "device")
    assert "output 0 (MINIMUM)" in found.reason
    (other,) = some(singles(OperationType.MAXIMUM, "quant8"), 1)
    assert examined(other, Confused()) == Examination(GraphVerdict.COMPARED)


@pytest.mark.parametrize(
    ("engine", "reason"), [(Limited, "ADD is not supported"), (Unable, "not today")]
)
def test_what_a_device_declines_is_not_held_against_it(
    engine: type[ReferenceEngine], reason: str
) -> None:
    (graph,) = some(singles(OperationType.ADD), 1)
    found = examined(graph, engine())
    assert found.verdict is GraphVerdict.UNSUPPORTED
    assert reason in found.reason


def test_a_device_that_hangs_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    class Hanging:
        name = "hanging"

        async def get_supported_operations(self, model: Model) -> list[bool]:
            await anyio.sleep_forever()
            return []

    async def main() -> Examination:
        device: Any = Hanging()
        return await examine(generate(Size.SINGLE, 0), device)

    monkeypatch.setattr(examination, "LIMIT_S", 0.01)
    found = anyio.run(main)
    assert found == Examination(GraphVerdict.FAILED, "device", "no answer within 0.01 s")


# -- small failures


def shrunk(graph: RandomGraph, fails: Callable[[RandomGraph], bool]) -> RandomGraph:
    async def asked(smaller: RandomGraph) -> bool:
        validate_model(model_of(smaller))
        return fails(smaller)

    assert fails(graph)
    return anyio.run(shrink, graph, asked)


def test_one_operation_is_left_with_operands_of_one_element() -> None:
    graph = generate(Size.LARGE, 1)
    assert "MINIMUM" in operation_names(graph)
    small = shrunk(graph, lambda smaller: "MINIMUM" in operation_names(smaller))
    assert operation_names(small) == ("MINIMUM",)
    assert all(np.prod(operand.shape, dtype=int) == 1 for operand in small.operands)
    evaluate(small)


def test_operations_that_only_fail_together_are_left() -> None:
    graph = generate(Size.LARGE, 2)
    first, *_, last = dict.fromkeys(operation_names(graph))
    small = shrunk(graph, lambda smaller: {first, last} <= set(operation_names(smaller)))
    assert sorted(operation_names(small)) == sorted((first, last))


def test_a_dimension_that_is_needed_stays() -> None:
    graph = next(
        graph
        for graph in singles(OperationType.SOFTMAX, "float32")
        if max(graph.operands[0].shape) > 8
    )
    small = shrunk(graph, lambda smaller: max(smaller.operands[0].shape) > 4)
    assert sorted(set(small.operands[0].shape) | {1}) == [1, 5]


def inspected(order: Order, engine: Any, folder: Path) -> OrderResult:
    async def main() -> OrderResult:
        async with open_runtime(devices=[engine], options=Options(cores=1)) as runtime:
            return await Inspector(runtime.devices[0], folder).carry_out(order)

    return anyio.run(main)


def test_a_wrong_operation_of_a_device_is_found_in_a_large_graph(tmp_path: Path) -> None:
    seed = next(
        seed
        for seed in range(100)
        if "MINIMUM" in operation_names(generate(Size.LARGE, seed))
        and examined(generate(Size.LARGE, seed), Confused()).verdict is GraphVerdict.FAILED
    )
    result = inspected(Order(Size.LARGE, seed), Confused(), tmp_path)
    assert (result.verdict, result.operations) == (GraphVerdict.FAILED, ("MINIMUM",))
    graph = load_graph(Path(result.saved))
    assert graph.criteria is CriterionClass.LARGE_GRAPH
    assert examined(graph, Confused()).check == "device"
    assert examined(graph) == Examination(GraphVerdict.COMPARED)


# -- files


@pytest.mark.parametrize("size", list(Size))
def test_a_saved_graph_is_the_same_again(size: Size, tmp_path: Path) -> None:
    graph = generate(size, 11)
    path = save_graph(graph, tmp_path / "new")
    assert path.name == f"random_graph_{size.value}_seed_11.nnm"
    again = load_graph(path)
    assert contents(again) == contents(graph)
    assert again.criteria is None
    for one, other in zip(evaluate(again), evaluate(graph), strict=True):
        assert (one is None) == (other is None)
        assert one is None or other is None or one.tobytes() == other.tobytes()


def test_files_that_do_not_belong_together(tmp_path: Path) -> None:
    path = save_graph(generate(Size.SINGLE, 0), tmp_path)
    other = save_graph(generate(Size.SMALL, 0), tmp_path)
    other.with_suffix(".npz").replace(path.with_suffix(".npz"))
    with pytest.raises(InvalidArgument):
        load_graph(path)
    with pytest.raises(FileNotFoundError):
        load_graph(other)


@pytest.mark.parametrize("data", [b"", b"PK\3\4", b"\x93NUMPY\1\0"])
def test_inputs_that_are_no_archive(data: bytes, tmp_path: Path) -> None:
    path = save_graph(generate(Size.SINGLE, 0), tmp_path)
    path.with_suffix(".npz").write_bytes(data)
    with pytest.raises(InvalidArgument, match="does not hold inputs"):
        load_graph(path)
    path.write_bytes(data)
    with pytest.raises(ModelError):
        load_graph(path)


def test_inputs_that_do_not_fit_a_model() -> None:
    graph = generate(Size.SINGLE, 0)
    model, values = model_of(graph), graph.input_values
    with pytest.raises(InvalidArgument, match="inputs, the model has"):
        graph_of(model, [])
    with pytest.raises(InvalidArgument, match="expected TENSOR"):
        graph_of(model, [np.zeros((3, 3, 3, 3, 3), each.dtype) for each in values])


# -- many processes


def fleet_results(
    orders: Sequence[Order], jobs: int, folder: Path, **options: float
) -> list[OrderResult]:
    found: list[OrderResult] = []

    async def main() -> None:
        await run_fleet(
            WorkerAssignment(REFERENCE, str(folder)), orders, jobs, found.append, **options
        )

    anyio.run(main)
    return found


def test_two_processes_carry_out_all_orders(tmp_path: Path) -> None:
    orders = [Order(Size.SINGLE, seed, "int32") for seed in range(6)]
    found = fleet_results(orders, 2, tmp_path)
    assert sorted(each.order.seed for each in found) == list(range(6))
    assert {each.verdict for each in found} == {GraphVerdict.COMPARED}
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("import sys; sys.stdin.readline(); sys.exit(3)", "died: exit code 3"),
        ("import os; os.kill(os.getpid(), 11)", "died: SIGSEGV"),
        ("import sys; sys.stdin.read()", "no answer within 0.2 s"),
    ],
)
def test_a_lost_process_costs_its_graph(
    script: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet, "WORKER", ("-c", script))
    orders = [Order(Size.SINGLE, 0), Order(Size.SMALL, 1)]
    limit_s = 0.2 if "no answer" in reason else 60.0
    found = fleet_results(orders, 1, tmp_path, limit_s=limit_s)
    assert [each.order for each in found] == orders
    for result in found:
        assert (result.verdict, result.check) == (GraphVerdict.FAILED, "process")
        assert reason in result.reason
        order = result.order
        assert contents(load_graph(Path(result.saved))) == contents(
            generate(order.size, order.seed)
        )
