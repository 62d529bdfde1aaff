"""Trained weights as models of nnasync."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nnasync import ModelBuilder, Value
from nnasync.hal import Model, OperationType
from training.features import HOP, WINDOW
from training.scenes import SIDE

__all__ = ["digits", "phones", "words"]

Arrays = Mapping[str, NDArray[Any]]

_GATES = ("input", "forget", "cell", "output")


def digits(name: str, arrays: Arrays) -> Model:
    """A network that image_networks trained: "image" [1, 64, 64, 1] in 0..1 to "scores" [1, 11]."""
    model = ModelBuilder(name)
    x = model.input("image", (1, SIDE, SIDE, 1))
    for index, stride in enumerate(arrays["strides"]):
        weights, bias = arrays[f"filter{index}"], arrays[f"bias{index}"]
        around = (weights.shape[1] // 2,) * 4
        x = model.conv_2d(
            x,
            weights,
            bias,
            stride=int(stride),
            padding=around,
            activation="relu",
            name=f"conv{index}",
        )
    strongest = model.max_pool_2d(x, (x.shape[1], x.shape[2]), name="strongest")
    logits = model.fully_connected(strongest, arrays["scores_weights"], arrays["scores_bias"])
    model.output("scores", model.softmax(logits))
    return model.build()


def words(name: str, arrays: Arrays) -> Model:
    """The network that word_network trained: "hop" [1, 160] in -1..1 to "scores" [1, 11].

    Its states are the samples before the hop that the spectrum's window still covers, and the
    memories of the LSTM layers.
    """
    model = ModelBuilder(name)
    hop = model.input("hop", (1, HOP))
    before = model.state("before", (1, WINDOW - HOP))
    window = model.concatenation([before, hop], axis=1, name="window")
    model.update(before, _last(model, window, WINDOW - HOP))
    spectrum = model.fully_connected(window, arrays["spectrum_weights"], name="spectrum")
    power = model.mul(spectrum, spectrum, name="power")
    bands = model.fully_connected(power, arrays["mel_weights"], arrays["mel_bias"], name="bands")
    x = model.operation(OperationType.LOG, bands, name="log_mel")
    for layer in range(2):
        x = _lstm(model, x, f"lstm{layer}", arrays)
    logits = model.fully_connected(x, arrays["scores_weights"], arrays["scores_bias"])
    model.output("scores", model.softmax(logits))
    return model.build()


def phones(name: str, arrays: Arrays) -> Model:
    """The network that phone_network trained: "frames" [1, 320] to "scores" [1, 42]."""
    model = ModelBuilder(name)
    frames = model.input("frames", (1, arrays["ear_weights"].shape[1]))
    x = model.fully_connected(
        frames, arrays["ear_weights"], arrays["ear_bias"], activation="relu", name="ear"
    )
    x = _lstm(model, x, "lstm", arrays)
    logits = model.fully_connected(x, arrays["scores_weights"], arrays["scores_bias"])
    model.output("scores", model.softmax(logits))
    return model.build()


def _last(model: ModelBuilder, row: Value, count: int) -> Value:
    begin = np.array([0, row.shape[1] - count], np.int32)
    return model.operation(OperationType.SLICE, row, begin, np.array([1, count], np.int32))


def _lstm(model: ModelBuilder, x: Value, name: str, arrays: Arrays) -> Value:
    cells = len(arrays[f"{name}_input_bias"])
    hidden, cell = (model.state(f"{name}/{part}", (1, cells)) for part in ("hidden", "cell"))
    output, hidden_next, cell_next = model.lstm(
        x,
        hidden,
        cell,
        input_weights=[arrays[f"{name}_{gate}_weights"] for gate in _GATES],
        recurrent_weights=[arrays[f"{name}_{gate}_recurrent"] for gate in _GATES],
        biases=[arrays[f"{name}_{gate}_bias"] for gate in _GATES],
        name=name,
    )
    model.update(hidden, hidden_next)
    model.update(cell, cell_next)
    return output
