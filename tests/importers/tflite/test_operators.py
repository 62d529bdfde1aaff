"""Every operator that is translated gives what LiteRT's own kernels give."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from nnasync.importers.tflite import translate
from tests.importers.tflite import elementwise_cases, movement_cases, window_cases
from tests.importers.tflite.judge import cases, compare, litert, numbers, reference, written

CASES = cases(elementwise_cases.CASES, movement_cases.CASES, window_cases.CASES)
SEEDS = 3


@pytest.mark.parametrize("name", CASES)
def test_translated_operators_agree_with_litert(name: str, tmp_path: Path) -> None:
    for seed in range(SEEDS):
        random = np.random.default_rng(seed)
        network = CASES[name](random)
        inputs = [numbers(random, network, network.tensors[index]) for index in network.inputs]
        got = reference(translate(written(tmp_path, network)), inputs)
        compare(network, got, litert(network.file(), inputs))
