"""Building a model by hand.

    m = ModelBuilder("counter")
    x = m.input("step", (1, 1))
    total = m.state("total", (1, 1))
    y = m.add(total, x)
    m.update(total, y)
    m.output("sum", y)
    model = m.build()

Inputs come in the order in which they were declared, states after them; likewise the outputs.
"""

from __future__ import annotations

from nnasync._core.model.constants import Constants
from nnasync._core.model.control_flow import ControlFlow
from nnasync._core.model.graph import Value
from nnasync._core.validation import validate_model
from nnasync.errors import ModelError
from nnasync.hal import Model, OperandLifeTime, OperandType, Shape, StatePair
from nnasync.kernels.operation import Tensor
from nnasync.tracing import vlog


class ModelBuilder(ControlFlow):
    """Builds a model's main subgraph, its states and its constants."""

    def __init__(self, name: str = "", *, relaxed: bool = False) -> None:
        """With `relaxed`, float32 may be computed in float16."""
        super().__init__(Constants())
        self.name = name
        self._relaxed = relaxed
        self._states: dict[int, int | None] = {}

    def state(
        self,
        name: str,
        shape: Shape,
        *,
        type: OperandType = OperandType.TENSOR_FLOAT32,
        scale: float = 0.0,
        zero_point: int = 0,
    ) -> Value:
        """A value that a stream carries from run to run, zero at first; see `update`."""
        tensor = Tensor(type=type, shape=tuple(shape), scale=scale, zero_point=zero_point)
        value = self._add(tensor, OperandLifeTime.SUBGRAPH_INPUT, name)
        self._states[value.index] = None
        return value

    def update(self, state: Value, new: Value) -> None:
        """Make `new` the state's value in the next run."""
        self._check_mine(state)
        if state.index not in self._states:
            raise ModelError(f"{state!r} is not a state")
        if self._states[state.index] is not None:
            raise ModelError(f"{state!r} is updated twice")
        value = self._exclusive(new)
        draft = self._drafts[value.index]
        draft.lifetime = OperandLifeTime.SUBGRAPH_OUTPUT
        draft.name = f"{self.name_of(state)}/next"
        self._states[state.index] = value.index

    def build(self) -> Model:
        """The finished, validated model; raises ModelError where something is not legal."""
        pairs = []
        inputs, outputs = list(self._inputs), list(self._outputs)
        for state, new in self._states.items():
            if new is None:
                name = self._drafts[state].name
                raise ModelError(f'state "{name}" (operand {state}) is never updated')
            pairs.append(StatePair(len(inputs), len(outputs)))
            inputs.append(state)
            outputs.append(new)
        values, pools, places = self._constants.finish()
        model = Model(
            main=self._finish(places, inputs, outputs),
            referenced=tuple(
                part._finish(places, part._inputs, part._outputs) for part in self._referenced
            ),
            operand_values=values,
            pools=pools,
            relax_computation_float32_to_float16=self._relaxed,
            extension_name_to_prefix=self._extensions.entries(),
            state=tuple(pairs),
            name=self.name,
        )
        validate_model(model)
        vlog.model("built %s: %d operations", model.name or "a model", len(model.main.operations))
        return model
