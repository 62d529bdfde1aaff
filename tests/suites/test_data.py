"""The sentences that come with the suites, and the network that hears their phones."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

import nnasync as nn
from nnasync.errors import ModelError
from nnasync.hal import Array
from nnasync.suites import data


def said(phones: Array) -> list[int]:
    """What is said in a row of steps: without repetitions and silence."""
    return [int(key) for key, _ in itertools.groupby(phones) if data.PHONES[int(key)] != "_"]


def distance(heard: list[int], truth: list[int]) -> int:
    """Levenshtein's distance."""
    row = list(range(len(truth) + 1))
    for index, phone in enumerate(heard, 1):
        diagonal, row[0] = row[0], index
        for at, other in enumerate(truth, 1):
            cost = min(row[at] + 1, row[at - 1] + 1, diagonal + (phone != other))
            diagonal, row[at] = row[at], cost
    return row[-1]


def test_there_are_fifty_sentences_of_phones() -> None:
    sentences = data.read_phones()
    assert len(sentences) == 50
    for each in sentences:
        steps = len(each.inputs)
        assert each.inputs.shape == (steps, 320)
        assert each.inputs.dtype == np.float32
        assert each.golden.shape == each.spoken.shape == (steps,)
    used = np.unique(np.concatenate([each.spoken for each in sentences]))
    assert used.tolist() == list(range(len(data.PHONES)))


def test_what_the_network_is_said_to_hear_is_mostly_what_was_spoken() -> None:
    sentences = data.read_phones()
    wrong = sum(distance(said(each.golden), said(each.spoken)) for each in sentences)
    assert wrong / sum(len(said(each.spoken)) for each in sentences) < 0.18


@pytest.mark.anyio
@pytest.mark.one_loop("the loop has no part in it")
async def test_the_reference_hears_what_was_kept() -> None:
    sentence = data.read_phones()[7]
    async with nn.open_runtime(devices=["nnasync-reference"]) as runtime:
        net = await runtime.compile(data.NETWORK)
        assert [port.shape for port in (*net.inputs, *net.outputs)] == [(1, 320), (1, 42)]
        async with net.burst() as burst:
            heard = [int(np.argmax(await burst(row[None]))) for row in sentence.inputs]
    assert heard == sentence.golden.tolist()


@pytest.mark.parametrize("broken", ["hops", "golden", "frames", "scale"])
def test_files_of_other_sentences(tmp_path: Path, broken: str) -> None:
    with np.load(data.SEQUENCES) as file:
        arrays = dict(file)
    arrays[broken] = arrays[broken][:-1]
    path = tmp_path / "phones.npz"
    np.savez(path, **arrays)
    with pytest.raises(ModelError, match=r"phones\.npz"):
        data.read_phones(path)
    del arrays[broken]
    np.savez(path, **arrays)
    with pytest.raises(ModelError, match="holds no sentences"):
        data.read_phones(path)
