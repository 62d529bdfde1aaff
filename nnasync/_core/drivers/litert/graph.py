"""The file that a model becomes, while its operations are lowered one by one.

Every operand has a tensor of the file; float16 is float32 inside and converted where arrays are
bound. A recurrent operation's state is a variable tensor of the engine: it is written before and
read after each run, so it must come from an input or a constant and go to an output, if anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from nnasync._core.drivers.litert.flatbuffer import NO_OPTIONS, FileTensor, FileWriter, Options
from nnasync._core.drivers.litert.litert_program import Copy, Feed, Fetch, ShapeRule
from nnasync._core.drivers.litert.node import Node, is_final
from nnasync._core.drivers.litert.operands import HALVES, file_tensor, reshaped
from nnasync._core.formats.litert_limits import LiteRTUnsupported, check_multipliers
from nnasync.hal import Array, Model, OperandLifeTime, OperandType, Shape, Subgraph
from nnasync.kernels import Tensor

_ACTIVATION, _LAST_ACTIVATION = "FusedActivationFunction", 5


class LiteRTGraph:
    """A file under construction, for the operands of one model.

    Raises Unsupported for what the engine has no tensor for.
    """

    def __init__(self, model: Model, tensors: Sequence[Tensor | None]) -> None:
        self.file = FileWriter()
        self.states: list[Feed] = []
        self.results: list[Fetch] = []
        self.undefined: set[int] = set()
        self.open: dict[int, Node] = {}
        self._model = model
        self._tensors = tensors
        self._indexes: dict[int, int] = {}

    # -- operands

    def input(self, node: Node, position: int) -> int:
        """The tensor of an input, -1 where it is omitted."""
        if node.arguments.optional(position) is None:
            return -1
        return self.operand(node.inputs[position])

    def inputs(self, node: Node, *positions: int) -> list[int]:
        """The tensors of some inputs."""
        return [self.input(node, position) for position in positions]

    def exact(self, node: Node, position: int) -> int:
        """The tensor of an input, rounded to float16 where it is that and another operation's.

        float16 is computed in float32. Rounding hardly matters but where a function jumps: 0.99999
        is 1 in float16, whose floor is another one.
        """
        tensor, index = node.tensor(position), node.inputs[position]
        source = self.input(node, position)
        main = self._model.main
        if tensor.type not in HALVES or main.operands[index].lifetime not in _COMPUTED:
            return source
        half = self.file.tensor(FileTensor(type="FLOAT16", shape=tensor.shape))
        rounded = self.like(tensor)
        self.emit("CAST", [source], [half], "CastOptions")
        self.emit("CAST", [half], [rounded], "CastOptions")
        return rounded

    def output(self, node: Node, position: int = 0) -> int:
        """The tensor of an output."""
        return self.operand(node.outputs[position])

    def result(self, node: Node, position: int = 0) -> Tensor:
        """Returns the description of an output."""
        tensor = self._tensors[node.outputs[position]]
        if tensor is None:
            raise LiteRTUnsupported(f"output {position} has no value")
        if not tensor.is_known:
            raise LiteRTUnsupported(f"the shape of output {position} depends on a value of the run")
        return tensor

    def parameter(self, node: Node, name: str) -> int:
        """The tensor of a named integer input, even if only a run tells its value.

        Then the shape of the output is found by the run too, and nobody else may read it.
        """
        position = node.index(name)
        if position is None:
            raise LiteRTUnsupported(f"{name} is not given")
        if node.tensor(position).value is None:
            if self.states or not is_final(self._model, node.outputs[0]):
                raise LiteRTUnsupported(
                    f"{name} is only known in a run, and others need the result"
                )
            if node.inputs[position] not in self._model.main.input_indexes:
                raise LiteRTUnsupported(f"{name} is computed")
            self.open[node.outputs[0]] = node
        return self.input(node, position)

    def shape_rules(self) -> tuple[ShapeRule | None, ...]:
        """Returns for each output how a run finds its shape; None where the shape is known."""
        main = self._model.main
        return tuple(
            _shape_rule(self.open[index], main) if index in self.open else None
            for index in main.output_indexes
        )

    def operand(self, index: int) -> int:
        """The tensor of an operand, whatever it is."""
        if index not in self._indexes:
            tensor = self._tensors[index]
            if tensor is None:
                raise LiteRTUnsupported(f"operand {index} has no value")
            if not tensor.is_known:
                if index not in self.open:
                    raise LiteRTUnsupported("the shape of an output depends on a value of the run")
                tensor = reshaped(tensor, ())
            self._indexes[index] = self.add(tensor)
        return self._indexes[index]

    def is_seen(self, index: int) -> bool:
        """Returns whether an operand is an output of the model."""
        return index in self._model.main.output_indexes

    def define(self, node: Node, tensor: int, output: int = 0) -> None:
        """Make a tensor an output of an operation; it may be several."""
        self._indexes[node.outputs[output]] = tensor

    def add(self, tensor: Tensor) -> int:
        """A tensor of its own, a constant if it has a value."""
        return self.file.tensor(file_tensor(tensor))

    def like(self, tensor: Tensor, shape: Shape | None = None) -> int:
        """A tensor for an intermediate value."""
        wanted = tensor.shape if shape is None else shape
        return self.add(msgspec.structs.replace(tensor, shape=wanted, value=None))

    def integers(self, values: Sequence[int]) -> int:
        """A constant of one dimension; raises Unsupported for what takes more than 32 bits."""
        if any(not -(2**31) <= value < 2**31 for value in values):
            raise LiteRTUnsupported(f"{list(values)}, of which the engine takes 32 bits")
        return self.constant(np.asarray(values, np.int32))

    def constant(self, value: Array) -> int:
        """A constant that is not quantized: float32, int32 or bool."""
        type = {"f": "FLOAT32", "i": "INT32", "b": "BOOL"}[value.dtype.kind]
        return self.file.tensor(FileTensor(type=type, shape=value.shape, value=value))

    # -- operators

    def emit(
        self,
        name: str,
        inputs: Sequence[int],
        outputs: Sequence[int],
        table: str = "",
        options: Options = NO_OPTIONS,
    ) -> None:
        """Add an operator; `table` and `options` have the schema's names.

        Raises Unsupported for scales that its kernel does not survive, and for an activation that
        the schema does not have.
        """
        activation = options.get(_ACTIVATION, 0)
        if not 0 <= activation <= _LAST_ACTIVATION:
            raise LiteRTUnsupported(f"activation {activation}, which is none")
        tensors = self.file.tensors
        check_multipliers(
            name,
            [tensors[index] for index in inputs if index >= 0],
            [tensors[index] for index in outputs],
        )
        self.file.operator(name, inputs, outputs, table, options)

    def quantized(self, source: int, target: Tensor) -> int:
        """A value in the quantization of another tensor, which has its shape."""
        result = self.like(target)
        self.emit("QUANTIZE", [source], [result], "QuantizeOptions")
        return result

    def dequantized(self, source: int, tensor: Tensor) -> int:
        """A quantized value, of which this is known, in float32."""
        if tensor.value is not None:
            zero_point = np.float32(tensor.zero_point)
            with np.errstate(all="ignore"):
                real = (tensor.value.astype(np.float32) - zero_point) * np.float32(tensor.scale)
            return self.constant(real)
        result = self.like(Tensor(type=OperandType.TENSOR_FLOAT32, shape=tensor.shape))
        self.emit("DEQUANTIZE", [source], [result], "DequantizeOptions")
        return result

    def reshape(self, source: int, target: int, shape: Shape) -> None:
        """Copy a value to a tensor of another shape, or of the same."""
        self.emit("RESHAPE", [source, self.integers(shape)], [target])

    def transpose(self, source: int, target: int, order: Sequence[int]) -> None:
        """Copy a value with its dimensions in another order."""
        self.emit("TRANSPOSE", [source, self.integers(order)], [target], "TransposeOptions")

    # -- states

    def state(
        self, node: Node, position: int, output: int | None, copy: Copy, columns: int = 0
    ) -> int:
        """A variable tensor for the state at an input; `output` is where the new one goes.

        Raises Unsupported where the state comes from or goes to another operation.
        """
        index = node.inputs[position]
        tensor = node.tensor(position)
        variable = self.file.tensor(
            msgspec.structs.replace(file_tensor(tensor), value=None, is_variable=True)
        )
        if copy is Copy.BYTES and tensor.type in HALVES:
            copy = Copy.CONVERT
        operand = self._model.main.operands[index]
        if operand.lifetime == OperandLifeTime.SUBGRAPH_INPUT:
            source = self._model.main.input_indexes.index(index)
            self.states.append(Feed(variable, source, None, copy, columns))
        elif tensor.value is not None:
            self.states.append(Feed(variable, -1, tensor.value, copy, columns))
        else:
            raise LiteRTUnsupported(f"input {position} is a state that another operation computes")
        if output is not None:
            self._new_state(node.outputs[output], Fetch(0, variable, copy, columns))
        return variable

    def _new_state(self, index: int, fetch: Fetch) -> None:
        operand = self._model.main.operands[index]
        if operand.number_of_consumers:
            raise LiteRTUnsupported("another operation reads the new state")
        if operand.lifetime == OperandLifeTime.SUBGRAPH_OUTPUT:
            target = self._model.main.output_indexes.index(index)
            self.results.append(msgspec.structs.replace(fetch, target=target))
        self.undefined.add(index)

    def unwritten(self, node: Node, output: int) -> None:
        """An output whose content means nothing; nobody may read it."""
        index = node.outputs[output]
        if self._model.main.operands[index].number_of_consumers:
            raise LiteRTUnsupported(f"another operation reads output {output}, which is scratch")
        self.undefined.add(index)

    # -- the whole

    def arrange(self) -> None:
        """Have the inputs of the model lie side by side, and the outputs; when all is lowered."""
        main = self._model.main
        ends = [index for index in main.output_indexes if index not in self.undefined]
        known = [self._indexes[index] for index in main.input_indexes if index in self._indexes]
        places = self.file.arrange([*known, *(self.operand(index) for index in ends)])
        replace = msgspec.structs.replace
        self._indexes = {index: places[tensor] for index, tensor in self._indexes.items()}
        self.states = [replace(each, tensor=places[each.tensor]) for each in self.states]
        self.results = [replace(each, tensor=places[each.tensor]) for each in self.results]

    def interface(self) -> tuple[list[Feed], list[Fetch]]:
        """Returns what is written before and read after a run, states included."""
        main = self._model.main
        feeds = list(self.states)
        for position, index in enumerate(main.input_indexes):
            if index in self._indexes:
                feeds.append(Feed(self._indexes[index], position, copy=self._copy(index)))
        fetches = list(self.results)
        for position, index in enumerate(main.output_indexes):
            if index not in self.undefined:
                fetches.append(Fetch(position, self.operand(index), self._copy(index)))
        return feeds, fetches

    def content(self) -> bytes:
        """The file; its inputs and outputs are those of the model that are no states."""
        main = self._model.main
        known = self._indexes
        inputs = [known[index] for index in main.input_indexes if index in known]
        outputs = [known[index] for index in main.output_indexes if index not in self.undefined]
        return self.file.finish(inputs, list(dict.fromkeys(outputs)))

    def _copy(self, index: int) -> Copy:
        return Copy.CONVERT if self._model.main.operands[index].type in HALVES else Copy.BYTES


_COMPUTED = (OperandLifeTime.TEMPORARY_VARIABLE, OperandLifeTime.SUBGRAPH_OUTPUT)


def _shape_rule(node: Node, main: Subgraph) -> ShapeRule:
    """The shape of an output from the values of the inputs, by the rule of the operation."""
    places = {
        position: main.input_indexes.index(index)
        for position, index in enumerate(node.inputs)
        if index in main.input_indexes
    }

    def rule(arrays: Sequence[Array | None]) -> Shape:
        inputs = list(node.arguments.inputs)
        for position, place in places.items():
            tensor = inputs[position]
            if tensor is not None:
                inputs[position] = msgspec.structs.replace(tensor, value=arrays[place])
        return node.known.infer(inputs)[0].shape

    return rule


Lower = Callable[[LiteRTGraph, Node], None]
"""Adds what an operation becomes to a file; raises Unsupported."""
