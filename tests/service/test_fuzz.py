"""Whatever a client sends after its greeting, others are served, and nothing is left behind."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from tests.service.fuzzing import fuzz, tampered_queue

MESSAGES = 3_000
LEAST = 101
"""Of each kind."""


@pytest.mark.anyio
@pytest.mark.one_loop
@pytest.mark.parametrize("seed", range(3))
async def test_hostile_clients(seed: int, tmp_path: Path, anyio_backend: str) -> None:
    """A short search; `python -m scripts.fuzz_service` is the long one."""
    lives: list[int] = []

    def told(_sent: int, counts: Counter[str], _resident: int) -> None:
        lives.append(counts["lives"])

    counts = await fuzz(MESSAGES, seed, tmp_path, told, results=LEAST)
    assert counts["messages"] + counts["packets"] >= MESSAGES
    assert min(counts["messages"], counts["packets"], counts["answers"], counts["results"]) >= LEAST
    assert lives == list(range(1, counts["lives"] + 1))


@pytest.mark.parametrize("seed", range(5))
def test_queues_whose_writer_changes_their_memory(seed: int) -> None:
    random_ = random.Random(seed)
    assert sum(tampered_queue(random_) for _ in range(100)) > 500
