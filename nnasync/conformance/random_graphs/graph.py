"""A graph with all its values: operands, operations, and the model and inputs that they make.

A graph knows the value of each of its inputs and constants, so that it can be run as it is, cut,
and written in other forms that mean the same. A dimension of 0 stands for one that is only known
when the graph runs.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Sequence

import msgspec

from nnasync import hal
from nnasync._core.model.constants import Constants
from nnasync._core.validation import operand_value
from nnasync.errors import InvalidArgument
from nnasync.hal import (
    Array,
    ChannelQuant,
    DataLocation,
    Model,
    OperandLifeTime,
    Operation,
    Shape,
    Struct,
    Subgraph,
)
from nnasync.kernels import Tensor
from nnasync.kernels.facts import CriterionClass


class Origin(enum.Enum):
    """Where the value of an operand comes from."""

    INPUT = "input"
    CONSTANT = "constant"
    COMPUTED = "computed"
    OMITTED = "omitted"


class GraphOperand(Struct, frozen=True, eq=False):
    """One operand; `value` is that of an input or a constant."""

    type: int
    origin: Origin
    shape: Shape = ()
    scale: float = 0.0
    zero_point: int = 0
    channel_quant: ChannelQuant | None = None
    value: Array | None = None

    @property
    def tensor(self) -> Tensor | None:
        """Returns the tensor for kernels, with its value if it is an input; None if omitted."""
        if self.origin is Origin.OMITTED:
            return None
        return Tensor(
            type=self.type,
            shape=self.shape,
            scale=self.scale,
            zero_point=self.zero_point,
            channel_quant=self.channel_quant,
            value=self.value,
        )


class RandomGraph(Struct, frozen=True, eq=False):
    """Operands, operations in the order of execution, and which operands are put out.

    `criteria` are those that the results are held to, None for those of graphs of its size.
    """

    operands: tuple[GraphOperand, ...]
    operations: tuple[Operation, ...]
    outputs: tuple[int, ...]
    name: str = ""
    criteria: CriterionClass | None = None

    @property
    def inputs(self) -> tuple[int, ...]:
        """The operands whose values a caller gives."""
        return tuple(i for i, o in enumerate(self.operands) if o.origin is Origin.INPUT)

    @property
    def input_values(self) -> tuple[Array, ...]:
        """Returns the values that a caller gives."""
        inputs = (operand for operand in self.operands if operand.origin is Origin.INPUT)
        return tuple(operand.value for operand in inputs if operand.value is not None)

    def with_operands(self, changed: dict[int, GraphOperand]) -> RandomGraph:
        """The graph with some operands in another form."""
        operands = tuple(changed.get(i, operand) for i, operand in enumerate(self.operands))
        return msgspec.structs.replace(self, operands=operands)

    def pruned(self) -> RandomGraph:
        """The graph without operands that nobody writes, reads or puts out."""
        used = set(self.outputs)
        for operation in self.operations:
            used.update(operation.inputs, operation.outputs)
        kept = sorted(used)
        place = {old: new for new, old in enumerate(kept)}
        return RandomGraph(
            tuple(self.operands[index] for index in kept),
            tuple(
                Operation(
                    each.type,
                    tuple(place[index] for index in each.inputs),
                    tuple(place[index] for index in each.outputs),
                )
                for each in self.operations
            ),
            tuple(place[index] for index in self.outputs),
            self.name,
            self.criteria,
        )


def model_of(graph: RandomGraph) -> Model:
    """The model of a graph; its inputs are in the order of the graph's."""
    constants = Constants()
    numbers = {
        index: constants.add(operand.value)
        for index, operand in enumerate(graph.operands)
        if operand.origin is Origin.CONSTANT and operand.value is not None
    }
    values, pools, places = constants.finish()
    consumers = Counter(index for each in graph.operations for index in each.inputs)
    operands = []
    for index, operand in enumerate(graph.operands):
        lifetime, location = _LIFETIMES[operand.origin], DataLocation()
        if index in numbers:
            lifetime, location = places[numbers[index]]
        elif operand.origin is Origin.COMPUTED and index in graph.outputs:
            lifetime = OperandLifeTime.SUBGRAPH_OUTPUT
        operands.append(_operand(operand, consumers[index], lifetime, location))
    main = Subgraph(tuple(operands), graph.operations, graph.inputs, graph.outputs)
    return Model(main=main, operand_values=values, pools=pools, name=graph.name)


_LIFETIMES = {
    Origin.INPUT: OperandLifeTime.SUBGRAPH_INPUT,
    Origin.CONSTANT: OperandLifeTime.CONSTANT_COPY,
    Origin.COMPUTED: OperandLifeTime.TEMPORARY_VARIABLE,
    Origin.OMITTED: OperandLifeTime.NO_VALUE,
}


def _operand(
    operand: GraphOperand, consumers: int, lifetime: OperandLifeTime, location: DataLocation
) -> hal.Operand:
    return hal.Operand(
        type=operand.type,
        dimensions=operand.shape,
        number_of_consumers=consumers,
        scale=operand.scale,
        zero_point=operand.zero_point,
        lifetime=lifetime,
        location=location,
        extra_params=operand.channel_quant,
    )


def graph_of(model: Model, inputs: Sequence[Array]) -> RandomGraph:
    """The graph of a model without further subgraphs, with these inputs.

    Raises InvalidArgument for other models and for inputs that do not fit.
    """
    main = model.main
    if model.referenced:
        raise InvalidArgument("a model with referenced subgraphs is no random graph")
    if len(inputs) != len(main.input_indexes):
        raise InvalidArgument(f"{len(inputs)} inputs, the model has {len(main.input_indexes)}")
    given = dict(zip(main.input_indexes, inputs, strict=True))
    for index, array in given.items():
        _check_input(main.operands[index], index, array)
    operands = []
    for index, operand in enumerate(main.operands):
        value = given.get(index)
        origin = Origin.COMPUTED
        if index in given:
            origin = Origin.INPUT
        elif hal.is_constant(operand):
            origin, value = Origin.CONSTANT, operand_value(model, operand)
        elif operand.lifetime == OperandLifeTime.NO_VALUE:
            origin = Origin.OMITTED
        quant = operand.extra_params if isinstance(operand.extra_params, ChannelQuant) else None
        shape = operand.dimensions if value is None else value.shape
        operands.append(
            GraphOperand(
                operand.type, origin, shape, operand.scale, operand.zero_point, quant, value
            )
        )
    return RandomGraph(tuple(operands), main.operations, main.output_indexes, model.name)


def _check_input(operand: hal.Operand, index: int, value: Array) -> None:
    stated = operand.dimensions
    is_typed = value.dtype == hal.dtype_of(operand.type)
    if not (is_typed and hal.has_dimensions(value.shape, stated)):
        raise InvalidArgument(
            f"operand {index} is {value.dtype}{list(value.shape)},"
            f" expected {hal.type_name(operand.type)} {list(stated)}"
        )
