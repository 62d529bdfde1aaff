"""The LiteRT engine: which operations it takes, and models compiled to its files."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import metadata

from nnasync import hal
from nnasync.drivers.litert.graph import Graph
from nnasync.drivers.litert.lowering import EXTENSION_LOWERINGS, LOWERINGS, Lower
from nnasync.drivers.litert.node import Node, Shapes, Unsupported, nodes_of
from nnasync.drivers.litert.plan import LiteRTPlan
from nnasync.drivers.litert.program import Program
from nnasync.engine import Lowering
from nnasync.errors import ModelError
from nnasync.extensions import TFLITE, TfliteOperation, extension_of
from nnasync.hal import (
    Capabilities,
    DeviceType,
    ExecutionPreference,
    Extension,
    Model,
    PerformanceInfo,
    uniform_performance,
)
from nnasync.kernels import NotConstant, is_quantized

__all__ = ["LiteRTEngine", "reasons"]

_DELEGATED, _OWN = "xnnpack", "builtin"
_FIGURES = PerformanceInfo(exec_time=0.3, power_usage=0.3)


class LiteRTEngine:
    """`litert-cpu`: LiteRT with XNNPACK on the processor; the least overhead of a call."""

    name = "litert-cpu"
    type = DeviceType.CPU
    extensions: tuple[Extension, ...] = ()
    concurrency = 0

    capabilities = Capabilities(
        relaxed_float32_to_float16_performance_scalar=_FIGURES,
        relaxed_float32_to_float16_performance_tensor=_FIGURES,
        operand_performance=uniform_performance(_FIGURES),
        if_performance=PerformanceInfo(),
        while_performance=PerformanceInfo(),
    )

    def __init__(self) -> None:
        self.cores = 1

    @property
    def version(self) -> str:
        """Version of the engine's package."""
        try:
            return metadata.version("ai-edge-litert")
        except metadata.PackageNotFoundError:
            return "not installed"

    def supported_operations(self, model: Model) -> list[bool]:
        """Whether each operation of the main subgraph can be lowered."""
        return [reason is None for reason in reasons(model)]

    def lowerings(self, model: Model, preference: ExecutionPreference) -> Sequence[Lowering]:
        """With XNNPACK, and quantised models also with LiteRT's own kernels, which are exact."""
        found = [Lowering(_DELEGATED, threads) for threads in self._threads(preference)]
        if any(is_quantized(operand.type) for operand in model.main.operands):
            found.append(Lowering(_OWN, 1, is_exact=_is_integer(model)))
        return found

    def compile(
        self, model: Model, preference: ExecutionPreference, lowering: Lowering | None = None
    ) -> LiteRTPlan:
        """Lower and load a model.

        Raises ModelError that names an operation that is not supported, GeneralFailure with what
        LiteRT says of a file that it refuses.
        """
        way = lowering or self.lowerings(model, preference)[0]
        return LiteRTPlan(Programs(model, delegated=way.name != _OWN), way.threads)

    def _threads(self, preference: ExecutionPreference) -> Sequence[int]:
        if preference == ExecutionPreference.FAST_SINGLE_ANSWER and self.cores > 1:
            return (self.cores, 1)
        return (1,)


def reasons(model: Model) -> list[str | None]:
    """For each operation of the main subgraph why it is not supported; None if it is."""
    tensors, nodes = nodes_of(model)
    graph = Graph(model, tensors)
    return [_refusal(graph, model, node) for node in nodes]


class Programs:
    """The files that a model becomes, for each set of input shapes that is met.

    Raises ModelError that names an operation that is not supported.
    """

    def __init__(self, model: Model, *, delegated: bool) -> None:
        self.delegated = delegated
        self._model = model
        for position, reason in enumerate(reasons(model)):
            if reason is not None:
                raise self._error(position, reason)

    def usual(self) -> Shapes:
        """The shapes that the model states, where those that it leaves open are omitted."""
        operands = [self._model.main.operands[index] for index in self._model.main.input_indexes]
        return tuple(
            each.dimensions if hal.is_fully_specified(each.type, each.dimensions) else None
            for each in operands
        )

    def program(self, shapes: Shapes) -> Program:
        """The file for inputs of these shapes; raises ModelError."""
        model = self._model
        tensors, nodes = nodes_of(model, shapes)
        graph = Graph(model, tensors)
        for position, node in enumerate(nodes):
            reason = _refusal(graph, model, node)
            if reason is not None:
                raise self._error(position, reason)
        feeds, fetches = graph.interface()
        outputs = [tensors[index] for index in model.main.output_indexes]
        return Program(
            content=graph.content(),
            feeds=tuple(feeds),
            fetches=tuple(fetches),
            input_shapes=shapes,
            output_shapes=tuple(each.shape for each in outputs if each is not None),
            delegated=self.delegated,
            shape_rules=graph.shape_rules() if graph.open else (),
        )

    def _error(self, position: int, reason: str) -> ModelError:
        name = hal.operation_name(self._model.main.operations[position].type)
        return ModelError(f"operation {position} ({name}): {reason}")


def _refusal(graph: Graph, model: Model, node: Node | str) -> str | None:
    """Why an operation cannot be lowered; None where it has been."""
    if isinstance(node, str):
        return node
    lower = _lowering(model, node)
    if lower is None:
        return "the engine has no such operation"
    try:
        lower(graph, node)
    except Unsupported as error:
        return str(error)
    except ModelError as error:
        return f"{error}"
    except NotConstant:
        return "a parameter that only the run tells"
    return None


def _lowering(model: Model, node: Node) -> Lower | None:
    if not hal.is_extension(node.type):
        return LOWERINGS.get(hal.OperationType(node.type))
    found = extension_of(model.extension_name_to_prefix, node.type)
    if found is None or found[0] != TFLITE.name:
        return None
    return EXTENSION_LOWERINGS.get(TfliteOperation(found[1]))


def _is_integer(model: Model) -> bool:
    """Whether nothing is computed in floating point, so that results are the same anywhere."""
    reals = (hal.OperandType.TENSOR_FLOAT32, hal.OperandType.TENSOR_FLOAT16)
    return not any(operand.type in reals for operand in model.main.operands)
