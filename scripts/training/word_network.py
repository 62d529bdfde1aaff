"""Training of the network that hears spoken digits, hop by hop.

Two layers of LSTM on log mel energies and a fully connected layer, trained on parts of tracks of
3.2 s; the loss looks only at hops where the truth is plain. The ear before it has no trained
parameters.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits
from torch import nn
from torch.nn import functional

from training import features, speech, tracks

__all__ = ["Examples", "Network", "make_examples", "scores", "train", "weights"]

CELLS = 128
CLASSES = 11
SHIFT, SCALE = 1.0, 0.3
TRACK_S = 6
CROP_HOPS = 320
OTHER_SHARE = 0.08

Arrays = dict[str, NDArray[np.float32]]


class Examples(NamedTuple):
    """Log mel float32 [tracks, hops, 40] and targets int8 [tracks, hops]."""

    features: NDArray[np.float32]
    targets: NDArray[np.int8]


class Network(nn.Module):
    """Log mel [batch, hops, 40] to unnormalized scores [batch, hops, 11]."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(features.BANDS, CELLS, num_layers=2, batch_first=True, dropout=0.15)
        self.scores = nn.Linear(CELLS, CLASSES)

    def forward(self, log_mel: torch.Tensor) -> torch.Tensor:
        """Unnormalized scores after each hop, from zero state."""
        result: torch.Tensor = self.scores(self.lstm((log_mel + SHIFT) * SCALE)[0])
        return result


_pool: list[speech.Utterance] = []


def _share(utterances: list[speech.Utterance]) -> None:
    threadpool_limits(1)
    _pool[:] = utterances


def _example(seed: Sequence[int]) -> tuple[NDArray[np.float32], NDArray[np.int8]]:
    rng = np.random.default_rng([*seed, 0xC401CE])
    words = [_pool[int(i)] for i in rng.integers(len(_pool), size=9)]
    pause = (0.12, 0.5) if rng.random() < 0.3 else (0.3, 1.2)
    track = tracks.compose(words, TRACK_S * speech.RATE, [*seed, 0x7AC], pause_s=pause)
    return features.log_mel(track.samples), tracks.targets(track)


def make_examples(seed: int, count: int, words: int, *, workers: int = 2) -> Examples:
    """Features and targets of tracks of 6 s, from `words` utterances of the training voices."""
    rng = np.random.default_rng([seed, 0xAB])
    labels = np.where(rng.random(words) < OTHER_SHARE, -1, np.arange(words) % 10)
    pool = speech.utterances(
        [int(label) for label in labels], speech.TRAINING, seed, workers=workers
    )
    print(f"  {len(pool)} utterances spoken", flush=True)
    seeds = [(seed, index) for index in range(count)]
    with ProcessPoolExecutor(workers, initializer=_share, initargs=(pool,)) as executor:
        parts = list(executor.map(_example, seeds, chunksize=16))
    return Examples(np.stack([p[0] for p in parts]), np.stack([p[1] for p in parts]))


def _vary(batch: NDArray[np.float32], rng: np.random.Generator) -> NDArray[np.float32]:
    """Longer and shorter throats (bands shift), louder and softer, and some bands flattened."""
    bands = np.arange(features.BANDS)
    varied = batch + rng.normal(0, 0.5, (len(batch), 1, 1)).astype(np.float32)
    for track in varied:
        at = np.clip(bands * rng.uniform(0.86, 1.14), 0, features.BANDS - 1.001)
        low, share = at.astype(int), (at % 1).astype(np.float32)
        track[:] = track[:, low] * (1 - share) + track[:, low + 1] * share
        if rng.random() < 0.5:
            first, width = int(rng.integers(features.BANDS - 5)), int(rng.integers(1, 6))
            track[:, first : first + width] = track[:, first : first + width].mean()
    return varied


def _batches(
    examples: Examples, size: int, rng: np.random.Generator
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """A random part of every track, in random order."""
    order = rng.permutation(len(examples.targets))
    for first in range(0, len(order) - size + 1, size):
        index = order[first : first + size]
        start = int(rng.integers(examples.targets.shape[1] - CROP_HOPS + 1))
        part = slice(start, start + CROP_HOPS)
        x = _vary(examples.features[index, part], rng)
        yield torch.from_numpy(x), torch.from_numpy(examples.targets[index, part].astype(np.int64))


def train(
    examples: Examples,
    *,
    seed: int,
    epochs: int,
    batch: int = 96,
    peak_rate: float = 5e-3,
    bfloat16: bool = False,
) -> Network:
    """Train on a random part of every track an epoch; prints a line now and then."""
    torch.manual_seed(seed)
    rng = np.random.default_rng([seed, 0x3AD])
    network = Network().train()
    steps = epochs * (len(examples.targets) // batch)
    optimizer = torch.optim.AdamW(network.parameters(), lr=peak_rate, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, peak_rate, total_steps=steps + 1)
    emphasis = torch.ones(CLASSES)
    emphasis[tracks.NONE] = 0.6
    begun, mean = time.monotonic(), 2.4
    batches = (b for _ in range(epochs) for b in _batches(examples, batch, rng))
    for step, (x, y) in enumerate(batches, 1):
        with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
            output = network(x).float()
        loss = functional.cross_entropy(
            output.flatten(0, 1), y.flatten(), emphasis, ignore_index=tracks.IGNORED
        )
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        mean = 0.95 * mean + 0.05 * loss.item()
        if step % 50 == 0:
            seconds = time.monotonic() - begun
            print(f"  step {step}/{steps} loss {mean:.4f} {seconds:.0f} s", flush=True)
    return network.eval()


def scores(network: Network, samples: NDArray[np.int16]) -> NDArray[np.float32]:
    """Scores float32 [hops, 11] of a whole track."""
    with torch.inference_mode():
        output = network(torch.from_numpy(features.log_mel(samples))[None])
        return functional.softmax(output, -1)[0].numpy()


def weights(network: Network) -> Arrays:
    """Everything the exported network holds, in the layouts of FULLY_CONNECTED and LSTM.

    Gates are named input, forget, cell, output; the scaling of the energies is folded into layer 0.
    """
    result: Arrays = {
        "spectrum_weights": features.spectrum_matrix(),
        "mel_weights": features.mel_matrix(),
        "mel_bias": np.full(features.BANDS, features.FLOOR, np.float32),
        "scores_weights": network.scores.weight.detach().numpy(),
        "scores_bias": network.scores.bias.detach().numpy(),
    }
    state = {
        name: value.detach().double().numpy() for name, value in network.lstm.named_parameters()
    }
    for layer in range(2):
        direct, recurrent = state[f"weight_ih_l{layer}"], state[f"weight_hh_l{layer}"]
        bias = state[f"bias_ih_l{layer}"] + state[f"bias_hh_l{layer}"]
        if layer == 0:
            bias, direct = bias + SHIFT * SCALE * direct.sum(axis=1), SCALE * direct
        for index, gate in enumerate(("input", "forget", "cell", "output")):
            rows = slice(index * CELLS, (index + 1) * CELLS)
            result[f"lstm{layer}_{gate}_weights"] = direct[rows].astype(np.float32)
            result[f"lstm{layer}_{gate}_recurrent"] = recurrent[rows].astype(np.float32)
            result[f"lstm{layer}_{gate}_bias"] = bias[rows].astype(np.float32)
    return result
