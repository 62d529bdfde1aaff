"""The engine over ONNX Runtime, on any of its execution providers.

It runs whole ONNX files, as the operation of org.nnasync.onnx, and models of operations that it can
translate to ONNX.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from nnasync import hal
from nnasync._core import validation
from nnasync._core.deferred import deferred
from nnasync._core.drivers.onnxruntime.providers import (
    check_provider,
    device_type,
    open_session,
    version,
)
from nnasync._core.formats.onnx import ELEMENTS
from nnasync._core.formats.whole import file_of, graph_of, is_file
from nnasync.engine import EngineBase, Lowering, Phase, span
from nnasync.errors import GeneralFailure, ModelError
from nnasync.extensions import COMMON, ONNX
from nnasync.hal import (
    Array,
    Capabilities,
    ExecutionPreference,
    Extension,
    Model,
    OperandType,
    PerformanceInfo,
)

if TYPE_CHECKING:
    from nnasync._core.drivers.onnxruntime import fatal_files
    from nnasync._core.drivers.onnxruntime import lowering as lowering_of
    from nnasync._core.drivers.onnxruntime import plan as plans
    from nnasync._core.drivers.onnxruntime.plan import OnnxPlan
else:
    fatal_files = deferred("nnasync._core.drivers.onnxruntime.fatal_files")
    lowering_of = deferred("nnasync._core.drivers.onnxruntime.lowering")
    plans = deferred("nnasync._core.drivers.onnxruntime.plan")

_ONE = PerformanceInfo(exec_time=1.0, power_usage=1.0)
"""An estimate; `nnasync calibrate` measures it by type."""
_RATED = {element.operand for element in ELEMENTS if element.operand is not None} | {
    OperandType.TENSOR_QUANT8_SYMM
}
"""The types of first inputs that it takes, of files and of translated operations."""
_NAME, _FILE = "onnx", "file"
_BESIDE = "is beside parts of an ONNX file that are kept whole: each of those is a run of its own"


class OnnxRuntimeEngine(EngineBase):
    """`onnxruntime-cpu`, or another execution provider by the name of its device.

    Raises InvalidArgument where the installed package does not have the provider.
    """

    extensions: tuple[Extension, ...] = (ONNX, COMMON)
    concurrency = 0
    tries_ahead = True
    loads_in_ms = 100.0
    capabilities = Capabilities(
        relaxed_float32_to_float16_performance_scalar=PerformanceInfo(),
        relaxed_float32_to_float16_performance_tensor=_ONE,
        operand_performance=hal.uniform_performance(_ONE, _RATED),
        if_performance=PerformanceInfo(),
        while_performance=PerformanceInfo(),
    )

    def __init__(self, name: str = "onnxruntime-cpu") -> None:
        self.name = name
        self.type = device_type(name)
        self.version = version()
        self.cores = 1
        self._provider = check_provider(name)

    def supported_operations(self, model: Model) -> list[bool]:
        """Returns whether each operation of the main subgraph can be translated, or is a file."""
        return [reason is None for reason in self.why_not(model)]

    def why_not(self, model: Model) -> list[str | None]:
        """Returns for each operation of the main subgraph why it is not translated.

        None if it is.
        """
        if _graph(model) is not None:
            return [None]
        are_files = [is_file(model, each, ONNX.name) for each in model.main.operations]
        if any(are_files):
            return [None if is_one else _BESIDE for is_one in are_files]
        return lowering_of.reasons(model)

    def lowerings(self, model: Model, preference: ExecutionPreference) -> Sequence[Lowering]:
        """Returns two lowerings: all cores for one answer, or one core.

        They differ in rounding at most.
        """
        name = _NAME if _graph(model) is None else _FILE
        alone = Lowering(name, threads=1, is_exact=True)
        if preference != ExecutionPreference.FAST_SINGLE_ANSWER or self.cores < 2:
            return (alone,)
        return (Lowering(name, threads=self.cores, is_exact=True), alone)

    def compile(
        self, model: Model, preference: ExecutionPreference, lowering: Lowering | None = None
    ) -> OnnxPlan:
        """Open a session; raises GeneralFailure with what ONNX Runtime says against the model."""
        with span(Phase.COMPILATION, f"compile {model.name or 'model'}"):
            return self._compiled(model, preference, lowering)

    def _compiled(
        self, model: Model, preference: ExecutionPreference, lowering: Lowering | None
    ) -> OnnxPlan:
        threads = (lowering or self.lowerings(model, preference)[0]).threads
        main, operation = model.main, _graph(model)
        sources: Sequence[int | Array] = range(len(main.input_indexes))
        outputs: Sequence[int] = range(len(main.output_indexes))
        if operation is not None:
            file = file_of(model, operation)
            fatal_files.check_file(file)
            sources = [_source(model, index) for index in operation.inputs[:-1]]
            outputs = [operation.outputs.index(index) for index in main.output_indexes]
        else:
            file = lowering_of.lower(model)
        needs_numbers = fatal_files.needs_numbers(file)
        session = open_session(file, self._provider, threads)
        if len(outputs) != len(session.get_outputs()):
            raise GeneralFailure(
                f"the graph has {len(session.get_outputs())} outputs, the model {len(outputs)}"
            )
        plan = plans.OnnxPlan(session, sources, outputs, needs_numbers=needs_numbers)
        plan.warm_up()
        return plan


def _graph(model: Model) -> hal.Operation | None:
    """The operation of a model that is one ONNX file and nothing else."""
    return graph_of(model, ONNX.name)


def _source(model: Model, index: int) -> int | Array:
    """Returns the number of the model's input that an operand is, or a constant's value."""
    operand = model.main.operands[index]
    if not hal.is_constant(operand):
        return model.main.input_indexes.index(index)
    value = validation.operand_value(model, operand)
    if value is None:
        raise ModelError(f"operand {index} is a constant that cannot be read")
    return value
