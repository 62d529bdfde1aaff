"""A driver that compiles just in time, and puts what it compiled into the cache then.

It takes sums and products of float32. The first runs of a network compute all of them; then it has
seen that the network is used, and compiles: what depends on constants only is computed once and for
all. The cache files hold the operations from the beginning, and what was compiled later takes their
place. So a program that is started anew begins with that, although `compile` did none of it.
"""

from __future__ import annotations

import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import msgspec
import numpy as np

import nnasync as nn
from nnasync import hal
from nnasync.engine import (
    BoundCall,
    CacheFiles,
    EngineBase,
    Given,
    LateFiles,
    Lowering,
    Plan,
    StopFlag,
    Target,
    arguments,
    deliver,
    resolved,
)
from nnasync.errors import GeneralFailure
from nnasync.hal import Array, OperationType

KNOWN: dict[int, np.ufunc] = {OperationType.ADD: np.add, OperationType.MUL: np.multiply}
RUNS_BEFORE = 20
"""A network that ran so often is worth compiling."""


class Step(msgspec.Struct, frozen=True):
    """One operation, with its values by number."""

    type: int
    left: int
    right: int
    result: int


class Program(msgspec.Struct, frozen=True):
    """What a model computes, and whether it was compiled."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    steps: tuple[Step, ...]
    is_compiled: bool = False


class Kept(msgspec.Struct, frozen=True):
    """A constant, as the data cache file has it."""

    shape: tuple[int, ...]
    data: bytes


class JustInTimePlan(Plan):
    """A program that is compiled while it is used, and the files that hear of it."""

    def __init__(self, program: Program, constants: dict[int, Array]) -> None:
        self.program = program
        self.runs = 0
        self._constants = constants
        self._written = program
        self._late: LateFiles | None = None
        self._lock = threading.Lock()

    def kept_in(self, files: LateFiles) -> None:
        """Remember where it goes when it is compiled; it may have been meanwhile."""
        with self._lock:
            self._late = files
            if self.program is not self._written:
                files.update(self.files())

    def files(self) -> CacheFiles:
        """What there is of the plan now."""
        self._written = self.program
        values = {n: Kept(value.shape, value.tobytes()) for n, value in self._constants.items()}
        encode = msgspec.msgpack.encode
        return CacheFiles((encode(self.program),), (encode(values),))

    def bind(self, inputs: Sequence[Array | None], outputs: Sequence[Target]) -> JustInTimeCall:
        """A call on these arrays."""
        return JustInTimeCall(self, cast(Sequence[Array], inputs), outputs)

    def trim(self) -> None:
        """There is no scratch."""

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """The outputs; compiles where the plan has run often enough."""
        self.runs += 1
        if self.runs > RUNS_BEFORE and not self.program.is_compiled:
            self._compile()
        program = self.program
        values = self._constants | dict(zip(program.inputs, inputs, strict=True))
        for step in program.steps:
            values[step.result] = KNOWN[step.type](values[step.left], values[step.right])
        return [values[number] for number in program.outputs]

    def _compile(self) -> None:
        """Do those steps that depend on no input."""
        with self._lock:
            program, steps = self.program, []
            constants = dict(self._constants)
            for step in program.steps:
                if step.left in constants and step.right in constants:
                    value = KNOWN[step.type](constants[step.left], constants[step.right])
                    constants[step.result] = value
                else:
                    steps.append(step)
            # In this order: more constants than a program needs do no harm.
            self._constants = constants
            self.program = Program(program.inputs, program.outputs, tuple(steps), True)
            if self._late is not None:
                self._late.update(self.files())


class JustInTimeCall(BoundCall):
    """A plan bound to arrays."""

    def __init__(
        self, plan: JustInTimePlan, inputs: Sequence[Array], outputs: Sequence[Target]
    ) -> None:
        self._plan, self._inputs, self._outputs = plan, inputs, outputs

    def run(self, stop: StopFlag, given: Given = None) -> bool:
        """One run, which is too short to be stopped."""
        deliver(self._outputs, self._plan.run(self._inputs))
        return True

    def rewind(self) -> None:
        """Nothing is kept from run to run."""


class JustInTimeEngine(EngineBase):
    """Sums and products, compiled when they are used."""

    name = "just-in-time"
    version = "1.0"
    type = hal.DeviceType.CPU
    cache_files = (1, 1)
    caches_late = True
    capabilities = hal.Capabilities(
        relaxed_float32_to_float16_performance_tensor=hal.PerformanceInfo(0.9, 0.9),
        operand_performance=hal.uniform_performance(
            hal.PerformanceInfo(0.9, 0.9), [hal.OperandType.TENSOR_FLOAT32]
        ),
    )

    def __init__(self) -> None:
        self.loaded = "nothing"

    def supported_operations(self, model: hal.Model) -> list[bool]:
        """Sums and products of float32, of known shapes, without an activation."""
        tensors = resolved(model)

        def is_known(operation: hal.Operation) -> bool:
            if operation.type not in KNOWN:
                return False
            *given, activation = arguments(model, operation, tensors).values()
            return (
                activation.value is not None
                and not int(activation.value)
                and all(
                    each.tensor is not None
                    and each.tensor.type == hal.OperandType.TENSOR_FLOAT32
                    and each.tensor.is_known
                    for each in given
                )
            )

        return [is_known(operation) for operation in model.main.operations]

    def compile(self, model: hal.Model, preference: hal.ExecutionPreference) -> JustInTimePlan:
        """The operations as they are: nothing slow is done before anybody runs them."""
        main, tensors = model.main, resolved(model)
        steps: list[Step] = []
        constants: dict[int, Array] = {}
        for operation in main.operations:
            left, right, _ = arguments(model, operation, tensors).values()
            steps.append(Step(operation.type, left.number, right.number, operation.outputs[0]))
            for each in (left, right):
                if each.value is not None:
                    constants[each.number] = each.value
        program = Program(main.input_indexes, main.output_indexes, tuple(steps))
        return JustInTimePlan(program, constants)

    def serialize(self, plan: Plan) -> CacheFiles:
        """What there is of the plan, compiled or not."""
        return cast(JustInTimePlan, plan).files()

    def deserialize(self, files: CacheFiles, lowering: Lowering | None) -> JustInTimePlan:
        """A plan that was kept."""
        try:
            program = msgspec.msgpack.decode(files.model[0], type=Program)
            values = msgspec.msgpack.decode(files.data[0], type=dict[int, Kept])
            constants = {
                number: np.frombuffer(kept.data, np.float32).reshape(kept.shape)
                for number, kept in values.items()
            }
        except (msgspec.MsgspecError, ValueError) as error:
            raise GeneralFailure(f"the cache files cannot be read: {error}") from error
        self.loaded = f"{len(program.steps)} steps"
        return JustInTimePlan(program, constants)


def network() -> nn.Model:
    """x * (a + b) + (a * b), of which half can be computed before x is known."""
    numbers = np.random.default_rng(1)
    a, b = (numbers.standard_normal((4, 64)).astype(np.float32) for _ in range(2))
    builder = nn.ModelBuilder("half constant")
    x = builder.input("x", (4, 64))
    first, second = builder.constant(a), builder.constant(b)
    scaled = builder.mul(x, builder.add(first, second))
    builder.output("y", builder.add(scaled, builder.mul(first, second)))
    return builder.build()


async def run_once(folder: Path) -> None:
    """One start of an application."""
    engine = JustInTimeEngine()
    async with nn.open_runtime(devices=[engine]) as runtime:
        net = await runtime.compile(network(), cache_dir=folder / "cache")
        reason = net.report().cache_reason
        print(f"  cache: {reason}; loaded: {engine.loaded}")
        x = np.ones((4, 64), np.float32)
        for _ in range(RUNS_BEFORE + 1):
            y = await net(x)
        print(f"  sum {y.sum():.1f}")


async def main(folder: Path) -> None:
    """Two starts with one folder."""
    for start in ("first", "second"):
        print(f"{start} start")
        await run_once(folder)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        nn.run(main, Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as temporary:
            nn.run(main, Path(temporary))
