"""Claims: who has buffers, what he may find in them, and what of that is remembered."""

from __future__ import annotations

import gc
import weakref

import pytest

from nnasync._core.engine_device.buffers import Buffers, Claim, ManagedBuffer
from nnasync.errors import (
    BadState,
    GeneralFailure,
    InvalidArgument,
    ResourceExhaustedTransient,
)
from nnasync.hal import Operand
from tests.engine_device.buffers.given import FLOATS, contents, filled, made, reading, writing


def test_readers_share_and_a_writer_is_alone() -> None:
    buffer = made()
    filled(buffer, 1)
    again, claims = reading(buffer), buffer.claims
    readers = [again, again, *(reading(buffer) for _ in range(6))]
    for reader in readers:
        claims.begin(reader)
    writer = writing(buffer)
    with pytest.raises(ResourceExhaustedTransient, match="in use"):
        claims.begin(writer)
    with pytest.raises(ResourceExhaustedTransient):
        filled(buffer, 2)
    assert contents(buffer) == bytes([1]) * 24
    for reader in readers:
        assert buffer.claims.are_on(buffer)
        claims.end(reader)
    assert not buffer.claims.are_on(buffer)
    claims.begin(writer)
    for refused in (writer, writing(buffer), again, reading(buffer)):
        with pytest.raises(ResourceExhaustedTransient):
            claims.begin(refused)
    with pytest.raises(ResourceExhaustedTransient):
        contents(buffer)
    claims.end(writer)
    assert contents(buffer) == bytes([1]) * 24


def test_what_changed_since_is_not_voided() -> None:
    buffer = made()
    claims, before = buffer.claims, buffer.claims.tick
    filled(buffer, 1)
    claims.void([buffer], before)
    assert buffer.is_initialized
    now, writer = claims.tick, writing(buffer)
    claims.begin(writer)
    claims.void([buffer], now)
    assert buffer.found == (2, 3)
    claims.end(writer)
    claims.void([buffer], now)
    assert buffer.found == (2, 3)
    claims.void([buffer], claims.tick)
    assert buffer.found is None


def test_all_claims_or_none() -> None:
    buffers = Buffers()
    one, two, three = (buffers.allocate(Operand(FLOATS, (2, 3)), []) for _ in range(3))
    filled(one, 1)
    filled(three, 3)
    claims = buffers.claims
    claims.begin(writing(two))
    for reads, writes, error in (
        ([(one, (2, 3))], [three, two], ResourceExhaustedTransient),
        ([(one, (2, 3)), (two, (2, 3))], [three], ResourceExhaustedTransient),
        ([(one, (3, 2))], [three], InvalidArgument),
    ):
        with pytest.raises(error):
            claims.begin(Claim(reads, [(each, (2, 3)) for each in writes]))
        assert not one.claims.are_on(one)
        assert not three.claims.are_on(three)
        assert one.is_initialized


def turns(buffers: Buffers) -> tuple[list[ManagedBuffer], list[ManagedBuffer], list[Claim]]:
    """Two sides of three buffers, and the claims of a stream that goes from one to the other."""
    sides = [[buffers.allocate(Operand(FLOATS, (2, 3)), []) for _ in range(3)] for _ in range(2)]
    for each in sides[0]:
        filled(each, 1)
    one, two = sides
    claims = [
        Claim([(each, (2, 3)) for each in given], [(each, (2, 3)) for each in taken])
        for given, taken in ((one, two), (two, one))
    ]
    for claim in claims * 3:
        buffers.claims.begin(claim)
        buffers.claims.end(claim)
    return one, two, claims


def test_what_a_claim_remembers_is_forgotten() -> None:
    """What happens to one of many buffers between two runs of a stream is found."""
    for happens, error in (
        (lambda buffers, each: buffers.claims.void([each], buffers.claims.tick), GeneralFailure),
        (lambda buffers, each: buffers.free(each.token), BadState),
        (lambda buffers, each: each.close(), BadState),
        (lambda buffers, each: buffers.claims.begin(writing(each)), ResourceExhaustedTransient),
        (lambda buffers, each: failed_write(buffers, each), GeneralFailure),
    ):
        buffers = Buffers()
        one, _, claims = turns(buffers)
        happens(buffers, one[1])
        with pytest.raises(error):
            buffers.claims.begin(claims[0])
        assert not one[0].claims.are_on(one[0])


def failed_write(buffers: Buffers, buffer: ManagedBuffer) -> None:
    claim = writing(buffer)
    buffers.claims.begin(claim)
    buffers.claims.fail(claim)


def test_a_stream_goes_on_after_others_wrote() -> None:
    buffers = Buffers()
    one, two, claims = turns(buffers)
    failed_write(buffers, two[0])
    assert not two[0].is_initialized
    filled(one[2], 9)
    buffers.claims.begin(claims[0])
    buffers.claims.end(claims[0])
    assert all(each.found == (2, 3) for each in two)
    buffers.claims.begin(claims[1])
    with pytest.raises(ResourceExhaustedTransient):
        filled(one[0], 1)
    buffers.claims.fail(claims[1])
    assert not any(each.is_initialized for each in one)
    assert all(each.is_initialized for each in two)


def test_ticks_of_a_stream() -> None:
    """A run that turns out to have failed voids what it wrote, and nothing that came later."""
    buffers = Buffers()
    one, two, claims = turns(buffers)
    buffers.claims.begin(claims[0])
    tick = buffers.claims.end(claims[0])
    filled(two[1], 5)
    buffers.claims.void(two, tick)
    assert [each.is_initialized for each in two] == [False, True, False]
    assert all(each.is_initialized for each in one)
    for each in two:
        filled(each, 1)
    buffers.claims.begin(claims[1])
    tick = buffers.claims.end(claims[1])
    other = Claim(claims[1].reads, claims[1].written)
    buffers.claims.begin(other)
    later = buffers.claims.end(other)
    buffers.claims.void(one, tick)
    assert all(each.is_initialized for each in one)
    buffers.claims.void(one, later)
    assert not any(each.is_initialized for each in one)


def test_marks_and_claims_keep_no_buffer() -> None:
    buffers = Buffers()
    one, two, claims = turns(buffers)
    gone = [weakref.ref(each) for each in (*one, *two)]
    for each in (*one, *two):
        buffers.free(each.token)
    del one, two, claims, each
    gc.collect()
    assert not any(ref() for ref in gone)
