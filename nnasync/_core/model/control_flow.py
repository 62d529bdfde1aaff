"""IF and WHILE as functions of functions: the branches and the body are built by callables.

    def smaller(g, x):
        return g.operation(OperationType.LESS, x, np.float32([10]))

    def doubled(g, x):
        return g.add(x, x)

    y = m.while_loop(smaller, doubled, x)

A callable gets a builder of its own subgraph and that subgraph's inputs, and returns its outputs.
It sees nothing of the outer subgraph: whatever it reads is passed to it or a constant.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from nnasync._core.model.graph import Input, Value
from nnasync._core.model.layers import Layers
from nnasync.errors import ModelError
from nnasync.hal import OperandLifeTime, OperandType, Operation, OperationType, Shape
from nnasync.kernels.operation import Tensor

Part = Callable[..., Value | Sequence[Value]]
"""Builds a subgraph: takes its builder and its inputs, returns its outputs."""


class ControlFlow(Layers):
    """A subgraph under construction that may refer to others."""

    def cond(self, condition: Input, then: Part, otherwise: Part, *values: Input) -> Any:
        """Returns `then(g, *values)` if `condition` (one boolean) is true, else `otherwise`.

        Returns a value, or a tuple if there are several. Both must give the same number of outputs
        of the same types and quantization; a dimension in which they differ is unknown. Raises
        ModelError. (HAL: IF.)
        """
        operands = self._as_values((condition, *values))
        parts = [self._part(part, operands[1:]) for part in (then, otherwise)]
        counts = [len(part._outputs) for part in parts]
        if counts[0] != counts[1]:
            raise ModelError(f"IF: one branch gives {counts[0]} outputs, the other {counts[1]}")
        pairs = zip(*(part._output_values() for part in parts), strict=True)
        results = [_either(one.tensor, other.tensor) for one, other in pairs]
        inputs = [operands[0], *(self._reference(part) for part in parts), *operands[1:]]
        return self._branching(OperationType.IF, inputs, results)

    def while_loop(
        self, condition: Part, body: Part, *values: Input, constants: Sequence[Input] = ()
    ) -> Any:
        """The values after running `body` for as long as `condition` gives true.

        `condition(g, *values, *constants)` gives one boolean, `body(g, *values, *constants)` the
        new values, of the same shapes. Returns a value, or a tuple if there are several. Raises
        ModelError. (HAL: WHILE.)
        """
        operands = self._as_values((*values, *constants))
        parts = [self._part(part, operands) for part in (condition, body)]
        results = parts[1]._output_values()
        if len(results) != len(values):
            raise ModelError(
                f"WHILE: the body gives {len(results)} values, the loop has {len(values)}"
            )
        for position, (before, after) in enumerate(zip(operands, results, strict=False)):
            if before.shape != after.shape or before.type != after.type:
                raise ModelError(
                    f"WHILE: value {position} is {before!r} before the body and {after!r} after it"
                )
        inputs = [*(self._reference(part) for part in parts), *operands]
        tensors = [msgspec.structs.replace(value.tensor, value=None) for value in results]
        return self._branching(OperationType.WHILE, inputs, tensors)

    def _as_values(self, inputs: Sequence[Input]) -> list[Value]:
        values = []
        for item in inputs:
            if item is None:
                raise ModelError("a value of a branch or a loop cannot be omitted")
            value = item if isinstance(item, Value) else self.constant(item)
            self._check_mine(value)
            values.append(value)
        return values

    def _part(self, build: Part, values: Sequence[Value]) -> ControlFlow:
        """The subgraph that a callable builds for inputs like these values."""
        part = ControlFlow(self._constants, self._referenced, self._extensions)
        inputs = [
            part.input(
                "",
                each.shape,
                type=OperandType(each.type),
                scale=each.scale,
                zero_point=each.zero_point,
            )
            for each in values
        ]
        outputs = build(part, *inputs)
        for output in (outputs,) if isinstance(outputs, Value) else outputs:
            part.output("", output)
        return part

    def _reference(self, part: ControlFlow) -> Value:
        """The operand that stands for a subgraph."""
        self._referenced.append(part)
        value = self._add(Tensor(type=OperandType.SUBGRAPH), OperandLifeTime.SUBGRAPH, "")
        self._drafts[value.index].subgraph = len(self._referenced) - 1
        return value

    def _branching(
        self, type: OperationType, inputs: Sequence[Value], outputs: Sequence[Tensor]
    ) -> Any:
        results = tuple(
            self._add(tensor, OperandLifeTime.TEMPORARY_VARIABLE, "") for tensor in outputs
        )
        for value in inputs:
            self._drafts[value.index].consumers += 1
        indexes = (tuple(value.index for value in values) for values in (inputs, results))
        self._operations.append(Operation(type, *indexes))
        return results[0] if len(results) == 1 else results


def _either(one: Tensor, other: Tensor) -> Tensor:
    """Returns the tensor of a value that is one or the other."""
    shape: Shape = ()
    if len(one.shape) == len(other.shape):
        shape = tuple(a if a == b else 0 for a, b in zip(one.shape, other.shape, strict=True))
    return msgspec.structs.replace(one, shape=shape, value=None)
