"""The fixture that makes devices of engines, and closes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from nnasync.engine import Engine
from tests.engine_device.rig import Rig


@pytest.fixture
def rigs(no_leaks: None) -> Iterator[Callable[..., Rig]]:
    made: list[Rig] = []

    def make(engine: Engine, **options: Any) -> Rig:
        made.append(Rig(engine, **options))
        return made[-1]

    yield make
    for rig in made:
        rig.close()
