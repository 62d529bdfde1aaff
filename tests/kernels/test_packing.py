"""Packed weights that are recorded and replayed."""

from __future__ import annotations

from contextvars import Context

import numpy as np
import pytest

from nnasync.errors import ModelError
from nnasync.hal import Array
from nnasync.kernels import PACKING, Packing
from nnasync.kernels.packing import packed

ONES = np.ones((2, 3), np.float32)


def never() -> Array:
    raise AssertionError("it was packed again")


def test_without_packing_everything_is_made() -> None:
    assert packed(lambda: ONES, (2, 3)) is ONES


def test_recorded_arrays_are_replayed_in_order() -> None:
    recording = Packing()
    context = Context()
    context.run(PACKING.set, recording)
    twos = 2 * ONES
    assert context.run(packed, lambda: ONES, (2, 3)) is ONES
    assert context.run(packed, lambda: twos, (2, 3)) is twos
    replaying = Packing(recording.arrays)
    context.run(PACKING.set, replaying)
    complete = [replaying.is_complete]
    for array in (ONES, twos):
        assert context.run(packed, never, (2, 3)) is array
        complete.append(replaying.is_complete)
    assert complete == [False, False, True]
    assert recording.is_complete
    with pytest.raises(ModelError, match="only 2 packed arrays"):
        context.run(packed, never, (2, 3))


@pytest.mark.parametrize("array", [ONES.T, ONES[0], np.ones((2, 3), np.int32)])
def test_arrays_that_do_not_fit(array: Array) -> None:
    with pytest.raises(ModelError, match="expected floats of shape"):
        Packing([array]).take(never, (2, 3))
    with pytest.raises(ModelError, match="only 0"):
        Packing([]).take(never, (2, 3))
