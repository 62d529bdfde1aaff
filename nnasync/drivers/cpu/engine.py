"""The reference engine: compiles any model whose operations have kernels."""

from __future__ import annotations

from importlib import metadata

from nnasync.drivers.cpu.limits import MAX_EXECUTION_BYTES, check_nesting
from nnasync.drivers.cpu.plan import ReferencePlan
from nnasync.drivers.cpu.resolve import supported_operations
from nnasync.errors import ModelError
from nnasync.extensions import TFLITE
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

__all__ = ["ReferenceEngine"]

_ONE = PerformanceInfo(exec_time=1.0, power_usage=1.0)
_NOT_RATED = (OperandType.SUBGRAPH, OperandType.OEM, OperandType.TENSOR_OEM_BYTE)


def _version() -> str:
    try:
        return metadata.version("nnasync")
    except metadata.PackageNotFoundError:
        return "uninstalled"


class ReferenceEngine:
    """`nnasync-reference`: always there, the measure of all others, and the fallback."""

    name = "nnasync-reference"
    type = DeviceType.CPU
    extensions: tuple[Extension, ...] = (TFLITE,)
    concurrency = 0
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

    def supported_operations(self, model: Model) -> list[bool]:
        """Whether each operation of the main subgraph, with what it refers to, has kernels."""
        try:
            check_nesting(model)
        except ModelError:
            return [False] * len(model.main.operations)
        return supported_operations(model)

    def compile(self, model: Model, preference: ExecutionPreference) -> ReferencePlan:
        """Packs all constants and binds a first lane.

        All preferences give the same plan. Raises ModelError that names the operation at fault.
        """
        check_nesting(model)
        return ReferencePlan(model, self._memory_limit_bytes)
