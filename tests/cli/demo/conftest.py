"""The demo's tests share a state folder: its networks are measured by the first of them."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def demo_state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo-state")


@pytest.fixture(autouse=True)
def _measured_once(demo_state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NNASYNC_STATE_DIR", str(demo_state))
