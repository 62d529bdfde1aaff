"""Every operator that is translated gives what LiteRT's own kernels give."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from nnasync._core.importers.tflite import load, translate
from nnasync.errors import ModelError
from tests.importers.tflite import (
    common_cases,
    elementwise_cases,
    movement_cases,
    window_cases,
)
from tests.importers.tflite.judge import cases, compare, litert, numbers, reference, written

CASES = cases(elementwise_cases.CASES, movement_cases.CASES, window_cases.CASES, common_cases.CASES)
FEW, MANY = range(3), range(3, 20)


def check(name: str, folder: Path, seeds: range) -> None:
    for seed in seeds:
        source = np.random.default_rng(seed)
        network = CASES[name](source)
        inputs = [numbers(source, network, network.tensors[index]) for index in network.inputs]
        got = reference(translate(written(folder, network)), inputs)
        compare(network, got, litert(network.file(), inputs))


@pytest.mark.parametrize("name", CASES)
def test_translated_operators_agree_with_litert(name: str, tmp_path: Path) -> None:
    check(name, tmp_path, FEW)


@pytest.mark.parametrize("name", list(CASES)[::5])
def test_flipped_bytes_of_any_operator_give_a_model_or_a_model_error(
    name: str, tmp_path: Path
) -> None:
    network = CASES[name](np.random.default_rng(0))
    path, data = written(tmp_path, network), network.file()
    choose = random.Random(name)
    for _ in range(25):
        broken = bytearray(data)
        for _ in range(choose.choice((1, 2, 6))):
            broken[choose.randrange(len(broken))] = choose.choice((0, 1, 2, 127, 255))
        path.write_bytes(broken)
        try:
            load(path)
        except ModelError as error:
            assert path.name in str(error)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_translated_operators_agree_on_more_shapes(name: str, tmp_path: Path) -> None:
    check(name, tmp_path, MANY)
