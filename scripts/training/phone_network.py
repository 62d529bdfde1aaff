"""Training of the network that hears phones, and the sentences that it is judged on.

A fully connected layer, an LSTM and a fully connected layer, whose states are carried over the
steps of a sentence; 130,000 weights.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from nnasync import open_runtime, run
from nnasync.hal import Model
from nnasync.suites.data import BANDS, FRAMES, PHONES, stacked
from training import phones, speech

__all__ = ["Network", "Voiced", "make_sentences", "sequences", "train", "weights"]

HIDDEN, CELLS = 64, 128
SHIFT, SCALE = 2.0, 0.3
CROP_STEPS = 100
_IGNORED = -1

Arrays = dict[str, NDArray[np.float32]]
Voiced = list[phones.Sentence]


class Network(nn.Module):
    """Stacked log mel [batch, steps, 320] to unnormalized scores [batch, steps, 42]."""

    def __init__(self) -> None:
        super().__init__()
        self.ear = nn.Linear(FRAMES * BANDS, HIDDEN)
        self.lstm = nn.LSTM(HIDDEN, CELLS, batch_first=True)
        self.scores = nn.Linear(CELLS, len(PHONES))

    def forward(self, frames: torch.Tensor) -> torch.Tensor:
        """Unnormalized scores after each step, from zero state."""
        heard = torch.relu(self.ear((frames + SHIFT) * SCALE))
        result: torch.Tensor = self.scores(self.lstm(heard)[0])
        return result


def _sentence(seed: Sequence[int]) -> phones.Sentence:
    return phones.sentence(speech.TRAINING, 5, list(seed))


def make_sentences(seed: int, count: int, *, workers: int = 2) -> Voiced:
    """Sentences of five words in the voices of training."""
    with ProcessPoolExecutor(workers) as executor:
        seeds = [(seed, index) for index in range(count)]
        return list(executor.map(_sentence, seeds, chunksize=16))


def _batch(
    sentences: Voiced, indexes: NDArray[np.int64], rng: np.random.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """A random part of each, louder or softer; shorter ones are filled up and not judged there."""
    x = np.zeros((len(indexes), CROP_STEPS, FRAMES * BANDS), np.float32)
    y = np.full((len(indexes), CROP_STEPS), _IGNORED, np.int64)
    for row, index in enumerate(indexes):
        frames = stacked(sentences[index].log_mel + np.float32(rng.normal(0, 0.4)))
        start = int(rng.integers(max(1, len(frames) - CROP_STEPS + 1)))
        part = slice(start, start + CROP_STEPS)
        count = len(frames[part])
        x[row, :count], y[row, :count] = frames[part], sentences[index].phones[part]
    return torch.from_numpy(x), torch.from_numpy(y)


def train(sentences: Voiced, *, seed: int, epochs: int, batch: int = 32) -> Network:
    """Train on a random part of every sentence an epoch; prints a line an epoch."""
    torch.manual_seed(seed)
    rng = np.random.default_rng([seed, 0x9AD])
    network = Network().train()
    steps = epochs * (len(sentences) // batch)
    optimizer = torch.optim.AdamW(network.parameters(), lr=6e-3, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 6e-3, total_steps=steps + 1)
    begun = time.monotonic()
    for epoch in range(1, epochs + 1):
        order, losses = rng.permutation(len(sentences)), []
        for first in range(0, len(order) - batch + 1, batch):
            x, y = _batch(sentences, order[first : first + batch], rng)
            output = network(x)
            loss = functional.cross_entropy(
                output.flatten(0, 1), y.flatten(), ignore_index=_IGNORED, label_smoothing=0.05
            )
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
        seconds = time.monotonic() - begun
        print(f"  epoch {epoch}/{epochs} loss {np.mean(losses):.3f} {seconds:.0f} s", flush=True)
    return network.eval()


def weights(network: Network) -> Arrays:
    """Everything the exported network holds; the scaling of the energies is in the first layer."""
    state = {name: value.detach().double().numpy() for name, value in network.named_parameters()}
    ear = state["ear.weight"] * SCALE
    result: Arrays = {
        "ear_weights": ear.astype(np.float32),
        "ear_bias": (state["ear.bias"] + SHIFT * ear.sum(axis=1)).astype(np.float32),
        "scores_weights": state["scores.weight"].astype(np.float32),
        "scores_bias": state["scores.bias"].astype(np.float32),
    }
    direct, recurrent = state["lstm.weight_ih_l0"], state["lstm.weight_hh_l0"]
    bias = state["lstm.bias_ih_l0"] + state["lstm.bias_hh_l0"]
    for index, gate in enumerate(("input", "forget", "cell", "output")):
        rows = slice(index * CELLS, (index + 1) * CELLS)
        result[f"lstm_{gate}_weights"] = direct[rows].astype(np.float32)
        result[f"lstm_{gate}_recurrent"] = recurrent[rows].astype(np.float32)
        result[f"lstm_{gate}_bias"] = bias[rows].astype(np.float32)
    return result


def sequences(model: Model, seed: int, count: int) -> Mapping[str, NDArray[np.generic]]:
    """The file of sentences in the demo's voices: frames in bytes, and what the network says."""
    voiced = [phones.sentence(speech.DEMO, 4, [seed, 0xDE40, index]) for index in range(count)]
    low = min(float(each.log_mel.min()) for each in voiced)
    step = (max(float(each.log_mel.max()) for each in voiced) - low) / 255
    frames = [np.rint((each.log_mel - low) / step).astype(np.uint8) for each in voiced]
    golden = [
        _said(model, stacked(each.astype(np.float32) * np.float32(step) + np.float32(low)))
        for each in frames
    ]
    return {
        "frames": np.concatenate(frames),
        "hops": np.array([len(each) for each in frames], np.int32),
        "scale": np.array([low, step]),
        "golden": np.concatenate(golden),
        "spoken": np.concatenate([each.phones for each in voiced]),
    }


def _said(model: Model, inputs: NDArray[np.float32]) -> NDArray[np.int8]:
    """The phone of the highest score of each step, on the kernels of the reference."""

    async def heard() -> list[int]:
        async with open_runtime(devices=["nnasync-reference"]) as runtime:
            network = await runtime.compile(model)
            async with network.burst() as burst:
                return [int(np.argmax(await burst(row[None]))) for row in inputs]

    return np.array(run(heard), np.int8)
