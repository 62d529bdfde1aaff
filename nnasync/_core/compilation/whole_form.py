"""A file as one operation of the engine that it was made for, beside the model that it becomes.

To run a file as it is takes no translation, so that is how a model answers first; and since the
engine's own reading of its format may be the faster one, it competes as well. A plan of one form
can take the place of one of the other where callers see no difference: inputs and outputs are
settled, and of types that both forms have alike. A file with wider ones, such as int64, is
translated first. States are among them: an engine keeps no state of a file inside, but is given it
for each run, so a burst goes on where it was; where a state means something else to LiteRT than to
the HAL, the importer says so, and the file has no whole form.
"""

from __future__ import annotations

from nnasync._core.compilation.spec import CompileSpec, can_sample
from nnasync.errors import NNError
from nnasync.hal import Model, OperandType

_PLAIN = (
    OperandType.TENSOR_FLOAT32,
    OperandType.TENSOR_INT32,
    OperandType.TENSOR_QUANT8_ASYMM,
    OperandType.TENSOR_QUANT8_ASYMM_SIGNED,
)
"""Types of inputs and outputs that are the same whether a file is translated or not."""
_OF_STATES = (*_PLAIN, OperandType.TENSOR_QUANT16_SYMM)
"""The same for states, which are variables of the file; LSTM cells have 16 bits."""


def whole_form(spec: CompileSpec) -> CompileSpec | None:
    """Returns the spec for the file as one operation; None where its plan could not be replaced.

    It blocks while the file is read.
    """
    if spec.whole is None or spec.precision is not None or spec.quantum_ns is not None:
        return None
    try:
        model = spec.whole()
    except NNError:
        return None
    return spec.of(model) if can_be_replaced(model) else None


def can_be_replaced(model: Model) -> bool:
    """Returns whether inputs and outputs are such that a plan of another form can take over."""
    main, states = model.main, model.state
    for indexes, of_states in (
        (main.input_indexes, [pair.input for pair in states]),
        (main.output_indexes, [pair.output for pair in states]),
    ):
        for place, index in enumerate(indexes):
            operand = main.operands[index]
            types = _OF_STATES if place in of_states else _PLAIN
            if operand.type not in types or 0 in operand.dimensions:
                return False
    return can_sample(model)


def ends_of(model: Model) -> tuple[object, ...]:
    """Returns what callers see of a model's inputs and outputs, and which of them are states."""
    main = model.main
    ends = [main.operands[index] for index in (*main.input_indexes, *main.output_indexes)]
    seen = ((each.name, each.type, each.dimensions, each.scale, each.zero_point) for each in ends)
    return (*seen, model.state)
