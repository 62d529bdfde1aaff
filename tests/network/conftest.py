"""Every test looks for what it leaves behind: threads, descriptors."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def leaves_nothing(no_leaks: None) -> None:
    """All of these tests open sockets and memory."""
