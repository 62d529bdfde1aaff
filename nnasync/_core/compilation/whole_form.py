"""A file as one operation of the engine that it was made for, beside the model that it becomes.

To run a file as it is takes no translation, so that is how a model answers first; and since the
engine's own reading of its format may be the faster one, it competes as well. A plan of one form
can take the place of one of the other where callers see no difference: inputs and outputs are
settled, of types that both forms have alike, and there are no states, which LiteRT keeps inside.
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


def whole_form(spec: CompileSpec) -> CompileSpec | None:
    """The same for the file as one operation; None where a plan of it could not be replaced.

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
    """Whether inputs and outputs are such that a plan of another form can take over."""
    main = model.main
    ends = [main.operands[index] for index in (*main.input_indexes, *main.output_indexes)]
    is_plain = all(each.type in _PLAIN and 0 not in each.dimensions for each in ends)
    return is_plain and not model.state and can_sample(model)


def ends_of(model: Model) -> list[tuple[object, ...]]:
    """What callers see of the inputs and outputs of a model."""
    main = model.main
    ends = [main.operands[index] for index in (*main.input_indexes, *main.output_indexes)]
    return [(each.name, each.type, each.dimensions, each.scale, each.zero_point) for each in ends]
