"""The demo's networks in float64, by plain formulas: convolutions and pooling, LSTM layers.

Only the weights come from the files of the networks, in the order of the operands that hold them.
The formulas are those of docs/operations.md, written here without any code of the project.
"""

from __future__ import annotations

import numpy as np

from nnasync import hal, load
from nnasync.cli import demo_data
from nnasync.engine import operand_value
from nnasync.hal import Array, Model, Operation

__all__ = ["digits", "words"]

PICTURES = 6
HOPS = 60
HOP = 160
SEED = 20


def digits() -> tuple[Array, Array]:
    """Pictures [n, 64, 64] of bytes, and the scores [n, 11] of the network `digits`."""
    pictures = _strokes(np.random.default_rng(SEED))
    model = load(demo_data.path("digits.nnm"))
    scores = [_scores_of_picture(model, picture / 255.0) for picture in pictures]
    return pictures, np.stack(scores)


def words() -> tuple[Array, Array]:
    """Hops [n, 160] of int16 samples, and the scores [n, 11] after each of them."""
    hops = _tones(np.random.default_rng(SEED)).reshape(HOPS, HOP)
    return hops, _scores_of_hops(load(demo_data.path("words.nnm")), hops / 32768.0)


def _strokes(numbers: np.random.Generator) -> Array:
    """Bright rings and bars on noise."""
    y, x = np.mgrid[0:64, 0:64]
    found = []
    for number in range(PICTURES):
        center_y, center_x = numbers.uniform(24, 40, 2)
        radius = np.hypot(y - center_y, x - center_x)
        shape = (
            np.abs(radius - 6 - 2 * number) if number % 2 else np.abs(x - center_x + (y - 32) / 4)
        )
        bright = 230 * np.exp(-((shape / 3) ** 2)) * (radius < 22)
        found.append(np.clip(bright + numbers.uniform(0, 40, (64, 64)), 0, 255))
    return np.stack(found).astype(np.uint8)


def _tones(numbers: np.random.Generator) -> Array:
    """A voice-like sweep of harmonics that swells and fades, with noise."""
    time = np.arange(HOPS * HOP) / 16000
    pitch = 2 * np.pi * (120 * time + 40 * time**2)
    voice = sum(np.sin(k * pitch) / k for k in range(1, 20)) * np.sin(np.pi * time / time[-1])
    samples = 4000 * voice + numbers.normal(0, 100, time.size)
    return np.clip(samples, -32768, 32767).astype(np.int16)


# -- weights


def _weights(model: Model, operation: Operation) -> list[Array]:
    """Constants with dimensions among the inputs of an operation, in float64."""
    operands = [model.main.operands[index] for index in operation.inputs]
    constants = [each for each in operands if hal.is_constant(each) and each.dimensions]
    return [np.asarray(operand_value(model, each), np.float64) for each in constants]


# -- the network that sees


def _scores_of_picture(model: Model, picture: Array) -> Array:
    *convolutions, _, last, _ = model.main.operations
    x = picture[:, :, None]
    for operation in convolutions:
        filters, bias = _weights(model, operation)
        results = model.main.operands[operation.outputs[0]].dimensions
        x = np.maximum(_convolved(x, filters, results[1]) + bias, 0)
    weights, bias = _weights(model, last)
    return _softmax(weights @ x.max(axis=(0, 1)) + bias)


def _convolved(x: Array, filters: Array, size: int) -> Array:
    """A convolution of a square picture to a square of this size, padded by half a filter."""
    stride, window = x.shape[0] // size, filters.shape[1]
    x = np.pad(x, ((window // 2, window // 2),) * 2 + ((0, 0),))
    result = np.zeros((size, size, filters.shape[0]))
    for row in range(size):
        for column in range(size):
            top, left = row * stride, column * stride
            part = x[top : top + window, left : left + window]
            result[row, column] = np.tensordot(filters, part, 3)
    return result


def _softmax(logits: Array) -> Array:
    powers = np.exp(logits - logits.max())
    return np.asarray(powers / powers.sum())


# -- the network that hears


def _scores_of_hops(model: Model, hops: Array) -> Array:
    dense = [o for o in model.main.operations if o.type == hal.OperationType.FULLY_CONNECTED]
    layers = [o for o in model.main.operations if o.type == hal.OperationType.LSTM]
    (spectrum, spectrum_bias), (mel, mel_bias), (last, last_bias) = (
        _weights(model, each) for each in dense
    )
    before, states = np.zeros(240), [(np.zeros(128), np.zeros(128)) for _ in layers]
    scores = []
    for hop in hops:
        window = np.concatenate([before, hop])
        before = window[HOP:]
        x = np.log(mel @ (spectrum @ window + spectrum_bias) ** 2 + mel_bias)
        for number, layer in enumerate(layers):
            states[number] = _lstm(_weights(model, layer), x, *states[number])
            x = states[number][0]
        scores.append(_softmax(last @ x + last_bias))
    return np.stack(scores)


def _lstm(weights: list[Array], x: Array, hidden: Array, cell: Array) -> tuple[Array, Array]:
    """A step: the gates are input, forget, cell, output."""
    kernels, recurrent, biases = weights[:4], weights[4:8], weights[8:12]
    enter, keep, new, show = (
        w @ x + r @ hidden + b for w, r, b in zip(kernels, recurrent, biases, strict=True)
    )
    cell = _logistic(keep) * cell + _logistic(enter) * np.tanh(new)
    return _logistic(show) * np.tanh(cell), cell


def _logistic(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))
