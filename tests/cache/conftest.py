"""Fixtures of the tests of the cache."""

from __future__ import annotations

from pathlib import Path

import pytest

from nnasync._core.cache import Store


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A cache directory that does not exist yet."""
    return tmp_path / "cache"


@pytest.fixture
def store(directory: Path, state_folder: Path) -> Store:
    """A store in that directory."""
    return Store(directory, state_folder)
