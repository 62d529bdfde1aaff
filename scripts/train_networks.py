"""Train the demo's networks on drawn digits and spoken words, judge them, and export them.

Needs PyTorch (dependency group `training`) and espeak-ng. Weights are kept as .npz files in
`--work`, so that `--only export` can write the networks again without training. Judged on seeds
of their own and, for the words, on voices that training leaves out; the committed demo clip is
never touched.
"""

from __future__ import annotations

import argparse
import pathlib
import time
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from training import (
    detector,
    detector_model,
    export,
    image_networks,
    judge,
    phone_network,
    scenes,
    word_network,
)

from nnasync import save
from nnasync.suites import data

ROOT = pathlib.Path(__file__).resolve().parents[1]
TARGET = ROOT / "nnasync" / "cli" / "demo_data"


class Recipe(NamedTuple):
    """How a digit network is trained: share of the pictures, how often, in what batches."""

    layers: tuple[image_networks.Layer, ...]
    share: float
    epochs: int
    batch: int


RECIPES = {
    "digits": Recipe(image_networks.SMALL, share=1.0, epochs=3, batch=128),
    "digits_large": Recipe(image_networks.LARGE, share=0.5, epochs=1, batch=64),
}
CHOICES = ("digits", "digits_large", "detector", "words", "phones", "export")
SENTENCES = 50


def _save(work: pathlib.Path, name: str, arrays: Mapping[str, np.ndarray]) -> None:
    work.mkdir(parents=True, exist_ok=True)
    with (work / f"{name}.npz").open("wb") as file:
        np.savez(file, **arrays)


def _train_images(names: list[str], options: argparse.Namespace) -> None:
    count = int(48_000 * options.effort)
    print(f"drawing {count} pictures ...", flush=True)
    images, labels = image_networks.make_samples(options.seed, count, options.workers)
    fresh = [list(scenes.play(seed, 1800)) for seed in judge.VALIDATION_SEEDS]
    for name in names:
        recipe = RECIPES[name]
        print(f"training {name} ...", flush=True)
        some = slice(int(count * recipe.share))
        module = image_networks.train(
            recipe.layers,
            images[some],
            labels[some],
            seed=options.seed,
            epochs=recipe.epochs,
            batch=recipe.batch,
            bfloat16=options.bfloat16,
        )
        _save(options.work, name, image_networks.weights(module))
        for seed, clip in zip(judge.VALIDATION_SEEDS, fresh, strict=True):
            pictures = np.stack([frame.image for frame in clip])
            share = image_networks.accuracy(module, pictures, np.array([f.label for f in clip]))
            print(f"{name} on fresh clip {seed}: {share:.2%} of the frames", flush=True)


def _train_detector(options: argparse.Namespace) -> None:
    count = int(12_000 * options.effort)
    print(f"drawing {count} scenes ...", flush=True)
    samples = detector.make_samples(options.seed, count, options.workers)
    print("training detector ...", flush=True)
    module = detector.train(samples, seed=options.seed, epochs=12, bfloat16=options.bfloat16)
    some = detector.Samples(*(column[:400] for column in samples))
    _save(options.work, "detector", detector.folded(module, some))


def _train_words(options: argparse.Namespace) -> None:
    count, spoken = int(3600 * options.effort), int(6000 * options.effort)
    print(f"composing {count} tracks of {spoken} utterances ...", flush=True)
    examples = word_network.make_examples(options.seed, count, spoken, workers=options.workers)
    network = word_network.train(examples, seed=options.seed, epochs=36, bfloat16=options.bfloat16)
    _save(options.work, "words", word_network.weights(network))
    for seed in judge.VALIDATION_SEEDS:
        share = judge.words(lambda samples: word_network.scores(network, samples), seed)
        print(f"words on fresh track {seed}: {share:.2%} of the words", flush=True)


def _train_phones(options: argparse.Namespace) -> None:
    count = int(6000 * options.effort)
    print(f"speaking {count} sentences ...", flush=True)
    sentences = phone_network.make_sentences(options.seed, count, workers=options.workers)
    network = phone_network.train(sentences, seed=options.seed, epochs=30)
    _save(options.work, "phones", phone_network.weights(network))


def _export_phones(options: argparse.Namespace) -> None:
    source = options.work / "phones.npz"
    if not source.is_file():
        print(f"phones: no weights in {options.work}; left as it is")
        return
    with np.load(source) as arrays:
        model = export.phones("phones", arrays)
    save(model, data.NETWORK)
    with data.SEQUENCES.open("wb") as file:
        np.savez_compressed(file, **phone_network.sequences(model, options.seed, SENTENCES))
    for path in (data.NETWORK, data.SEQUENCES):
        print(f"{path.name:17} {path.stat().st_size / 1000:6.0f} kB")
    right = [np.mean(each.golden == each.spoken) for each in data.read_phones()]
    print(f"phones of {SENTENCES} sentences: {np.mean(right):.2%} of the steps")


def _export(options: argparse.Namespace) -> None:
    writers = {
        "digits": export.digits,
        "digits_large": export.digits,
        "detector": detector_model.detector,
        "words": export.words,
    }
    for name, write in writers.items():
        source = options.work / f"{name}.npz"
        if not source.is_file():
            print(f"{name}: no weights in {options.work}; left as it is")
            continue
        file = options.output / f"{name}.nnm"
        with np.load(source) as arrays:
            model = write(name, arrays)
        save(model, file)
        print(f"{file.name:17} {file.stat().st_size / 1000:6.0f} kB")
        if name == "detector":
            for seed in judge.VALIDATION_SEEDS:
                print(f"{name} on fresh scenes {seed}: mAP@0.5 {judge.scenes(model, seed):.3f}")


def main() -> None:
    """Do what was asked for: by default all of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--only",
        nargs="+",
        choices=CHOICES,
        default=CHOICES,
        metavar="STEP",
        help=f"some of {', '.join(CHOICES)}; default: all",
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--effort", type=float, default=1.0, help="share of the usual data, 0.05 to try"
    )
    parser.add_argument(
        "--workers", type=int, default=2, help="processes that make data, and threads"
    )
    parser.add_argument(
        "--bfloat16", action="store_true", help="train in it: faster where the processor can"
    )
    parser.add_argument("--work", type=pathlib.Path, default=ROOT / ".train")
    parser.add_argument("--output", type=pathlib.Path, default=TARGET)
    options = parser.parse_args()
    torch.set_num_threads(options.workers)
    begun = time.monotonic()
    images = [name for name in RECIPES if name in options.only]
    if images:
        _train_images(images, options)
    if "detector" in options.only:
        _train_detector(options)
    if "words" in options.only:
        _train_words(options)
    if "phones" in options.only:
        _train_phones(options)
    if "export" in options.only:
        _export(options)
        _export_phones(options)
    print(f"done after {time.monotonic() - begun:.0f} s")


if __name__ == "__main__":
    main()
