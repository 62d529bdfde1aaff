"""Device-managed buffers: their state, their memory, their tokens."""

from __future__ import annotations

import gc
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from nnasync._core.engine_device.buffers import Buffers, Claim, default_limit_bytes
from nnasync.errors import (
    BadState,
    DeviceUnavailable,
    GeneralFailure,
    InvalidArgument,
    NNError,
    ResourceExhausted,
    ResourceExhaustedPersistent,
    ResourceExhaustedTransient,
)
from nnasync.hal import Operand, OperandType, Shape
from nnasync.memory import Pool
from tests.engine_device.buffers.given import (
    FLOATS,
    Model,
    contents,
    filled,
    made,
    reading,
    writing,
)


class Given:
    """Memory of any kind."""

    def __init__(self, name: str, size: int = 24, error: Exception | None = None) -> None:
        self.name = name
        self.size = size
        self._bytes = bytearray(range(size))
        self._error = error

    @property
    def view(self) -> memoryview:
        if self._error is not None:
            raise self._error
        return memoryview(self._bytes)


# -- copies


@pytest.mark.parametrize("kind", ["ashmem", "mmap_fd", "hardware_buffer_blob"])
def test_memory_of_every_kind_on_both_sides(kind: str) -> None:
    buffer, source = made(), Given(kind)
    buffer.copy_from(source)
    target = Given(kind)
    target.view[:] = bytes(24)
    buffer.copy_to(target)
    assert target.view == source.view


@pytest.mark.parametrize(
    "memory",
    [
        Given("hardware_buffer"),
        Given("anything"),
        Given("ashmem", error=BadState("closed")),
        Given("mmap_fd", error=OSError("no such file")),
        Given("mmap_fd", error=ValueError("mmap closed or invalid")),
    ],
)
def test_memory_that_cannot_be_mapped(memory: Given) -> None:
    buffer = made()
    filled(buffer, 1)
    with pytest.raises(GeneralFailure):
        buffer.copy_to(memory)
    assert buffer.is_initialized
    with pytest.raises(GeneralFailure):
        buffer.copy_from(memory)
    assert not buffer.is_initialized


def test_a_pool_that_lies_about_its_size() -> None:
    buffer, memory = made(), Given("ashmem", 12)
    memory.size = 24
    with pytest.raises(InvalidArgument):
        buffer.copy_from(memory)
    filled(buffer, 1)
    with pytest.raises(InvalidArgument):
        buffer.copy_to(memory)


def test_scalars() -> None:
    buffer = made((), OperandType.FLOAT32)
    with Pool.allocate(4) as pool:
        with pytest.raises(InvalidArgument, match="scalar"):
            buffer.copy_from(pool, (1,))
        pool.view[:] = b"1234"
        buffer.copy_from(pool)
        pool.view[:] = bytes(4)
        buffer.copy_to(pool)
        assert bytes(pool.view) == b"1234"


@pytest.mark.parametrize("known", [(), (0, 3), (2, 0)])
def test_dimensions_come_with_the_contents(known: Shape) -> None:
    buffer = made(known)
    assert buffer.memory.size == 0
    with pytest.raises(InvalidArgument, match="dimensions must be given"):
        filled(buffer, 1, ())
    for rows in (2, 5) if known != (2, 0) else (2,):
        filled(buffer, rows, (rows, 3))
        assert buffer.dimensions == (rows, 3)
        assert contents(buffer) == bytes([rows]) * rows * 12
    with pytest.raises(InvalidArgument):
        filled(buffer, 1, (2, 3, 1) if known else (0, 1))
    assert buffer.dimensions == known


def test_memory_begins_zeroed_and_aligned() -> None:
    for size in (1, 3, 63, 64, 1000):
        memory = made((size,)).memory
        assert memory.ctypes.data % 64 == 0
        assert memory.tobytes() == bytes(4 * size)


