"""Training of the networks that see a digit in a 64x64 gray picture.

Each is a row of convolutions (symmetric padding, RELU), a maximum over the remaining picture and a
fully connected layer. Batch normalization exists in training only; `weights` folds it into the
convolutions, so that what is exported is what the HAL's operations compute. Layouts of the result:
filters [depth_out, height, width, depth_in], fully connected [outputs, inputs], as the HAL has
them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from training import scenes

__all__ = ["LARGE", "SMALL", "Layer", "accuracy", "make_samples", "train", "weights"]

CLASSES = 11
CHUNK = 4000


class Layer(NamedTuple):
    """One convolution."""

    depth: int
    kernel: int
    stride: int


SMALL = (Layer(24, 5, 2), Layer(48, 3, 2), Layer(96, 3, 1), Layer(128, 3, 2), Layer(128, 3, 1))
LARGE = (
    Layer(64, 5, 2),
    Layer(96, 3, 1),
    Layer(96, 3, 1),
    Layer(96, 3, 1),
    Layer(128, 3, 2),
    Layer(128, 3, 1),
    Layer(128, 3, 2),
)

Arrays = dict[str, NDArray[Any]]


def make_samples(seed: int, count: int, workers: int = 2) -> tuple[scenes.Gray, NDArray[np.int64]]:
    """Pictures uint8 [count, 64, 64] and labels, drawn by several processes."""
    chunks = [(seed * 10_000 + i, min(CHUNK, count - i * CHUNK)) for i in range(-(-count // CHUNK))]
    with ProcessPoolExecutor(workers) as pool:
        parts = list(pool.map(scenes.samples, *zip(*chunks, strict=True)))
    return np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts])


def _module(layers: tuple[Layer, ...]) -> nn.Sequential:
    parts: list[nn.Module] = []
    depth = 1
    for layer in layers:
        pad = layer.kernel // 2
        parts.append(nn.Conv2d(depth, layer.depth, layer.kernel, layer.stride, pad, bias=False))
        parts += [nn.BatchNorm2d(layer.depth), nn.ReLU()]
        depth = layer.depth
    return nn.Sequential(*parts, nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(depth, CLASSES))


def _batches(
    images: scenes.Gray, labels: NDArray[np.int64], size: int, rng: np.random.Generator
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    order = rng.permutation(len(labels))
    for start in range(0, len(order) - size + 1, size):
        index = np.sort(order[start : start + size])
        x = images[index].astype(np.float32) / 255
        gain, shift = rng.uniform(0.8, 1.15, (2, size, 1, 1))
        x = np.clip(x * gain + (shift - 1) * 0.2 + rng.normal(0, 0.006, x.shape), 0, 1)
        yield torch.from_numpy(x.astype(np.float32)[:, None]), torch.from_numpy(labels[index])


def train(
    layers: tuple[Layer, ...],
    images: scenes.Gray,
    labels: NDArray[np.int64],
    *,
    seed: int,
    epochs: int,
    batch: int = 128,
    peak_rate: float = 3e-3,
    bfloat16: bool = False,
) -> nn.Sequential:
    """Train on pictures uint8 [n, 64, 64] and labels [n]; prints a line a few times an epoch."""
    torch.manual_seed(seed)
    rng = np.random.default_rng([seed, 0x1AB])
    module = _module(layers).to(memory_format=torch.channels_last)
    steps = epochs * (len(labels) // batch)
    optimizer = torch.optim.AdamW(module.parameters(), lr=peak_rate, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, peak_rate, total_steps=steps + 1)
    begun, step, mean = time.monotonic(), 0, 2.4
    module.train()
    for _ in range(epochs):
        for x, y in _batches(images, labels, batch, rng):
            with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
                output = module(x.to(memory_format=torch.channels_last))
            loss = functional.cross_entropy(output.float(), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            step, mean = step + 1, 0.98 * mean + 0.02 * loss.item()
            if step % 100 == 0:
                print(
                    f"  step {step}/{steps} loss {mean:.4f} {time.monotonic() - begun:.0f} s",
                    flush=True,
                )
    return module.eval()


def accuracy(module: nn.Sequential, images: scenes.Gray, labels: NDArray[np.int64]) -> float:
    """Share of pictures that get their right label."""
    right = 0
    with torch.inference_mode():
        for start in range(0, len(labels), 256):
            x = torch.from_numpy(images[start : start + 256].astype(np.float32)[:, None] / 255)
            right += int((module(x).argmax(1).numpy() == labels[start : start + 256]).sum())
    return right / len(labels)


def weights(module: nn.Sequential) -> Arrays:
    """The network as arrays: filter0, bias0, filter1, ... and scores_weights, scores_bias."""
    result: Arrays = {}
    convolutions = [m for m in module if isinstance(m, nn.Conv2d)]
    norms = [m for m in module if isinstance(m, nn.BatchNorm2d)]
    for index, (convolution, norm) in enumerate(zip(convolutions, norms, strict=True)):
        assert norm.running_var is not None
        assert norm.running_mean is not None
        scale = norm.weight / torch.sqrt(norm.running_var + norm.eps)
        folded = convolution.weight * scale[:, None, None, None]
        result[f"filter{index}"] = _array(folded.permute(0, 2, 3, 1))
        result[f"bias{index}"] = _array(norm.bias - norm.running_mean * scale)
    result["strides"] = np.array([c.stride[0] for c in convolutions], np.int32)
    last = module[-1]
    assert isinstance(last, nn.Linear)
    return result | {"scores_weights": _array(last.weight), "scores_bias": _array(last.bias)}


def _array(tensor: torch.Tensor) -> NDArray[np.float32]:
    return np.ascontiguousarray(tensor.detach().numpy(), np.float32)
