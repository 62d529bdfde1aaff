"""The fixture of a burst whose two halves are in this process."""

from __future__ import annotations

import pytest

from tests.burst.halves import Rig


@pytest.fixture
def rig() -> Rig:
    return Rig()
