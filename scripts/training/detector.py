"""Training of the network that finds and reads digits: an anchor-free detector of one stage.

Nine convolutions make maps of 20x20, 10x10 and 5x5 cells of 8, 16 and 32 pixels; the coarse maps
are added to the fine ones, and one head, the same for all three, says of every cell how likely each
digit is there and how far the sides of its box are from the cell's center, in cells. A digit
belongs to the maps that suit its size, and there to the cells near its center. Scores learn how
well the box fits (the quality focal loss), so that of several boxes around a digit the best has the
highest.

Batch normalization exists in training only: `folded` puts it into the convolutions
and measures which values each of them gives, from which the export chooses its scales.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from training import detection_scenes

__all__ = ["CELLS", "CLASSES", "Detector", "Samples", "folded", "make_samples", "train"]

CLASSES = 10
CELLS = (8, 16, 32)
"""Pixels of a cell of each map."""
_SIZES = ((0.0, 46.0), (38.0, 96.0), (66.0, 1e9))
"""Longer sides of the boxes that belong to each map, in pixels; those in between to two."""
_WIDTH = 64
_MOST = 16
_CHUNK = 500
_REACH = 1.5
"""How far from a box's center cells belong to it, in cells."""

Arrays = dict[str, NDArray[Any]]


class Samples(NamedTuple):
    """Pictures uint8 [n, 160, 160], boxes float32 [n, 16, 4], labels int64 [n, 16], -1 for none."""

    images: NDArray[np.uint8]
    boxes: NDArray[np.float32]
    labels: NDArray[np.int64]