def test_copies_that_race_leave_no_mixture() -> None:
    buffer = made((1 << 16,))
    filled(buffer, 255)
    start, seen, errors = threading.Barrier(8), set[bytes](), list[Exception]()

    def copy(number: int) -> None:
        start.wait(60)
        for _ in range(20):
            try:
                if number % 2:
                    filled(buffer, number)
                else:
                    seen.update({contents(buffer)})
            except ResourceExhaustedTransient:
                continue
            except Exception as error:
                errors.append(error)

    threads = [threading.Thread(target=copy, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []
    assert all(len(set(found)) == 1 for found in seen)
    filled(buffer, 7)
    assert contents(buffer) == bytes([7]) * (1 << 18)


# -- tokens and room


def test_tokens_are_random_and_positive() -> None:
    buffers = Buffers()
    tokens = [buffers.allocate(Operand(FLOATS, (1,)), []).token for _ in range(200)]
    assert len(set(tokens)) == 200
    assert all(0 < token < 2**63 for token in tokens)
    assert len({token >> 55 for token in tokens}) > 50
    for token in (0, 1, -1, 2**63):
        with pytest.raises(InvalidArgument, match="stands for no buffer"):
            buffers.find(token)


def test_a_token_dies_with_its_buffer() -> None:
    buffers = Buffers()
    buffer = buffers.allocate(Operand(FLOATS, (2, 3)), [])
    filled(buffer, 1)
    assert buffers.find(buffer.token) is buffer
    assert (buffers.statistics().buffers, buffers.statistics().bytes) == (1, 24)
    buffers.free(buffer.token)
    buffers.free(buffer.token)
    assert (buffers.statistics().buffers, buffers.statistics().bytes) == (0, 0)
    with pytest.raises(InvalidArgument):
        buffers.find(buffer.token)
    for refused in (
        lambda: contents(buffer),
        lambda: filled(buffer, 1),
        lambda: buffer.claims.begin(reading(buffer)),
        lambda: buffer.claims.begin(writing(buffer)),
    ):
        with pytest.raises(BadState, match="closed"):
            refused()


def test_messages_do_not_tell_the_token() -> None:
    buffer = made()
    assert str(buffer.token) not in repr(buffer)
    with pytest.raises(GeneralFailure) as caught:
        buffer.claims.begin(reading(buffer))
    assert str(buffer.token) not in str(caught.value)


def test_closed_while_it_is_written() -> None:
    buffer = made()
    claim, memory = writing(buffer), buffer.memory
    buffer.claims.begin(claim)
    buffer.close()
    assert buffer.memory is memory
    buffer.claims.end(claim)
    assert buffer.memory.size == 0
    assert not buffer.is_initialized
    with pytest.raises(BadState):
        buffer.grow(1000)


def test_roles_end_with_their_model() -> None:
    model, other = Model(), Model()
    buffer = Buffers().allocate(Operand(FLOATS, (1,)), [(model, "input", 0), (model, "output", 1)])
    assert buffer.has_role(model, "input", 0)
    assert buffer.has_role(model, "output", 1)
    for owner, kind, index in ((model, "input", 1), (model, "output", 0), (other, "input", 0)):
        assert not buffer.has_role(owner, kind, index)
    number = id(model)
    del model, owner
    gc.collect()
    again = [Model() for _ in range(100)]
    assert not any(buffer.has_role(each, "input", 0) for each in again), number


def test_room() -> None:
    buffers = Buffers(limit_bytes=100)
    with pytest.raises(ResourceExhaustedPersistent, match="too large"):
        buffers.allocate(Operand(FLOATS, (26,)), [])
    first = buffers.allocate(Operand(FLOATS, (20,)), [])
    with pytest.raises(ResourceExhaustedTransient, match="do not fit"):
        buffers.allocate(Operand(FLOATS, (6,)), [])
    open_buffer = buffers.allocate(Operand(FLOATS, (0,)), [])
    with pytest.raises(ResourceExhaustedTransient):
        filled(open_buffer, 1, (6,))
    filled(open_buffer, 1, (5,))
    assert buffers.statistics().bytes == 100
    buffers.free(first.token)
    filled(open_buffer, 1, (25,))
    assert buffers.statistics().bytes == 100
    assert default_limit_bytes() > 0


@given(st.lists(st.integers(2**16, 2**32 - 1), min_size=3, max_size=6))
def test_sizes_beyond_all_memory(dimensions: list[int]) -> None:
    with pytest.raises(ResourceExhaustedPersistent):
        made(tuple(dimensions))


def test_types_without_a_size() -> None:
    with pytest.raises(GeneralFailure, match="size is not known"):
        made((2,), 0x10001)


def test_a_device_that_closes() -> None:
    buffers = Buffers()
    buffer = buffers.allocate(Operand(FLOATS, (2, 3)), [])
    buffers.close()
    assert buffer.is_closed
    with pytest.raises(DeviceUnavailable):
        buffers.allocate(Operand(FLOATS, (2, 3)), [])


class States(RuleBasedStateMachine):
    """The state machine of the HAL, beside what a buffer does."""

    @initialize(known=st.sampled_from([(2, 3), (0, 3), ()]))
    def allocate(self, known: Shape) -> None:
        self.buffers = Buffers(limit_bytes=1000)
        self.buffer = self.buffers.allocate(Operand(FLOATS, known), [])
        self.shape: Shape | None = None
        self.readers: list[Claim] = []
        self.reader = Claim()
        self.writer = Claim((), [(self.buffer, (2, 3))])
        self.writing = False

    @rule(rows=st.integers(0, 100), right=st.booleans())
    def copy_from(self, rows: int, right: bool) -> None:
        shape = (rows, 3)
        size = 12 * rows + (0 if right else 1)
        with Pool.allocate(max(size, 1)) as pool:
            try:
                self.buffer.copy_from(pool, shape)
            except NNError as error:
                if self.readers or self.writing:
                    assert isinstance(error, ResourceExhaustedTransient)
                else:
                    self.shape = None
                    assert isinstance(error, InvalidArgument | ResourceExhausted)
            else:
                assert right
                assert not self.readers
                assert not self.writing
                self.shape = shape

    @rule()
    def copy_to(self) -> None:
        try:
            contents(self.buffer)
        except GeneralFailure:
            assert self.shape is None
        except ResourceExhaustedTransient:
            assert self.writing
        except InvalidArgument:
            assert self.shape is None
        else:
            assert self.shape is not None
            assert not self.writing

    @rule(again=st.booleans())
    def begin_reading(self, again: bool) -> None:
        shape = self.buffer.dimensions
        if not again or self.reader.reads != ((self.buffer, shape),):
            self.reader = reading(self.buffer, shape)
        try:
            self.buffer.claims.begin(self.reader)
        except GeneralFailure:
            assert self.shape is None
        except ResourceExhaustedTransient:
            assert self.writing
        else:
            assert self.shape == shape
            assert not self.writing
            self.readers.append(self.reader)

    @precondition(lambda self: self.readers)
    @rule()
    def end_reading(self) -> None:
        self.buffer.claims.end(self.readers.pop())

    @rule()
    def begin_writing(self) -> None:
        try:
            self.buffer.claims.begin(self.writer)
        except ResourceExhaustedTransient:
            assert self.writing or self.readers
        else:
            assert not self.readers
            assert not self.writing
            self.writing = True

    @precondition(lambda self: self.writing)
    @rule(rows=st.integers(1, 4) | st.none())
    def end_writing(self, rows: int | None) -> None:
        shape = None if rows is None else (rows, 3)
        if shape is not None and not self.buffer.takes(shape):
            shape = None
        if shape is not None:
            self.buffer.grow(12 * shape[0])
        if shape == (2, 3):
            self.buffer.claims.end(self.writer)
        else:
            self.buffer.claims.end(self.writer, [(self.buffer, shape)])
        self.writing, self.shape = False, shape

    @precondition(lambda self: not self.writing)
    @rule(late=st.booleans())
    def void(self, late: bool) -> None:
        claims = self.buffer.claims
        claims.void([self.buffer], claims.tick if late else self.buffer.mark.tick - 1)
        if late:
            self.shape = None

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "buffer"):
            return
        assert self.buffer.is_initialized == (self.shape is not None)
        if self.shape is not None:
            assert self.buffer.dimensions == self.shape
        assert self.buffers.statistics().bytes == self.buffer.memory.size <= 1000


def test_states() -> None:
    run_state_machine_as_test(States)
