"""The files that a model becomes: which operations LiteRT has, and what else is in the way."""

from __future__ import annotations

from nnasync import hal
from nnasync._core.drivers.litert.caching import why_open
from nnasync._core.drivers.litert.graph import LiteRTGraph
from nnasync._core.drivers.litert.litert_program import LiteRTProgram, Shapes
from nnasync._core.drivers.litert.lowering import EXTENSION_LOWERINGS, LOWERINGS, PRODUCTS, Lower
from nnasync._core.drivers.litert.node import Node, nodes_of
from nnasync._core.formats.litert_limits import LiteRTUnsupported
from nnasync.errors import ModelError
from nnasync.extensions import extension_of, operation_label
from nnasync.hal import Model
from nnasync.kernels import NotConstant


def reasons(model: Model) -> list[str | None]:
    """Returns for each operation of the main subgraph why it is not supported; None if it is."""
    tensors, nodes = nodes_of(model)
    graph = LiteRTGraph(model, tensors)
    return [_refusal(graph, model, node) for node in nodes]


def has_products(model: Model) -> bool:
    """Returns whether an operation can be computed by matrix products of a form that suits it."""
    operations = model.main.operations
    if not any(operation.type in PRODUCTS for operation in operations):
        return False
    tensors, nodes = nodes_of(model)
    graph = LiteRTGraph(model, tensors)
    return any(not isinstance(node, str) and _becomes_products(graph, node) for node in nodes)


class LiteRTPrograms:
    """The files that a model becomes, for each set of input shapes that is met.

    Raises ModelError that names an operation that is not supported.
    """

    warms_up = True

    def __init__(self, model: Model, *, delegated: bool, products: bool = False) -> None:
        """`products`: operations become matrix products where that suits them."""
        self.delegated = delegated
        self._products = products
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

    def opened(self, shapes: Shapes, threads: int) -> tuple[LiteRTProgram, None]:
        """Returns the program for these shapes, without an interpreter."""
        return self.program(shapes), None

    def why_open(self) -> str:
        """Returns why inputs may come in other shapes; empty where they may not."""
        return why_open(self._model)

    def program(self, shapes: Shapes) -> LiteRTProgram:
        """The file for inputs of these shapes; raises ModelError."""
        model = self._model
        tensors, nodes = nodes_of(model, shapes)
        graph = LiteRTGraph(model, tensors)
        for position, node in enumerate(nodes):
            if self._products and not isinstance(node, str) and _becomes_products(graph, node):
                continue
            reason = _refusal(graph, model, node)
            if reason is not None:
                raise self._error(position, reason)
        graph.arrange()
        feeds, fetches = graph.interface()
        outputs = [tensors[index] for index in model.main.output_indexes]
        return LiteRTProgram(
            content=graph.content(),
            feeds=tuple(feeds),
            fetches=tuple(fetches),
            input_shapes=shapes,
            output_shapes=tuple(each.shape for each in outputs if each is not None),
            delegated=self.delegated,
            shape_rules=graph.shape_rules() if graph.open else (),
        )

    def _error(self, position: int, reason: str) -> ModelError:
        operation = self._model.main.operations[position]
        name = operation_label(self._model.extension_name_to_prefix, operation.type)
        return ModelError(f"operation {position} ({name}): {reason}")


def _refusal(graph: LiteRTGraph, model: Model, node: Node | str) -> str | None:
    """Returns why an operation cannot be lowered; None where it has been."""
    if isinstance(node, str):
        return node
    lower = _lowering(model, node)
    if lower is None:
        return "the engine has no such operation"
    try:
        lower(graph, node)
    except LiteRTUnsupported as error:
        return str(error)
    except ModelError as error:
        return f"{error}"
    except NotConstant:
        return "a parameter that only the run tells"
    except OverflowError as error:
        return f"the engine takes numbers of 32 bits: {error}"
    return None


def _becomes_products(graph: LiteRTGraph, node: Node) -> bool:
    """Returns whether an operation has been lowered to matrix products."""
    lower = None if hal.is_extension(node.type) else PRODUCTS.get(hal.OperationType(node.type))
    if lower is None:
        return False
    try:
        lower(graph, node)
    except (LiteRTUnsupported, ModelError, NotConstant, OverflowError):
        return False
    return True


def _lowering(model: Model, node: Node) -> Lower | None:
    if not hal.is_extension(node.type):
        return LOWERINGS.get(hal.OperationType(node.type))
    found = extension_of(model.extension_name_to_prefix, node.type)
    return None if found is None else EXTENSION_LOWERINGS.get(found)