def make_samples(seed: int, count: int, workers: int = 2) -> Samples:
    """Pictures to train on, drawn by several processes."""
    seeds = [seed * 10_000 + n for n in range(-(-count // _CHUNK))]
    with ProcessPoolExecutor(workers) as pool:
        parts = list(pool.map(detection_scenes.scenes, seeds, [_CHUNK] * len(seeds)))
    return stacked([scene for part in parts for scene in part][:count])


def stacked(drawn: Sequence[detection_scenes.DetectionScene]) -> Samples:
    """Pictures one behind the other."""
    boxes = np.zeros((len(drawn), _MOST, 4), np.float32)
    labels = np.full((len(drawn), _MOST), -1, np.int64)
    for index, scene in enumerate(drawn):
        count = min(len(scene.labels), _MOST)
        boxes[index, :count], labels[index, :count] = scene.boxes[:count], scene.labels[:count]
    return Samples(np.stack([scene.image for scene in drawn]), boxes, labels)


def _unit(depth_in: int, depth: int, kernel: int = 3, stride: int = 1) -> nn.Sequential:
    """A convolution with the normalization and RELU behind it."""
    return nn.Sequential(
        nn.Conv2d(depth_in, depth, kernel, stride, kernel // 2, bias=False),
        nn.BatchNorm2d(depth),
        nn.ReLU(),
    )


class Detector(nn.Module):
    """Pictures [n, 1, 160, 160] in 0..1 to distances [n, 525, 4] and logits [n, 525, 10]."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(_unit(1, 16, 5, 2), _unit(16, 32, 3, 2), _unit(32, 64, 3, 2))
        self.fine = nn.Sequential(_unit(64, 64), _unit(64, 64))
        self.middle = nn.Sequential(_unit(64, 96, 3, 2), _unit(96, 96))
        self.coarse = nn.Sequential(_unit(96, 128, 3, 2), _unit(128, 128))
        self.lateral = nn.ModuleList([nn.Conv2d(depth, _WIDTH, 1) for depth in (64, 96, 128)])
        self.merged = nn.ModuleList([nn.ReLU() for _ in CELLS])
        self.box_unit, self.score_unit = _unit(_WIDTH, _WIDTH), _unit(_WIDTH, _WIDTH)
        self.boxes, self.scores = nn.Conv2d(_WIDTH, 4, 1), nn.Conv2d(_WIDTH, CLASSES, 1)
        nn.init.constant_(self.boxes.bias, 2.0)
        nn.init.constant_(self.scores.bias, -4.6)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Distances in cells and logits, fine cells first."""
        fine = self.fine(self.stem(x))
        middle = self.middle(fine)
        maps = [fine, middle, self.coarse(middle)]
        merged = [self.merged[2](self.lateral[2](maps[2]))]
        for level in (1, 0):
            wide = functional.interpolate(merged[0], scale_factor=2.0)
            merged.insert(0, self.merged[level](self.lateral[level](maps[level]) + wide))
        boxes = [_rows(self.boxes(self.box_unit(map))) for map in merged]
        scores = [_rows(self.scores(self.score_unit(map))) for map in merged]
        return torch.cat(boxes, 1), torch.cat(scores, 1)


def _rows(map: torch.Tensor) -> torch.Tensor:
    return map.permute(0, 2, 3, 1).flatten(1, 2)


class _Grid(NamedTuple):
    """Of every cell: its center [525, 2] and size [525] in pixels, and the sizes of its boxes."""

    centers: torch.Tensor
    cells: torch.Tensor
    smallest: torch.Tensor
    largest: torch.Tensor


def _grid(side: int = detection_scenes.SIDE) -> _Grid:
    columns = []
    for cell, (low, high) in zip(CELLS, _SIZES, strict=True):
        at = (torch.arange(side // cell) + 0.5) * cell
        y, x = torch.meshgrid(at, at, indexing="ij")
        ones = torch.ones(y.numel())
        columns.append(
            torch.stack([x.flatten(), y.flatten(), ones * cell, ones * low, ones * high], 1)
        )
    table = torch.cat(columns)
    return _Grid(table[:, :2], table[:, 2], table[:, 3], table[:, 4])


def _corners(distances: torch.Tensor, grid: _Grid) -> torch.Tensor:
    """Boxes [n, cells, 4] in pixels."""
    reach = distances * grid.cells[:, None]
    return torch.cat([grid.centers - reach[..., :2], grid.centers + reach[..., 2:]], -1)


def _assigned(boxes: torch.Tensor, labels: torch.Tensor, grid: _Grid) -> torch.Tensor:
    """Which box [n, cells] a cell has to find: its number, -1 for none, the smallest of several."""
    size = (boxes[..., 2:] - boxes[..., :2]).clamp(min=1e-3)
    longer = size.amax(-1)[:, None]
    middle = (boxes[..., :2] + boxes[..., 2:]) / 2
    away = (grid.centers[None, :, None] - middle[:, None]).abs()
    cells = grid.cells[None, :, None]
    nearest = (away <= cells[..., None] * 0.5 + 1e-3).all(-1)
    reach = torch.minimum(cells[..., None] * _REACH, size[:, None] * 0.5)
    near = (away <= reach).all(-1) | nearest
    fits = (longer >= grid.smallest[None, :, None]) & (longer < grid.largest[None, :, None])
    candidates = near & fits & (labels >= 0)[:, None]
    cost = torch.where(candidates, longer.expand_as(candidates), torch.inf)
    best = cost.min(-1)
    return torch.where(best.values.isfinite(), best.indices, -1)


def _overlaps(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """IoU and generalized IoU of boxes, pair by pair."""
    low, high = torch.maximum(a[:, :2], b[:, :2]), torch.minimum(a[:, 2:], b[:, 2:])
    common = (high - low).clamp(min=0).prod(-1)
    areas = [(box[:, 2:] - box[:, :2]).clamp(min=0).prod(-1) for box in (a, b)]
    union = areas[0] + areas[1] - common + 1e-6
    around = torch.maximum(a[:, 2:], b[:, 2:]) - torch.minimum(a[:, :2], b[:, :2])
    hull = around.clamp(min=0).prod(-1) + 1e-6
    return common / union, common / union - (hull - union) / hull


def _loss(
    distances: torch.Tensor, logits: torch.Tensor, boxes: torch.Tensor, labels: torch.Tensor
) -> torch.Tensor:
    grid = _grid()
    assigned = _assigned(boxes, labels, grid)
    picture, cell = (assigned >= 0).nonzero(as_tuple=True)
    number = assigned[picture, cell]
    truth = boxes[picture, number]
    overlap, general = _overlaps(_corners(distances, grid)[picture, cell], truth)
    quality = torch.zeros_like(logits)
    quality[picture, cell, labels[picture, number]] = overlap.detach().clamp(min=0.05)
    entropy = functional.binary_cross_entropy_with_logits(logits, quality, reduction="none")
    focus = (quality - logits.sigmoid()).abs() ** 2
    count = max(len(picture), 1)
    return (entropy * focus).sum() / count + 2.0 * (1 - general).sum() / count


def _varied(
    samples: Samples, index: NDArray[np.int64], rng: np.random.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """Pictures [n, 1, 160, 160] and boxes: other sizes, places, lights and polarities."""
    x = torch.from_numpy(samples.images[index].astype(np.float32)[:, None] / 255)
    boxes = torch.from_numpy(samples.boxes[index])
    size, side = len(index), float(detection_scenes.SIDE)
    there = torch.from_numpy(samples.labels[index] >= 0)[..., None]
    low = torch.where(there, boxes[..., :2], side).amin(1)
    high = torch.where(there, boxes[..., 2:], 0.0).amax(1)
    middle, extent = (low + high) / 2, (high - low).amax(-1).clamp(min=20)
    zoom = torch.from_numpy(np.exp(rng.uniform(np.log(0.72), np.log(1.5), size))).float()
    zoom = torch.minimum(zoom, (side - 2) / extent)
    room = (side / 2 - 1 - extent * zoom / 2).clamp(min=0)[:, None]
    place = side / 2 + torch.from_numpy(rng.uniform(-1, 1, (size, 2))).float() * room
    at_rest = torch.from_numpy(rng.random(size) < 0.25)[:, None]
    zoom = torch.where(at_rest[:, 0], 1.0, zoom)
    place = torch.where(at_rest, middle, place)
    shift = (2 * middle - side - (2 * place - side) / zoom[:, None]) / side
    theta = torch.zeros(size, 2, 3)
    theta[:, 0, 0] = theta[:, 1, 1] = 1 / zoom
    theta[:, :, 2] = shift
    grid = functional.affine_grid(theta, list(x.shape), align_corners=False)
    x = functional.grid_sample(x, grid, padding_mode="border", align_corners=False)
    moved = (boxes - middle.repeat(1, 2)[:, None]) * zoom[:, None, None]
    boxes = moved + place.repeat(1, 2)[:, None]
    flip = torch.from_numpy(rng.random(size) < 0.3)[:, None, None, None]
    x = torch.where(flip, 1 - x, x)
    gain, lift = (torch.from_numpy(rng.uniform(*r, (size, 1, 1, 1))).float() for r in _LIGHT)
    return ((x - 0.5) * gain + 0.5 + lift).clamp(0, 1), boxes


_LIGHT = ((0.6, 1.3), (-0.15, 0.15))


def train(
    samples: Samples,
    *,
    seed: int,
    epochs: int,
    batch: int = 32,
    peak_rate: float = 4e-3,
    bfloat16: bool = False,
) -> Detector:
    """Train; prints a line now and then."""
    torch.manual_seed(seed)
    rng = np.random.default_rng([seed, 0xDE7])
    module = Detector().to(memory_format=torch.channels_last)
    steps = epochs * (len(samples.labels) // batch)
    optimizer = torch.optim.AdamW(module.parameters(), lr=peak_rate, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, peak_rate, total_steps=steps + 1)
    begun, step, mean = time.monotonic(), 0, 3.0
    module.train()
    for _ in range(epochs):
        order = rng.permutation(len(samples.labels))
        for start in range(0, len(order) - batch + 1, batch):
            index = np.sort(order[start : start + batch])
            x, boxes = _varied(samples, index, rng)
            with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
                distances, logits = module(x.to(memory_format=torch.channels_last))
            labels = torch.from_numpy(samples.labels[index])
            loss = _loss(distances.float(), logits.float(), boxes, labels)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(module.parameters(), 10.0)
            optimizer.step()
            schedule.step()
            step, mean = step + 1, 0.98 * mean + 0.02 * loss.item()
            if step % 50 == 0:
                took = time.monotonic() - begun
                print(f"  step {step}/{steps} loss {mean:.4f} {took:.0f} s", flush=True)
    return module.eval()


_KEPT = 0.9999
"""Share of the values of a layer that its range keeps; the few above it are cut off."""


def folded(module: Detector, samples: Samples) -> Arrays:
    """The network as arrays: "NAME_weights" [out, h, w, in], "NAME_bias" and "NAME_range" [2].

    NAME is that of a layer, such as "fine.0"; ranges are those of its values, after RELU where
    there is one, for some pictures.
    """
    result: Arrays = {}
    for name, layer in module.named_modules():
        if isinstance(layer, nn.Sequential) and len(layer) == 3 and isinstance(layer[0], nn.Conv2d):
            norm = layer[1]
            scale = norm.weight / torch.sqrt(norm.running_var + norm.eps)
            weights = layer[0].weight * scale[:, None, None, None]
            bias = norm.bias - norm.running_mean * scale
        elif isinstance(layer, nn.Conv2d) and layer.bias is not None:
            weights, bias = layer.weight, layer.bias
        else:
            continue
        result[f"{name}_weights"] = weights.detach().permute(0, 2, 3, 1).contiguous().numpy()
        result[f"{name}_bias"] = bias.detach().numpy()
    return result | _ranges(module, samples)


def _ranges(module: Detector, samples: Samples) -> Arrays:
    seen: dict[str, list[torch.Tensor]] = {}
    hooks = [
        layer.register_forward_hook(
            lambda _module, _inputs, output, name=name: seen.setdefault(name, []).append(
                torch.quantile(output.flatten()[:: max(output.numel() // 1_000_000, 1)], _SPAN)
            )
        )
        for name, layer in module.named_modules()
        if (name and not list(layer.children())) or isinstance(layer, nn.Sequential)
    ]
    with torch.inference_mode():
        for start in range(0, len(samples.images), 50):
            part = samples.images[start : start + 50].astype(np.float32)[:, None] / 255
            module(torch.from_numpy(part))
    for hook in hooks:
        hook.remove()
    return {
        f"{name}_range": np.array(
            [min(float(q[0]) for q in each), max(float(q[1]) for q in each)], np.float32
        )
        for name, each in seen.items()
    }


_SPAN = torch.tensor([1 - _KEPT, _KEPT])
