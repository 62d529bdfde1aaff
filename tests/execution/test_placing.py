"""What an argument is: copied into the slot, or used where it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import pytest

from nnasync._core.execution.placing import place
from nnasync._core.execution.ports import ports_of
from nnasync._core.execution.slots import Lease, OutputRegion, Slot, Slots, output_regions
from nnasync.device import PreparedModel
from nnasync.errors import BadState, InvalidArgument
from nnasync.fences import Fence
from nnasync.memory import Pool
from tests.rigs import ONES, ROW, SHAPE, calculator, floats

PORTS = ports_of(calculator())
NOT_ASKED = cast(PreparedModel, object())
"""Only buffers are asked for their roles in it."""

OTHER = floats(5, 6, 7, 8)


@pytest.fixture
def slot() -> Slot:
    return Slot(calculator(), PORTS)


def placed(slot: Slot, values: Sequence[Any], outs: Any = None, **options: Any) -> Any:
    return place(slot, values, outs, PORTS, NOT_ASKED, **options)


def launched(values: Sequence[Any] = ()) -> tuple[Lease, tuple[OutputRegion, ...]]:
    pile, fence = Slots(calculator(), PORTS), Fence()
    fence.signal()
    lease = Lease(pile, pile.take(), fence)
    assert lease.slot is not None
    return lease, output_regions(lease.slot, lease, PORTS.outputs)


def test_arrays_and_numbers_are_copied(slot: Slot) -> None:
    assert placed(slot, [ROW, [[5, 6, 7, 8]]]) == ([], [], [])
    assert [array.tolist() for array in slot.inputs] == [ROW.tolist(), OTHER.tolist()]


@pytest.mark.parametrize("is_launch", [False, True])
def test_a_value_that_does_not_fit_is_refused(slot: Slot, is_launch: bool) -> None:
    for wrong in (np.zeros((2, 2), np.float32), np.zeros(SHAPE), None, "text"):
        with pytest.raises(InvalidArgument, match="'b'"):
            placed(slot, [ROW, wrong], is_launch=is_launch)


def test_a_call_copies_a_region_and_a_launch_reads_it_in_place(slot: Slot) -> None:
    with Pool.allocate(4096) as pool:
        region = pool.region(64, 16, dtype=np.float32, shape=SHAPE)
        region.array[...] = OTHER
        assert placed(slot, [ROW, region]) == ([], [], [])
        assert slot.inputs[1].tolist() == OTHER.tolist()
        assert placed(slot, [ROW, region], is_launch=True) == ([(1, region)], [], [])
        flat = pool.region(64, 16, dtype=np.float32, shape=(4,))
        with pytest.raises(InvalidArgument, match="region for input 'b'"):
            placed(slot, [ROW, flat], is_launch=True)


def test_an_output_is_read_for_as_long_as_its_lease_lasts(slot: Slot) -> None:
    lease, regions = launched()
    pieces, sources, copies = placed(slot, [ROW, regions[0]], is_launch=True)
    assert (pieces, sources, copies) == ([(1, regions[0])], [lease], [])
    lease.close()
    with pytest.raises(BadState, match="'b' is closed"):
        placed(slot, [ROW, regions[0]], is_launch=True)


def test_private_memory_is_copied_for_another_process(slot: Slot) -> None:
    with Pool.private(64) as pool:
        region = pool.region(0, 16, dtype=np.float32, shape=SHAPE)
        pieces, sources, copies = placed(slot, [ROW, region], is_launch=True, peer=object())
        assert (pieces, sources) == ([], [])
        [(target, source)] = copies
        assert target is slot.inputs[1]
        assert source is region.array


def test_arrays_for_outputs_are_checked(slot: Slot) -> None:
    out = np.empty(SHAPE, np.float32)
    assert placed(slot, [ROW, ONES], (None, out)) == ([], [], [])
    constant = out.copy()
    constant.flags.writeable = False
    for wrong in (out[:, :3], constant, 3, "text"):
        with pytest.raises(InvalidArgument, match="out for 'product'"):
            placed(slot, [ROW, ONES], (None, wrong))
