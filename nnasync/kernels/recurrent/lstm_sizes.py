"""Which operands an LSTM has: their names, the rules on what goes with what, and the sizes.

Operands are optional in groups. Without the input gate's weights, forget and input gate are coupled
(CIFG: the input gate is 1 minus the forget gate). Peephole weights let the gates see the cell
state; projection maps the units to outputs; layer norm normalizes each gate over the units;
auxiliary weights add a second input.
"""

from __future__ import annotations

from collections.abc import Sequence

from nnasync.hal import OperandType, Struct
from nnasync.kernels.operation import Arguments, Parameter, Tensor

INPUT, PROJECTION, PROJECTION_BIAS, OUTPUT_STATE, CELL_STATE = 0, 16, 17, 18, 19
GATES = ("input", "forget", "cell", "output")
"""Gates in the order of the operands: `n` of 0..3 has input weights at role 1 + n, recurrent ones
at 5 + n, the bias at 12 + n; peepholes are at 9 (input), 10 (forget) and 11 (output)."""

_ROLES: tuple[tuple[str, int, bool], ...] = (
    ("input", 2, False),
    ("input_to_input_weights", 2, True),
    ("input_to_forget_weights", 2, False),
    ("input_to_cell_weights", 2, False),
    ("input_to_output_weights", 2, False),
    ("recurrent_to_input_weights", 2, True),
    ("recurrent_to_forget_weights", 2, False),
    ("recurrent_to_cell_weights", 2, False),
    ("recurrent_to_output_weights", 2, False),
    ("cell_to_input_weights", 1, True),
    ("cell_to_forget_weights", 1, True),
    ("cell_to_output_weights", 1, True),
    ("input_gate_bias", 1, True),
    ("forget_gate_bias", 1, False),
    ("cell_bias", 1, False),
    ("output_gate_bias", 1, False),
    ("projection_weights", 2, True),
    ("projection_bias", 1, True),
    ("output_state_in", 2, False),
    ("cell_state_in", 2, False),
)


def cell_parameters(
    types: Sequence[OperandType], *, prefix: str = "", rank: int = 2
) -> tuple[Parameter, ...]:
    """The parameters of the 20 roles; `rank` is that of the input.

    An optional matrix may be given as an empty vector, so that its rank is left open.
    """
    ranks = [rank, *(size for _, size, _ in _ROLES[1:])]
    return tuple(
        Parameter(prefix + name, type, optional, () if optional and size == 2 else (size,))
        for (name, _, optional), type, size in zip(_ROLES, types, ranks, strict=True)
    )


def norm_parameters(type: OperandType, prefix: str = "") -> tuple[Parameter, ...]:
    """The parameters of the layer norm weights."""
    return tuple(
        Parameter(f"{prefix}{gate}_layer_norm_weights", type, True, (1,)) for gate in GATES
    )


class Places(Struct, frozen=True):
    """Where the operands of a cell stand among the inputs of an operation.

    `roles` are the 20 of the table above; `norms` and `aux` weights belong to the four gates.
    """

    roles: tuple[int, ...]
    norms: tuple[int, ...]
    aux: tuple[int, ...] = ()


class LstmSizes:
    """Sizes of an LSTM, read from operands that are checked for presence and shape."""

    def __init__(self, arguments: Arguments, places: Places) -> None:
        self.arguments = arguments
        self.places = places
        self.units, self.input = self.required(2).shape
        self.output = self.required(6).shape[-1]
        self.cifg = not self.has(1)
        self.peephole = self.has(10)
        self.projection = self.has(PROJECTION)
        self.norm = arguments.has(places.norms[1])
        self.aux = bool(places.aux) and arguments.has(places.aux[1])
        self.gates = (1, 2, 3) if self.cifg else (0, 1, 2, 3)
        self._check_presence()
        self._check_shapes()

    @property
    def features(self) -> tuple[bool, bool, bool, bool]:
        """Returns what the two directions of a bidirectional LSTM must have in common."""
        return self.cifg, self.peephole, self.projection, self.norm

    def has(self, role: int) -> bool:
        """Returns whether an operand is there."""
        return self.arguments.has(self.places.roles[role])

    def required(self, role: int) -> Tensor:
        """An operand that must be there."""
        ranks = (2,) if role not in (INPUT, *range(9, 16), PROJECTION_BIAS) else ()
        return self.arguments.tensor(self.places.roles[role], *ranks)

    def check_state(self, batches: int) -> None:
        """Raises ModelError unless the states in have the right shapes."""
        self.arguments.check_shape(self.places.roles[OUTPUT_STATE], (batches, self.output))
        self.arguments.check_shape(self.places.roles[CELL_STATE], (batches, self.units))

    def _require(self, index: int, present: bool, why: str) -> None:
        if self.arguments.has(index) != present:
            word = "must not be omitted" if present else "must be omitted"
            raise self.arguments.error(index, f"{word} {why}")

    def _check_presence(self) -> None:
        roles, norms = self.places.roles, self.places.norms
        why = "without input_to_input_weights (CIFG)" if self.cifg else "with an input gate"
        for role in (5, 12):
            self._require(roles[role], not self.cifg, why)
        self._require(roles[11], self.peephole, "to match cell_to_forget_weights")
        if not (self.cifg and self.peephole):
            self._require(roles[9], self.peephole, "to match the other peephole weights")
        if not self.projection:
            self._require(roles[PROJECTION_BIAS], False, "without projection_weights")
            if self.output != self.units:
                raise self.arguments.error(
                    roles[6], f"has {self.output} columns, expected {self.units}"
                )
        layer = "to match the other layer norm weights"
        self._require(norms[0], self.norm and not self.cifg, layer)
        for index in norms[2:]:
            self._require(index, self.norm, layer)
        for gate, index in enumerate(self.places.aux):
            if gate or not self.cifg:
                self._require(index, self.aux, "to match the other auxiliary weights")

    def _check_shapes(self) -> None:
        units, output, roles = self.units, self.output, self.places.roles
        for role in range(1, 18):
            shape: tuple[int, ...] = (units,)
            if role < 5:
                shape = (units, self.input)
            elif role < 9:
                shape = (units, output)
            elif role >= PROJECTION:
                shape = (output, units) if role == PROJECTION else (output,)
            self.arguments.check_shape(roles[role], shape)
        for index in self.places.norms:
            self.arguments.check_shape(index, (units,))
        source = self.required(INPUT)
        if source.shape[-1] != self.input:
            raise self.arguments.error(
                roles[INPUT], f"has {source.shape[-1]} features, expected the weights' {self.input}"
            )

    def check_aux(self, features: int) -> None:
        """Raises ModelError unless the auxiliary weights take inputs of this size."""
        for index in self.places.aux:
            self.arguments.check_shape(index, (self.units, features))
