"""States that are guessed by the names of inputs and outputs."""

from __future__ import annotations

import pytest

import nnasync as nn
from nnasync._core.formats.states import guessed_states, with_states


def named(**pairs: str) -> nn.Model:
    """A model with an input and an output of each of these pairs of names, all alike."""
    builder = nn.ModelBuilder("m")
    for new, old in pairs.items():
        value = builder.input(old, (1, 2))
        builder.output(new, builder.operation(nn.OperationType.TANH, value))
    return builder.build()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("state", "stateN"),
        ("h0", "hn"),
        ("h_in", "h_out"),
        ("cache", "new_cache"),
        ("past_key_values.0.key", "present.0.key"),
        ("encoder_cache_3", "encoder_cache_3_out"),
        ("lstm_hidden_input_1", "lstm_hidden_output_1"),
    ],
)
def test_names_that_are_guessed(old: str, new: str) -> None:
    model = named(**{new: old, "y": "x"})
    assert guessed_states(model) == {new: old}
    (pair,) = with_states(model, "guess").state
    assert (pair.input, pair.output) == (0, 0)


def test_names_that_say_nothing_or_too_much_are_not_guessed() -> None:
    assert guessed_states(named(output="input", Identity="image")) == {}
    assert guessed_states(named(state_out="state", new_state="old_state")) == {}
    assert guessed_states(named(last_hidden_state="hidden_state")) == {}


def test_a_guess_needs_one_shape() -> None:
    builder = nn.ModelBuilder("m")
    value = builder.input("state", (1, 2))
    builder.output("stateN", builder.operation(nn.OperationType.CONCATENATION, value, value, 1))
    assert guessed_states(builder.build()) == {}
