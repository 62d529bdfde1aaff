"""Reading a model as a driver: arguments of operations by name, and all known shapes.

Most operations of the HAL have several forms, told apart by the number and the types of their
inputs. Here they come by the names of docs/operations.md, whichever form it is.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Mapping, Sequence

from nnasync import hal
from nnasync._core.validation.operations import find_operation, read_operation
from nnasync._core.validation.tensors import operand_tensor, subgraph_tensors
from nnasync.errors import ModelError
from nnasync.extensions import operation_label
from nnasync.hal import Array, Model, Operation, Struct
from nnasync.kernels import Tensor


class Argument(Struct, frozen=True):
    """An input of an operation: the number of its operand, and what is known of it.

    `tensor` has type, shape, scale, zero point, quantization by channel, and the value of a
    constant; it is None where the caller omitted the input.
    """

    number: int
    tensor: Tensor | None

    @property
    def value(self) -> Array | None:
        """The value of a constant, without a copy; None for everything else."""
        return None if self.tensor is None else self.tensor.value


def arguments(
    model: Model, operation: Operation, tensors: Sequence[Tensor | None] | None = None
) -> Mapping[str, Argument]:
    """The inputs of an operation of the main subgraph by name, in their order.

    What a form does not have is not there, so look with `get`. Of an input that comes several
    times, as with CONCATENATION, the second is `input_1`, the next `input_2`. `tensors` are those
    of `resolved`. Raises ModelError for an operation that is not known here, such as a vendor's.
    """
    known = find_operation(model, operation.type)
    if known is None:
        name = operation_label(model.extension_name_to_prefix, operation.type)
        raise ModelError(f"{name} is not known here: nobody can say what its arguments are called")
    operands = model.main.operands
    signature = known.signature(
        [_type(operands[number]) for number in operation.inputs],
        [operands[number].type for number in operation.outputs],
    )
    found: dict[str, Argument] = {}
    counts: Counter[str] = Counter()
    parameters = signature.parameters(len(operation.inputs)) or ()
    for parameter, number in zip(parameters, operation.inputs, strict=True):
        tensor = operand_tensor(model, operands[number]) if tensors is None else tensors[number]
        again = counts[parameter.name]
        found[f"{parameter.name}_{again}" if again else parameter.name] = Argument(number, tensor)
        counts[parameter.name] += 1
    return found


def resolved(model: Model) -> list[Tensor | None]:
    """Returns the tensor of each operand of the main subgraph, with all shapes known ahead.

    Shapes of temporaries and outputs which the model leaves open are there where they follow from
    the rest. One that depends on the values of a run, or on an input of unknown shape, is not: its
    tensor says False to `is_known`.
    """
    tensors = subgraph_tensors(model, model.main)
    for operation in model.main.operations:
        with contextlib.suppress(ModelError):
            read_operation(model, operation, tensors)
    return tensors


def _type(operand: hal.Operand) -> int | None:
    """The type of an operand; None of one that is omitted."""
    return None if operand.lifetime == hal.OperandLifeTime.NO_VALUE else operand.type
