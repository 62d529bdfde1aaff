"""What engines take to be ready is kept, the shortest counts, and the file is not trusted."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnasync.machine import kept
from nnasync.machine.loading import kept_loading_ms, learn_loading_ms


def test_the_shortest_time_counts(tmp_path: Path) -> None:
    assert kept_loading_ms(tmp_path) == {}
    learn_loading_ms(tmp_path, {"a 1": 30.0, "b 1": 5.0})
    learn_loading_ms(tmp_path, {"a 1": 20.0, "b 1": 9.0, "c 2": 1.0})
    assert kept_loading_ms(tmp_path) == {"a 1": 20.0, "b 1": 5.0, "c 2": 1.0}


@pytest.mark.parametrize("ms", [0.0, -1.0, float("nan"), float("inf"), 1e9])
def test_what_cannot_be_is_not_learned(tmp_path: Path, ms: float) -> None:
    learn_loading_ms(tmp_path, {"a 1": ms})
    assert kept_loading_ms(tmp_path) == {}


def test_the_newest_of_many_stay(tmp_path: Path) -> None:
    learn_loading_ms(tmp_path, {f"engine {number}": 1.0 for number in range(100)})
    assert set(kept_loading_ms(tmp_path)) == {f"engine {number}" for number in range(36, 100)}


def test_another_machine_learns_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    learn_loading_ms(tmp_path, {"a 1": 30.0})
    monkeypatch.setattr(kept, "machine", lambda: "another")
    assert kept_loading_ms(tmp_path) == {}


@given(data=st.binary(max_size=200))
def test_other_files_count_as_none(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    folder = tmp_path_factory.mktemp("state")
    (folder / "loading-1.msgpack").write_bytes(data)
    assert kept_loading_ms(folder) == {}


def test_times_that_cannot_be_count_as_none(tmp_path: Path) -> None:
    wrong = {"digest": kept.digest(), "loading_ms": {"a 1": -3.0}}
    (tmp_path / "loading-1.msgpack").write_bytes(msgspec.msgpack.encode(wrong))
    assert kept_loading_ms(tmp_path) == {}
