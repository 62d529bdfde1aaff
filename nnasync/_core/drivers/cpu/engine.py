"""The reference engine: compiles any model whose operations have kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nnasync._core.deferred import deferred
from nnasync._core.drivers.cpu.execution_limits import MAX_EXECUTION_BYTES, check_nesting
from nnasync._core.packages import version_of
from nnasync.engine import CacheFiles, EngineBase, Layer, Lowering, Phase, Plan, span
from nnasync.errors import BadState, ModelError
from nnasync.extensions import COMMON, TFLITE
from nnasync.hal import (
    Capabilities,
    DeviceType,
    ExecutionPreference,
    Extension,
    Model,
    OperandPerformance,
    OperandType,
    PerformanceInfo,
)

if TYPE_CHECKING:
    from nnasync._core.drivers.cpu import caching, resolve
    from nnasync._core.drivers.cpu import plan as plans
    from nnasync._core.drivers.cpu.plan import ReferencePlan
else:
    caching = deferred("nnasync._core.drivers.cpu.caching")
    plans = deferred("nnasync._core.drivers.cpu.plan")
    resolve = deferred("nnasync._core.drivers.cpu.resolve")

_ONE = PerformanceInfo(exec_time=1.0, power_usage=1.0)
_KERNELS_NS = 25_000_000
"""On a processor of 2020; all of them are imported with the first one."""
_NOT_RATED = (OperandType.SUBGRAPH, OperandType.OEM, OperandType.TENSOR_OEM_BYTE)


def _version() -> str:
    return version_of("nnasync") or "uninstalled"


class ReferenceEngine(EngineBase):
    """`nnasync-reference`: always there, the measure of all others, and the fallback."""

    name = "nnasync-reference"
    type = DeviceType.CPU
    extensions: tuple[Extension, ...] = (COMMON, TFLITE)
    concurrency = 0
    cache_files = (1, 1)
    tries_ahead = True
    capabilities = Capabilities(
        relaxed_float32_to_float16_performance_scalar=_ONE,
        relaxed_float32_to_float16_performance_tensor=_ONE,
        operand_performance=tuple(
            OperandPerformance(type=type, info=_ONE)
            for type in sorted(OperandType)
            if type not in _NOT_RATED
        ),
        if_performance=_ONE,
        while_performance=_ONE,
    )

    def __init__(self, memory_limit_bytes: int = MAX_EXECUTION_BYTES) -> None:
        """An execution whose operands and scratch would take more than the limit is refused."""
        self.version = _version()
        self._memory_limit_bytes = memory_limit_bytes

    def loading_ns(self) -> int:
        """Returns how long importing the kernels usually takes.

        Who translates a file has imported them before any plan is made, so no plan could tell.
        """
        return _KERNELS_NS

    def supported_operations(self, model: Model) -> list[bool]:
        """Returns whether each operation of the main subgraph, with what it refers to, has kernels.

        One whose outputs alone take more memory than an execution may is not supported either.
        """
        try:
            check_nesting(model)
        except ModelError:
            return [False] * len(model.main.operations)
        return resolve.supported_operations(model, self._memory_limit_bytes)

    def why_not(self, model: Model) -> list[str | None]:
        """Returns for each operation of the main subgraph why it cannot run; None if it can."""
        try:
            check_nesting(model)
        except ModelError as error:
            return [str(error)] * len(model.main.operations)
        return resolve.reasons(model, self._memory_limit_bytes)

    def compile(self, model: Model, preference: ExecutionPreference) -> ReferencePlan:
        """Packs all constants and binds a first lane.

        All preferences give the same plan. Raises ModelError that names the operation at fault.
        """
        check_nesting(model)
        with span(Phase.COMPILATION, f"compile {model.name or 'model'}", Layer.CPU):
            return plans.ReferencePlan(model, self._memory_limit_bytes)

    def serialize(self, plan: Plan) -> CacheFiles:
        """The model, and its weights as they are packed."""
        if not isinstance(plan, plans.ReferencePlan):
            raise BadState(f"this plan is not one of {self.name}")
        return caching.pack(plan)

    def deserialize(self, files: CacheFiles, lowering: Lowering | None) -> ReferencePlan:
        """The plan of such files; weights are used where they lie in the data file.

        Raises GeneralFailure for files of another form.
        """
        return caching.unpack(files, self._memory_limit_bytes)
