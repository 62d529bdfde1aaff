"""The engine: which operations it takes, and models compiled for the processor."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from nnasync._core import validation
from nnasync._core.deferred import deferred
from nnasync._core.drivers.openvino.background import Network, watched
from nnasync._core.drivers.openvino.exports import compiled, imported, in_engine
from nnasync._core.drivers.openvino.package import (
    PACKAGE,
    faults,
    has_bfloat16,
    module,
    version,
)
from nnasync._core.drivers.openvino.plan import OpenVinoPlan
from nnasync._core.engine_packages import loading_ns
from nnasync.engine import CacheFiles, EngineBase, Lowering, Phase, Plan, span
from nnasync.errors import BadState, InvalidArgument
from nnasync.hal import (
    Capabilities,
    DeviceType,
    ExecutionPreference,
    Extension,
    Model,
    OperandType,
    OperationType,
    PerformanceInfo,
    Shape,
    is_constant,
    is_quantized,
    uniform_performance,
)
from nnasync.hal.decoders import msgpack_decoder

if TYPE_CHECKING:
    from nnasync._core.drivers.openvino import graph as graphs
    from nnasync._core.drivers.openvino import lowered, saturation, signed_weights, unsupported
    from nnasync._core.drivers.openvino.lowering import products
    from nnasync.kernels import Tensor
else:
    lowered = deferred("nnasync._core.drivers.openvino.lowered")
    graphs = deferred("nnasync._core.drivers.openvino.graph")
    products = deferred("nnasync._core.drivers.openvino.lowering.products")
    signed_weights = deferred("nnasync._core.drivers.openvino.signed_weights")
    saturation = deferred("nnasync._core.drivers.openvino.saturation")
    unsupported = deferred("nnasync._core.drivers.openvino.unsupported")

_PROMISES = {"bf16": 2, "int8-bf16": 2, "int8": 1}
"""Of quantized models; with bfloat16 a processor has fast products of it, and of bytes."""

_FASTER = PerformanceInfo(exec_time=0.1, power_usage=0.1)
"""An estimate; `nnasync calibrate` measures it by type."""
_RATED = (
    OperandType.TENSOR_FLOAT32,
    OperandType.TENSOR_FLOAT16,
    OperandType.TENSOR_INT32,
    OperandType.TENSOR_BOOL8,
    OperandType.TENSOR_QUANT8_ASYMM,
    OperandType.TENSOR_QUANT8_ASYMM_SIGNED,
    OperandType.TENSOR_QUANT8_SYMM,
    OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL,
)
"""The types of first inputs that it takes."""
_NONE = PerformanceInfo()


class OpenVinoEngine(EngineBase):
    """`openvino-cpu`: partitions lowered to graphs of OpenVINO."""

    name = "openvino-cpu"
    type = DeviceType.CPU
    extensions: tuple[Extension, ...] = (Extension("org.nnasync.common"),)
    """`extensions.COMMON`, which a warm start does without."""
    concurrency = 0
    cache_files = (2, 0)
    tries_ahead = True
    loads_in_ms = 400.0
    capabilities = Capabilities(
        relaxed_float32_to_float16_performance_scalar=_NONE,
        relaxed_float32_to_float16_performance_tensor=_FASTER,
        operand_performance=uniform_performance(_FASTER, _RATED),
        if_performance=_NONE,
        while_performance=_NONE,
    )

    def __init__(self) -> None:
        self.cores = 1
        self.version = version() or "not installed"

    def loading_ns(self) -> int:
        """Returns how long importing the package took."""
        return loading_ns(PACKAGE)

    def get_ready(self) -> None:
        """Import the package."""
        with span(Phase.INITIALIZATION, "import OpenVINO"):
            module()

    def supported_operations(self, model: Model) -> list[bool]:
        """Returns whether each operation is lowered; does not import the package."""
        return [step.build is not None for step in unsupported.resolve(model)[1]]

    def why_not(self, model: Model) -> list[str | None]:
        """Returns for each operation of the main subgraph why it is not lowered; None if it is."""
        return [step.reason or None for step in unsupported.resolve(model)[1]]

    def lowerings(self, model: Model, preference: ExecutionPreference) -> Sequence[Lowering]:
        """Float32 first; bfloat16 where the processor has it, bytes where the model can have them.

        Quantized networks whose weights are too large for signed bytes are taken too where copies
        of channels make them fit (`signed_weights`). Where the processor's products of bytes
        saturate there are bytes only for weights with which they do not (`saturation`).
        """
        fast = preference == ExecutionPreference.FAST_SINGLE_ANSWER and self.cores > 1
        reduces = _has_floats(model) and not model.relax_computation_float32_to_float16
        names = ["f32"]
        if has_bfloat16():
            names.append("bf16")
        names += _names_of_bytes(model)
        return [
            Lowering(
                name,
                threads=count,
                is_exact=name == "f32" and _is_whole(model),
                reduces_precision=name == "bf16" and reduces,
                promise=0 if _has_floats(model) else _PROMISES.get(name, 0),
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
        if chosen.name in _BYTES:
            model = signed_weights.narrowed(model)
        with span(Phase.TRANSFORMATION, f"lower {model.name or 'model'}"):
            graph = graphs.translate(model, chosen.name)
        compiling = span(Phase.COMPILATION, f"compile {model.name or 'model'} as {chosen.name}")
        with faults("compiling"), compiling:
            network = watched(lambda: compiled(graph.network, _config(chosen)))
        return self._plan(network, graph.output_shapes, chosen)

    def serialize(self, plan: Plan) -> CacheFiles:
        """Returns the description of a plan, and the compiled network with its weights.

        Raises BadState for a plan that came from files itself.
        """
        if not isinstance(plan, OpenVinoPlan):
            raise BadState(f"this plan is not one of {self.name}")
        description = _PlanDescription(plan.precision, plan.threads, plan.output_shapes)
        return CacheFiles(model=(msgspec.msgpack.encode(description), plan.exported()))

    def deserialize(self, files: CacheFiles, lowering: Lowering | None) -> OpenVinoPlan:
        """A plan from what `serialize` gave, which must be unchanged: the engine trusts it.

        Raises InvalidArgument for files of another form or lowering, GeneralFailure.
        """
        try:
            content, blob = files.model
            kept = msgpack_decoder(_PlanDescription).decode(content)
        except (ValueError, msgspec.MsgspecError) as error:
            raise InvalidArgument(f"these files are no plan of {self.name}: {error}") from error
        if lowering is None:
            lowering = Lowering(kept.precision, kept.threads)
        if kept.precision != lowering.name:
            raise InvalidArgument(f"a plan for {kept.precision} is no plan for {lowering.name}")
        with faults("importing"):
            tensor = in_engine(blob)
            network = _read(lowering, tensor)
        return self._plan(network, kept.output_shapes, lowering, tensor)

    def _plan(
        self, network: Network, shapes: Sequence[Shape], lowering: Lowering, blob: Any = None
    ) -> OpenVinoPlan:
        return OpenVinoPlan(
            network,
            shapes,
            lowering.name,
            lowering.threads,
            cores=self.cores,
            read=partial(_read, lowering),
            blob=blob,
        )


class _PlanDescription(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """The description of a plan besides its compiled network."""

    precision: str
    threads: int
    output_shapes: tuple[Shape, ...]


def _read(lowering: Lowering, blob: Any) -> Network:
    """A compiled network from a tensor of its bytes."""
    return watched(lambda: imported(blob, _config(lowering)))


_PRECISIONS = {"f32": "f32", "bf16": "bf16", "int8": "f32", "int8-bf16": "bf16"}
"""Of each lowering, what is used where it does not compute with bytes."""

_BYTES = ("int8", "int8-bf16")
_DEPTHWISE = OperationType.DEPTHWISE_CONV_2D


def _config(lowering: Lowering) -> dict[str, object]:
    return {
        "INFERENCE_NUM_THREADS": lowering.threads,
        "NUM_STREAMS": 1,
        "ENABLE_CPU_PINNING": False,
        "INFERENCE_PRECISION_HINT": _PRECISIONS[lowering.name],
        # Without this, a FakeQuantize is taken out of the convolution to make bytes for a pooling.
        "LP_TRANSFORMS_MODE": lowering.name in _BYTES,
    }


def _names_of_bytes(model: Model) -> list[str]:
    """The lowerings that compute with bytes, of those that a model suits."""
    in_bfloat16 = has_bfloat16() and not _has_floats(model)
    if _suits_bytes(model):
        return ["int8-bf16", "int8"] if in_bfloat16 else ["int8"]
    if _is_mostly_products(model):
        other = signed_weights.narrowed(model)
        if other is not model and _suits_bytes(other, without=_DEPTHWISE):
            return ["int8-bf16" if in_bfloat16 else "int8"]
    return []


def _is_mostly_products(model: Model) -> bool:
    """Returns whether products of bytes dominate: what lies between them costs conversions."""
    operations = model.main.operations
    count = sum(
        operation.type in products.RULES
        and is_quantized(model.main.operands[operation.inputs[0]].type)
        for operation in operations
    )
    return 2 * count > len(operations)


def _suits_bytes(model: Model, without: int | None = None) -> bool:
    """Returns whether OpenVINO can compute with bytes for most of the filters.

    Those `without` a type of operation: filters by depth are few weights, whatever they are.
    """
    tensors = validation.subgraph_tensors(model, model.main)
    filters = [
        _is_exact_in_bytes(operation.type, image, filter)
        for operation in model.main.operations
        if operation.type in products.RULES
        and operation.type != without
        and (image := tensors[operation.inputs[0]])
        and (filter := tensors[operation.inputs[1]])
    ]
    return 2 * sum(filters) > len(filters)


def _is_exact_in_bytes(type: int, image: Tensor, filter: Tensor) -> bool:
    """Returns whether OpenVINO computes exactly with bytes, by what the processor says."""
    if not products.are_signed_bytes(filter):
        return False
    if not saturation.lacks_wide_sums() or products.is_by_depth(type, image, filter):
        return True
    return type != OperationType.FULLY_CONNECTED and products.fit_16_bits(filter)


def _has_floats(model: Model) -> bool:
    """Returns whether anything but constants is floating point."""
    return any(
        operand.type in lowered.REALS and not is_constant(operand)
        for operand in model.main.operands
    )


def _is_whole(model: Model) -> bool:
    """Returns whether all is computed with whole numbers, which float32 holds exactly."""
    quantized = any(is_quantized(operand.type) for operand in model.main.operands)
    known = (validation.find_operation(model, each.type) for each in model.main.operations)
    rounded = any(operation is not None and operation.facts.rounds_reals for operation in known)
    return quantized and not rounded and not _has_floats(model)
