"""A model as a graph of OpenVINO."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nnasync._core.drivers.openvino.graph_scope import Node, Scope
from nnasync._core.drivers.openvino.lowering import products
from nnasync._core.drivers.openvino.package import faults, module
from nnasync._core.drivers.openvino.unsupported import LoweringStep, resolve
from nnasync.errors import GeneralFailure, ModelError
from nnasync.hal import Model, Shape, Struct
from nnasync.kernels import Tensor


class OpenVinoGraph(Struct, frozen=True):
    """A graph, and the shapes of its outputs; parameters and results are in the model's order."""

    network: Any
    output_shapes: tuple[Shape, ...]


def translate(model: Model, precision: str) -> OpenVinoGraph:
    """The graph of a model for products of a precision: f32, bf16, or int8 for those of bytes.

    Raises ModelError that names what is not lowered.
    """
    tensors, steps = resolve(model)
    for position, step in enumerate(steps):
        if step.build is None:
            raise ModelError(f"operation {position}: {step.reason}")
    inputs = [_known(tensors, index) for index in model.main.input_indexes]
    outputs = [_known(tensors, index) for index in model.main.output_indexes]
    scope = Scope(precision)
    with faults("building the graph"):
        for index, tensor in enumerate(tensors):
            if tensor is not None:
                scope.define(index, tensor)
        parameters = []
        for index, tensor in zip(model.main.input_indexes, inputs, strict=True):
            memory, value = scope.parameter(tensor)
            scope.define(index, tensor, value)
            parameters.append(memory)
        _build(scope, steps, _for_products(model))
        results = [
            _result(scope, scope.operand(index), tensor, parameters)
            for index, tensor in zip(model.main.output_indexes, outputs, strict=True)
        ]
        network = module().Model(results, parameters, model.name or "network")
    return OpenVinoGraph(network, tuple(tensor.shape for tensor in outputs))


def _for_products(model: Model) -> set[int]:
    """The operands that nothing but products read."""
    main = model.main
    others = {
        index
        for operation in main.operations
        if operation.type not in products.RULES
        for index in operation.inputs
    }
    return set(range(len(main.operands))) - others - set(main.output_indexes)


def _build(scope: Scope, steps: Sequence[LoweringStep], for_products: set[int]) -> None:
    for step in steps:
        if step.build is None:
            continue
        outputs = step.operation.outputs
        scope.enter(step.operation.inputs, is_for_products=for_products.issuperset(outputs))
        results = step.build(scope)
        for index, tensor, result in zip(
            step.operation.outputs, step.outputs, results, strict=True
        ):
            scope.define(index, tensor, result)


def _result(scope: Scope, value: Node, tensor: Tensor, parameters: Sequence[Node]) -> Node:
    """The end of the graph for an output; raises GeneralFailure for one of another shape."""
    node = scope.memory(value, tensor)
    if any(node is parameter for parameter in parameters):
        # OpenVINO does not write an output that is an input, if its memory was given.
        node = scope.reshape(node, tensor.shape)
    result = scope.op.result(node)
    shape = tuple(result.get_output_shape(0))
    if shape != tensor.shape:
        raise GeneralFailure(
            f"OpenVINO would give an output the shape {list(shape)}, not {list(tensor.shape)}"
        )
    return result


def _known(tensors: Sequence[Tensor | None], index: int) -> Tensor:
    tensor = tensors[index]
    if tensor is None or not tensor.is_known:
        raise ModelError(f"operand {index}: its shape is only known when the network runs")
    return tensor
