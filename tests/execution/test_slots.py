"""Slots: memory of executions, recycled only when nobody uses it any more."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest

from nnasync._core.execution.placing import ImagePiece
from nnasync._core.execution.ports import ports_of
from nnasync._core.execution.slots import Holding, Lease, Slot, Slots
from nnasync.errors import GeneralFailure, ResourceExhaustedTransient
from nnasync.fences import Fence
from nnasync.memory import ImageFormat, Pool
from tests.rigs import GUARD_S, SHAPE, calculator, counter


def slots() -> Slots:
    model = calculator()
    return Slots(model, ports_of(model))


def overlapping(slot: Slot) -> list[tuple[int, int]]:
    arrays = slot.inputs + slot.outputs
    return [
        (i, j)
        for i in range(len(arrays))
        for j in range(i)
        if np.shares_memory(arrays[i], arrays[j])
    ]


def test_a_slot_has_room_for_everything_apart() -> None:
    slot = slots().take()
    assert [array.shape for array in slot.inputs + slot.outputs] == [SHAPE] * 4
    assert overlapping(slot) == []
    assert len(slot.request.inputs) == len(slot.request.outputs) == 2
    assert slot.request.pools == (slot.pool,)


def test_a_slot_is_read() -> None:
    slot = slots().take()
    slot.outputs[0][...] = 10
    slot.outputs[1][...] = 20
    first, second = slot.read(None)
    slot.outputs[0][...] = 0
    assert first.tolist() == [[10] * 4]
    assert second.tolist() == [[20] * 4]


def test_reading_into_the_caller_s_arrays() -> None:
    slot = slots().take()
    slot.outputs[0][...] = 10
    targets = [np.zeros(SHAPE, np.float32), np.zeros((1, 8), np.float32)[:, ::2]]
    result = slot.read(targets)
    assert result[0] is targets[0]
    assert result[1] is targets[1]
    assert targets[0].tolist() == [[10] * 4]


def test_states_are_read_from_zeroes_and_written_elsewhere() -> None:
    model = counter()
    slot = Slot(model, ports_of(model))
    places = [argument.location for argument in slot.request.inputs + slot.request.outputs]
    assert len(places) == 4
    assert len({place.offset for place in places}) == 4
    pair = model.state[0]
    zeroes = slot.pool.array(np.float32, SHAPE, slot.request.inputs[pair.input].location.offset)
    assert zeroes.tolist() == [[0] * 4]


def test_the_slot_used_last_is_used_next() -> None:
    pile = slots()
    first, second = pile.take(), pile.take()
    assert first is not second
    pile.give_back(first)
    pile.give_back(second)
    assert pile.take() is second
    assert pile.take() is first


def test_a_slot_that_was_given_up_is_used_again_when_its_device_has_let_go() -> None:
    pile, in_use = slots(), set[int]()
    pile.serve(None, None, lambda request: id(request) not in in_use)
    slot = pile.take()
    in_use.add(id(slot.request))
    pile.give_up(slot, slot.request)
    other = pile.take()
    assert other is not slot
    in_use.clear()
    assert pile.take() is slot
    assert pile.take() not in (slot, other)


def test_a_free_slot_is_found_behind_slots_that_hang() -> None:
    pile, hanging = slots(), set[int]()
    pile.serve(None, None, lambda request: id(request) not in hanging)
    taken = [pile.take() for _ in range(10)]
    hanging |= {id(slot.request) for slot in taken[:9]}
    for slot in taken:
        pile.give_up(slot, slot.request)
    found = [pile.take() for _ in range(3)]
    assert taken[9] in found
    assert not set(map(id, taken[:9])) & set(map(id, found))


def test_slots_of_devices_that_do_not_tell_are_dropped_when_given_up() -> None:
    pile = slots()
    slot = pile.take()
    pile.give_up(slot, slot.request)
    assert pile.take() is not slot


def test_a_slot_in_use_where_another_takes_over_is_used_by_none_of_its_calls() -> None:
    """The device that takes over knows nothing of runs of the one before."""
    pile = slots()
    pile.serve(None, None, lambda request: False)
    idle, in_use = pile.take(), pile.take()
    pile.give_back(idle)
    pile.serve(None, None, lambda request: True)
    assert pile.take() is idle
    pile.give_up(in_use, in_use.request)
    assert pile.take() is not in_use
    pile.give_up(idle, idle.request)
    assert pile.take() is idle


def test_slots_that_were_given_up_are_trimmed_and_closed() -> None:
    pile = slots()
    pile.serve(None, None, lambda request: True)
    for slot in [pile.take() for _ in range(10)]:
        pile.give_up(slot, slot.request)
    pile.trim()
    assert len(pile._given_up) == 4
    pile.close()
    assert not pile._given_up


def test_a_region_takes_the_place_of_an_input() -> None:
    slot = slots().take()
    pool = Pool.allocate(4096)
    region = pool.region(64, 16, dtype=np.float32, shape=SHAPE)
    assert slot.request_with([]) is slot.request
    request = slot.request_with([(1, region)])
    assert request.pools == (slot.pool, pool)
    assert request.inputs[0] == slot.request.inputs[0]
    assert request.inputs[1].location.pool_index == 1
    assert request.inputs[1].location.offset == 64
    assert slot.request_with([(1, region)]) is request
    assert slot.request_with([(0, region)]) is not request


def test_all_of_an_image_is_no_region_of_it() -> None:
    slot = slots().take()
    with Pool.image(ImageFormat.RGBA_8888, 4, 1) as image:
        first = slot.request_with([(0, image.region(0, 16, dtype=np.float32, shape=SHAPE))])
        assert first.inputs[0].location.length == 16
        assert slot.request_with([(0, ImagePiece(image))]).inputs[0].location.length == 0


def test_requests_with_regions_are_forgotten_some_time() -> None:
    slot = slots().take()
    pools = [Pool.allocate(64) for _ in range(100)]
    for pool in pools:
        request = slot.request_with([(0, pool.region(0, 16, dtype=np.float32, shape=SHAPE))])
        assert request.pools[1] is pool
    assert len(slot._requests) < 50


def test_two_regions_of_one_pool_name_it_once() -> None:
    slot = slots().take()
    pool = Pool.allocate(4096)
    regions = [pool.region(at, 16, dtype=np.float32, shape=SHAPE) for at in (0, 64)]
    request = slot.request_with(list(enumerate(regions)))
    assert len(request.pools) == 2
    assert [argument.location.offset for argument in request.inputs] == [0, 64]


def test_a_lease_that_ends_after_the_fence_recycles_the_slot() -> None:
    pile, fence = slots(), Fence()
    slot = pile.take()
    lease = Lease(pile, slot, fence)
    fence.signal()
    assert lease.slot is slot
    lease.close()
    assert [lease.slot] == [None]
    assert pile.take() is slot


def test_a_lease_that_ends_early_recycles_the_slot_with_the_fence() -> None:
    pile, fence = slots(), Fence()
    slot = pile.take()
    lease = Lease(pile, slot, fence)
    del lease
    gc.collect()
    assert pile.take() is not slot
    fence.signal()
    assert pile.take() is slot


def test_a_lease_ends_in_a_finalizer_without_waiting_for_its_fence() -> None:
    """Garbage is collected anywhere, also on a thread that is inside the fence."""
    pile, fence = slots(), Fence()
    slot = pile.take()
    lease = Lease(pile, slot, fence)
    with fence._lock:
        ending = threading.Thread(target=lease.close, daemon=True)
        ending.start()
        ending.join(GUARD_S)
        assert not ending.is_alive()
    assert pile.take() is not slot
    fence.signal()
    assert pile.take() is slot


def test_a_slot_that_is_still_read_when_its_lease_ends_is_dropped() -> None:
    pile, fence, reader = slots(), Fence(), Fence()
    slot = pile.take()
    lease = Lease(pile, slot, fence)
    lease.read_until(reader)
    lease.close()
    fence.signal()
    reader.signal()
    assert pile.take() is not slot


def test_a_slot_whose_execution_failed_is_never_used_again() -> None:
    pile, fence = slots(), Fence()
    slot = pile.take()
    Lease(pile, slot, fence).close()
    fence.fail(GeneralFailure("late"))
    assert pile.take() is not slot


def test_a_lease_ends_once() -> None:
    pile, fence = slots(), Fence()
    slot = pile.take()
    fence.signal()
    lease = Lease(pile, slot, fence)
    lease.close()
    lease.close()
    del lease
    gc.collect()
    assert pile.take() is slot
    assert pile.take() is not slot


def test_a_reader_holds_a_lease_until_its_own_fence() -> None:
    pile, written, read = slots(), Fence(), Fence()
    slot = pile.take()
    written.signal()
    read.add_callback(Holding([Lease(pile, slot, written)]))
    gc.collect()
    assert pile.take() is not slot
    read.signal()
    gc.collect()
    assert pile.take() is slot


# -- whose memory it is


def test_slots_for_a_device_of_this_process_are_private() -> None:
    pile = slots()
    pile.serve(None)
    slot = pile.take()
    assert slot.pool.is_private
    assert slot.peer is None
    pile.give_back(slot)
    pile.serve(None)
    assert pile.take() is slot


def test_slots_for_another_process_share_few_pools_and_overlap_nowhere() -> None:
    pile, peer = slots(), object()
    pile.serve(peer)
    taken = [pile.take() for _ in range(200)]
    pools = {id(slot.pool): slot.pool for slot in taken}
    assert len(pools) < 12
    assert not any(pool.is_private for pool in pools.values())
    for number, slot in enumerate(taken):
        for array in slot.inputs + slot.outputs:
            array.fill(number)
    for number, slot in enumerate(taken):
        for array in slot.inputs + slot.outputs:
            assert (array == number).all()
    locations = {(id(slot.pool), each.offset) for slot in taken for each in slot.locations}
    assert len(locations) == 4 * len(taken)


def test_slots_of_another_device_than_before_are_dropped_when_they_are_given_back() -> None:
    pile = slots()
    pile.serve(None)
    before = [pile.take(), pile.take()]
    pile.give_back(before[0])
    pile.serve(object())
    pile.give_back(before[1])
    assert pile.take() not in before
    assert pile.take() not in before


def test_slots_that_are_lent_have_pools_of_their_own_but_not_all_of_them() -> None:
    pile = slots()
    pile.serve(None)
    slot = pile.take()
    fence = Fence()
    lease = Lease(pile, slot, fence)
    fence.signal()
    assert not lease.lends_to(object())
    lease.close()
    taken = [pile.take() for _ in range(40)]
    lent = [each for each in taken if not each.pool.is_private]
    assert slot not in taken
    assert 0 < len(lent) < len(taken)
    assert len({id(each.pool) for each in lent}) == len(lent)
    assert all(Lease(pile, each, fence).lends_to(object()) for each in lent)


def test_nothing_is_made_where_an_execution_would_be_refused() -> None:
    pile = slots()

    def full(priority: object) -> None:
        raise ResourceExhaustedTransient("full")

    pile.serve(None, full)
    with pytest.raises(ResourceExhaustedTransient, match="full"):
        pile.take()
    slot = pile.take_ahead()
    pile.give_back(slot)
    assert pile.take() is slot
