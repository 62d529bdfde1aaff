"""Every operator that is translated gives what LiteRT's own kernels give."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from nnasync.importers.tflite import translate
from tests.importers.tflite import elementwise_cases, movement_cases, window_cases
from tests.importers.tflite.judge import cases, compare, litert, numbers, reference, written

CASES = cases(elementwise_cases.CASES, movement_cases.CASES, window_cases.CASES)
FEW, MANY = range(3), range(3, 20)


def check(name: str, folder: Path, seeds: range) -> None:
    for seed in seeds:
        random = np.random.default_rng(seed)
        network = CASES[name](random)
        inputs = [numbers(random, network, network.tensors[index]) for index in network.inputs]
        got = reference(translate(written(folder, network)), inputs)
        compare(network, got, litert(network.file(), inputs))


@pytest.mark.parametrize("name", CASES)
def test_translated_operators_agree_with_litert(name: str, tmp_path: Path) -> None:
    check(name, tmp_path, FEW)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_translated_operators_agree_on_more_shapes(name: str, tmp_path: Path) -> None:
    check(name, tmp_path, MANY)
