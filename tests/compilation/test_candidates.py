"""Devices that are asked what they can do with a model."""

from __future__ import annotations

import pytest

from nnasync._core.compilation.candidates import by_deadline
from nnasync.errors import MissedDeadlineTransient
from tests.rigs import REFERENCE, runtime

pytestmark = pytest.mark.anyio


async def test_a_deadline_that_a_device_missed_by_itself_is_told_in_its_words() -> None:
    async def answer() -> None:
        raise MissedDeadlineTransient("the device has one of its own")

    async with runtime() as rt:
        with pytest.raises(MissedDeadlineTransient, match="one of its own"):
            await by_deadline(rt.device(REFERENCE), answer(), None)
