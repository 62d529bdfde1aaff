"""States of loaded files: outputs that are the next values of inputs, as stated or as guessed.

Most formats do not say which output is fed back into which input, but exporters name the two alike:
`state` and `stateN`, `h` and `hn`, `cache_in` and `cache_out`, `past.0.key` and `present.0.key`. A
guess needs such names, one input and one output of them, one type, and one shape that is known.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import msgspec

from nnasync import hal
from nnasync._core.deferred import deferred
from nnasync.errors import InvalidArgument, ModelError
from nnasync.hal import Model, Operand, StatePair

if TYPE_CHECKING:
    from nnasync._core import validation
else:
    validation = deferred("nnasync._core.validation")

States = Mapping[str, str] | Literal["guess"]
"""Inputs by the names of the outputs that are their next values; "guess" goes by the names."""
GUESS: Literal["guess"] = "guess"

_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+|[0-9]+")
_MARKS = {"in", "out", "input", "output", "past", "present", "new", "next", "n", "prev"}
_MARKS |= {"previous", "old", "init", "initial", "updated"}
"""Words by which the two names of a state differ."""
_STATES = {"state", "states", "hidden", "cell", "h", "c", "rnn", "gru", "lstm", "cache", "memory"}
_STATES |= {"mem", "past", "present", "carry"}
"""Words of which one at least is in the name of a state."""
_SHORT = {"hn": ("h", "n"), "cn": ("c", "n"), "hx": ("h",), "cx": ("c",)}


def with_states(model: Model, state: States) -> Model:
    """A model whose outputs by these names are the next values of inputs.

    An output of unknown dimensions takes those of its input. Raises InvalidArgument for names that
    it does not have, ModelError where the two differ in type or shape, or are a state already.
    """
    pairs = guessed_states(model) if state == GUESS else state
    if not isinstance(pairs, Mapping):
        raise InvalidArgument(f'state={state!r} is neither "guess" nor names of inputs by outputs')
    if not pairs:
        return model
    main, operands = model.main, list(model.main.operands)
    inputs, outputs = _places(model, main.input_indexes), _places(model, main.output_indexes)
    found = list(model.state)
    for new, old in pairs.items():
        if new not in outputs or old not in inputs:
            raise InvalidArgument(
                f"state: no output {new!r} with an input {old!r}; inputs are {', '.join(inputs)},"
                f" outputs {', '.join(outputs)}"
            )
        found.append(StatePair(input=inputs[old], output=outputs[new]))
        index = main.output_indexes[outputs[new]]
        operands[index] = _sized(operands[index], operands[main.input_indexes[inputs[old]]])
    main = msgspec.structs.replace(main, operands=tuple(operands))
    made = msgspec.structs.replace(model, main=main, state=tuple(found))
    validation.validate_model(made)
    return made


def _sized(new: Operand, old: Operand) -> Operand:
    """The next value of a state with the dimensions of the state, where it leaves them open."""
    if not hal.is_fully_specified(old.type, old.dimensions):
        raise ModelError(
            f"state: input {old.name!r} has open dimensions, {list(old.dimensions)}: say how large"
            f" it is, with shapes={{{old.name!r}: ...}}"
        )
    if not hal.has_dimensions(old.dimensions, new.dimensions):
        return new
    return msgspec.structs.replace(new, dimensions=old.dimensions)


def guessed_states(model: Model) -> dict[str, str]:
    """Inputs by the outputs that seem to be their next values, but for those that are states."""
    main = model.main
    taken = {pair.input for pair in model.state}, {pair.output for pair in model.state}
    before, after = (
        _by_stem(main.operands, [n for place, n in enumerate(indexes) if place not in used])
        for indexes, used in zip((main.input_indexes, main.output_indexes), taken, strict=True)
    )
    return {
        new.name: old.name
        for stem, new in after.items()
        if (old := before.get(stem)) is not None
        and old.type == new.type
        and hal.has_dimensions(old.dimensions, new.dimensions)
    }


def _places(model: Model, indexes: Sequence[int]) -> dict[str, int]:
    return {model.main.operands[index].name: place for place, index in enumerate(indexes)}


def _by_stem(operands: Sequence[Operand], indexes: Sequence[int]) -> dict[tuple[str, ...], Operand]:
    """Operands by what is left of their names, if that is left of one of them only."""
    stems = {index: stem for index in indexes if (stem := _stem(operands[index].name))}
    counts = Counter(stems.values())
    return {stem: operands[index] for index, stem in stems.items() if counts[stem] == 1}


def _stem(name: str) -> tuple[str, ...]:
    """The words of a name without those by which states differ; empty if it names no state."""
    words: list[str] = []
    for found in _WORD.findall(name.replace("past_key_values", "past")):
        words += _SHORT.get(found.lower(), (found.lower(),))
    if _STATES.isdisjoint(words):
        return ()
    if words[-1] == "0":
        del words[-1]
    return ("", *(word for word in words if word not in _MARKS))
