"""The engine: which operations it takes, and models compiled for the processor."""

from __future__ import annotations

import io
from collections.abc import Sequence

import msgspec

from nnasync.drivers.openvino.form import REALS
from nnasync.drivers.openvino.graph import translate
from nnasync.drivers.openvino.lowering import products
from nnasync.drivers.openvino.package import core, faults, has_bfloat16, version
from nnasync.drivers.openvino.plan import OpenVinoPlan
from nnasync.drivers.openvino.unsupported import resolve
from nnasync.engine import Lowering
from nnasync.errors import InvalidArgument
from nnasync.hal import (
    Capabilities,
    DeviceType,
    ExecutionPreference,
    Extension,
    Model,
    OperandPerformance,
    OperandType,
    OperationType,
    PerformanceInfo,
    Shape,
    is_constant,
)
from nnasync.kernels import is_quantized
from nnasync.validation import subgraph_tensors

__all__ = ["OpenVinoEngine"]

_FASTER = PerformanceInfo(exec_time=0.1, power_usage=0.1)
_RATED = (
    OperandType.TENSOR_FLOAT32,
    OperandType.TENSOR_FLOAT16,
    OperandType.TENSOR_QUANT8_ASYMM,
    OperandType.TENSOR_QUANT8_ASYMM_SIGNED,
)
_NONE = PerformanceInfo()


class OpenVinoEngine:
    """`openvino-cpu`: partitions lowered to graphs of OpenVINO."""

    name = "openvino-cpu"
    type = DeviceType.CPU
    extensions: tuple[Extension, ...] = ()
    concurrency = 0
    capabilities = Capabilities(
        relaxed_float32_to_float16_performance_scalar=_FASTER,
        relaxed_float32_to_float16_performance_tensor=_FASTER,
        operand_performance=tuple(
            OperandPerformance(type=type, info=_FASTER) for type in sorted(_RATED)
        ),
        if_performance=_NONE,
        while_performance=_NONE,
    )

    def __init__(self) -> None:
        self.cores = 1
        self.version = version() or "not installed"

    def supported_operations(self, model: Model) -> list[bool]:
        """Whether each operation of the main subgraph is lowered; the package is not imported."""
        return [step.build is not None for step in resolve(model)[1]]

    def lowerings(self, model: Model, preference: ExecutionPreference) -> Sequence[Lowering]:
        """Float32 first; bfloat16 where the processor has it, bytes where the model has."""
        fast = preference == ExecutionPreference.FAST_SINGLE_ANSWER and self.cores > 1
        reduces = _has_floats(model) and not model.relax_computation_float32_to_float16
        names = ["f32"]
        if has_bfloat16():
            names.append("bf16")
        if _suits_bytes(model):
            names.append("int8")
        return [
            Lowering(
                name,
                threads=count,
                is_exact=name == "f32" and _is_whole(model),
                reduces_precision=name == "bf16" and reduces,
            )
            for name in names
            for count in ((self.cores, 1) if fast else (1,))
        ]

    def compile(
        self, model: Model, preference: ExecutionPreference, lowering: Lowering | None = None
    ) -> OpenVinoPlan:
        """Compile in one of these ways; ModelError names an operation that is not lowered."""
        chosen = lowering or self.lowerings(model, preference)[0]
        if chosen.name not in _PRECISIONS:
            raise InvalidArgument(
                f"{self.name} has no lowering {chosen.name!r}; it has {', '.join(_PRECISIONS)}"
            )
        graph = translate(model, chosen.name)
        with faults("compiling"):
            compiled = core().compile_model(graph.network, "CPU", _config(chosen))
        return OpenVinoPlan(compiled, graph.output_shapes, chosen.name)

    def deserialize(self, data: bytes, lowering: Lowering) -> OpenVinoPlan:
        """A plan from what `serialize` gave, which must be unchanged: the engine trusts it.

        Raises InvalidArgument for bytes of another form or lowering, GeneralFailure.
        """
        try:
            content = msgspec.msgpack.decode(data, type=tuple[str, tuple[Shape, ...], bytes])
        except msgspec.MsgspecError as error:
            raise InvalidArgument(f"these bytes are no plan of {self.name}: {error}") from error
        precision, shapes, blob = content
        if precision != lowering.name:
            raise InvalidArgument(f"a plan for {precision} is no plan for {lowering.name}")
        with faults("importing"):
            compiled = core().import_model(io.BytesIO(blob), "CPU", _config(lowering))
        return OpenVinoPlan(compiled, shapes, precision)


_PRECISIONS = {"f32": "f32", "bf16": "bf16", "int8": "f32"}


def _config(lowering: Lowering) -> dict[str, object]:
    return {
        "INFERENCE_NUM_THREADS": lowering.threads,
        "NUM_STREAMS": 1,
        "ENABLE_CPU_PINNING": False,
        "INFERENCE_PRECISION_HINT": _PRECISIONS[lowering.name],
        # Without this, a FakeQuantize is taken out of the convolution to make bytes for a pooling.
        "LP_TRANSFORMS_MODE": lowering.name == "int8",
    }


def _suits_bytes(model: Model) -> bool:
    """Whether most of the filters are such that OpenVINO can compute with bytes."""
    tensors = subgraph_tensors(model, model.main)
    filters = [
        tensor
        for operation in model.main.operations
        if operation.type in products.RULES and (tensor := tensors[operation.inputs[1]])
    ]
    return 2 * sum(map(products.are_signed_bytes, filters)) > len(filters)


def _has_floats(model: Model) -> bool:
    """Whether anything but constants is floating point."""
    return any(
        operand.type in REALS and not is_constant(operand) for operand in model.main.operands
    )


def _is_whole(model: Model) -> bool:
    """Whether all is computed with whole numbers, which float32 holds exactly."""
    quantized = any(is_quantized(operand.type) for operand in model.main.operands)
    curves = any(operation.type in _CURVES for operation in model.main.operations)
    return quantized and not curves and not _has_floats(model)


_CURVES = (
    OperationType.HARD_SWISH,
    OperationType.L2_NORMALIZATION,
    OperationType.LOGISTIC,
    OperationType.SOFTMAX,
    OperationType.TANH,
)
"""Operations that are computed with real numbers, which processors round in their own ways."""
