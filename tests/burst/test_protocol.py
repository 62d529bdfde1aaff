"""The burst protocol: requests and results, slots, order, and the end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnasync import burst
from nnasync.burst import Outcome
from nnasync.errors import (
    BadState,
    DeviceUnavailable,
    GeneralFailure,
    InvalidArgument,
    MissedDeadlinePersistent,
    NNError,
    OutputInsufficientSize,
    ResourceExhaustedTransient,
)
from nnasync.hal import (
    ExecutionConfig,
    ExecutionResult,
    Memory,
    OutputShape,
    Request,
    Timing,
)
from nnasync.scheduler import NEVER_NS
from tests.burst.halves import (
    Begun,
    Block,
    Rig,
    alone,
    encode,
    request,
)

# -- requests and results


@given(
    st.booleans(),
    st.integers(-(2**63), NEVER_NS),
    st.lists(st.integers(0, 31), min_size=1),
    st.data(),
)
def test_request_arrives_as_it_was_sent(
    measure: bool, deadline_ns: int, offsets: list[int], data: st.DataObject
) -> None:
    rig = Rig()
    blocks = [Block() for _ in range(3)]
    for offset in offsets:
        pools = data.draw(st.lists(st.sampled_from(blocks), min_size=1, max_size=3))
        wanted = request(*pools, offset=offset)
        config = ExecutionConfig(measure, deadline_ns)
        rig.send(wanted, config)
        begun = rig.device.begun[-1]
        assert begun.request.inputs == wanted.inputs
        assert begun.request.outputs == wanted.outputs
        assert [id(pool) for pool in begun.request.pools] == [id(pool) for pool in pools]
        assert begun.config == config
        begun.end()


def test_result_arrives_as_it_was_given(rig: Rig) -> None:
    result = ExecutionResult((OutputShape((1, 3)), OutputShape((), False)), Timing(7, 9))
    serial = rig.send(request(Block()))
    rig.device.begun[0].end(result)
    assert rig.outcome(serial) == result


def test_plain_result_has_no_timing(rig: Rig) -> None:
    serial = rig.send(request(Block()))
    rig.device.begun[0].end()
    assert rig.outcome(serial) == ExecutionResult()


@pytest.mark.parametrize(
    "error",
    [
        MissedDeadlinePersistent("too late"),
        ResourceExhaustedTransient("full"),
        InvalidArgument("input 3"),
        DeviceUnavailable("closed"),
        GeneralFailure("broken"),
    ],
)
def test_error_arrives_with_class_and_message(rig: Rig, error: NNError) -> None:
    serial = rig.send(request(Block()))
    rig.device.begun[0].end(error)
    found = rig.error(serial)
    assert type(found) is type(error)
    assert str(found) == str(error)


def test_insufficient_size_arrives_with_the_shapes_that_are_needed(rig: Rig) -> None:
    shapes = (OutputShape((1, 4), False), OutputShape((2,)))
    rig.device.refusal = OutputInsufficientSize("output 0 is too small", shapes)
    serial = rig.send(request(Block()))
    found = rig.error(serial)
    assert isinstance(found, OutputInsufficientSize)
    assert found.output_shapes == shapes


def test_device_may_answer_before_send_returns(rig: Rig) -> None:
    rig.device.at_once = ExecutionResult()
    first, second = rig.send(request(Block())), rig.send(request(Block()))
    assert rig.outcome(first) == rig.outcome(second) == ExecutionResult()
    assert rig.device.begun[1].may_run


def test_results_out_of_order(rig: Rig) -> None:
    serials = [rig.send(request(Block())) for _ in range(3)]
    for index in (2, 0, 1):
        rig.device.begun[index].reply(GeneralFailure(str(index)))
    assert [str(rig.error(serial)) for serial in serials] == ["0", "1", "2"]


def test_unknown_and_repeated_serials_are_ignored(rig: Rig) -> None:
    serial = rig.send(request(Block()))
    rig.results.send(encode(burst.BurstResult(serial + 1)))
    rig.results.send(encode(burst.BurstResult(-1, 2, "nothing asked")))
    assert rig.outcomes[serial] == []
    rig.device.begun[0].end()
    rig.results.send(encode(burst.BurstResult(serial, 2, "again")))
    assert rig.outcome(serial) == ExecutionResult()


def test_unknown_status_is_a_failure(rig: Rig) -> None:
    serial = rig.send(request(Block()))
    rig.results.send(encode(burst.BurstResult(serial, 999, "what?")))
    assert isinstance(rig.error(serial), GeneralFailure)
    assert "999" in str(rig.error(serial))


# -- slots


def test_memory_is_asked_for_once(rig: Rig) -> None:
    first, second = Block(), Block()
    for _ in range(3):
        rig.send(request(first, second))
        rig.send(request(first, second, offset=8))
        rig.send(request(second))
    assert rig.asked.slots == [[0, 1]]


def test_same_bytes_are_bound_once(rig: Rig) -> None:
    block = Block()
    for _ in range(3):
        rig.send(request(block))
    assert len({id(begun.request) for begun in rig.device.begun}) == 1


def test_only_so_many_requests_are_remembered(rig: Rig) -> None:
    block = Block()
    rig.device.at_once = ExecutionResult()
    for offset in range(burst.server.MAX_REMEMBERED_REQUESTS + 10):
        rig.send(request(block, offset=offset))
    assert len(rig.server._known) == burst.server.MAX_REMEMBERED_REQUESTS
    assert rig.asked.slots == [[0]]


def test_freed_slot_is_the_next_to_be_used_and_asked_for_again(rig: Rig) -> None:
    blocks = [Block() for _ in range(4)]
    rig.send(request(*blocks))
    rig.controller.free(blocks[1])
    rig.controller.free(blocks[2])
    new = [Block(), Block(), Block()]
    rig.send(request(*new))
    assert rig.asked.slots == [[0, 1, 2, 3], [1, 2, 4]]
    assert list(rig.device.begun[-1].request.pools) == new
    begun = rig.device.begun[-1].request
    assert rig.controller.encode(request(*new)) == rig.controller.encode(begun)
    arguments = msgspec.msgpack.decode(rig.controller.encode(request(*new)))
    assert arguments[2] == [2, 1, 4]


def test_freed_memory_is_forgotten_by_the_server(rig: Rig) -> None:
    first, second = Block(), Block()
    rig.send(request(first))
    rig.send(request(second))
    rig.controller.free(first)
    assert list(rig.server._memories) == [1]
    assert len(rig.server._known) == 1
    rig.controller.free(first)
    rig.controller.free(Block())
    rig.server.free_memory(77)
    assert list(rig.server._memories) == [1]


def test_a_burst_that_is_closed_while_it_frees_memory() -> None:
    rig = Rig()

    class Closing(int):
        """A slot that closes the burst when it is looked for, as another thread may."""

        __hash__ = int.__hash__

        def __eq__(self, other: object) -> bool:
            rig.server.close()
            return int(self) == other

    rig.device.at_once = ExecutionResult()
    pools = Block(), Block()
    for offset in (0, 8, 16):
        rig.send(request(*pools, offset=offset))
    rig.server.free_memory(Closing(77))
    assert isinstance(rig.error(rig.send(request(Block()))), DeviceUnavailable)


@given(st.lists(st.tuples(st.sampled_from(["use", "free"]), st.integers(0, 5)), max_size=60))
def test_slots_are_distinct_dense_and_found(steps: list[tuple[str, int]]) -> None:
    rig = Rig()
    rig.device.at_once = ExecutionResult()
    blocks = [Block() for _ in range(6)]
    used: set[int] = set()
    most = 0
    for what, number in steps:
        if what == "use":
            rig.send(request(blocks[number]))
            assert rig.device.begun[-1].request.pools[0] is blocks[number]
            used.add(number)
        else:
            rig.controller.free(blocks[number])
            used.discard(number)
        most = max(most, len(used))
        slots = sorted(rig.controller._slots.values())
        assert len(set(slots)) == len(used)
        assert all(slot < most for slot in slots)


def test_unknown_slot_is_an_invalid_argument(rig: Rig) -> None:
    found: list[Outcome] = []
    rig.controller.send(encode([(), (), (7,)]), found.append)
    assert isinstance(found[0], InvalidArgument)
    assert "slot 7" in str(found[0])
    assert rig.device.begun == []


@pytest.mark.parametrize("token", [1, 2**63 - 1])
def test_tokens_are_carried_beside_slots(rig: Rig, token: int) -> None:
    rig.device.at_once = ExecutionResult()
    block = Block()
    for pools in ((token, block), (block, token), (token, token)):
        rig.send(request(*pools))
        assert rig.device.begun[-1].request.pools == pools
    assert rig.controller._slots == {id(block): 0}


@pytest.mark.parametrize("token", [0, -1, 2**63])
def test_what_is_no_token_is_not_carried(rig: Rig, token: int) -> None:
    with pytest.raises(InvalidArgument, match="no memory token"):
        rig.send(request(token))
    assert rig.device.begun == []


def test_client_that_gives_too_few_memories_gets_an_error(rig: Rig) -> None:
    rig.asked.get_memories = lambda slots: ()  # type: ignore[method-assign]
    assert isinstance(rig.error(rig.send(request(Block()))), NNError)
    assert rig.device.begun == []


# -- one after the other


def test_next_begins_only_after_release(rig: Rig) -> None:
    for _ in range(3):
        rig.send(request(Block()))
    first, second, third = rig.device.begun
    assert (first.may_run, second.may_run, third.may_run) == (True, False, False)
    first.reply(ExecutionResult())
    assert not second.may_run
    first.release()
    assert (second.may_run, third.may_run) == (True, False)
    second.end()
    assert third.may_run


def test_next_waits_for_all_before_it_when_one_between_is_over(rig: Rig) -> None:
    """A call that misses its deadline in the queue must not let the one behind it overtake."""
    for _ in range(4):
        rig.send(request(Block()))
    first, second, third, fourth = rig.device.begun
    second.end(MissedDeadlinePersistent("in the queue"))
    third.end(MissedDeadlinePersistent("in the queue"))
    assert not fourth.may_run
    rig.send(request(Block()))
    assert not rig.device.begun[-1].may_run
    first.end()
    assert [begun.may_run for begun in rig.device.begun[3:]] == [True, False]
    fourth.end()
    assert rig.device.begun[-1].may_run


def test_many_that_are_over_behind_one_that_hangs(rig: Rig) -> None:
    for _ in range(300):
        rig.send(request(Block()))
    first, *between, last = rig.device.begun
    for begun in between:
        begun.end(MissedDeadlinePersistent("in the queue"))
    assert not last.may_run
    first.end()
    assert last.may_run


def test_only_so_many_are_in_flight(rig: Rig) -> None:
    block = Block()
    for _ in range(burst.server.MAX_IN_FLIGHT):
        rig.send(request(block))
    refused = rig.send(request(block))
    assert isinstance(rig.error(refused), ResourceExhaustedTransient)
    assert len(rig.device.begun) == burst.server.MAX_IN_FLIGHT
    rig.device.begun[0].end()
    assert not rig.outcomes[rig.send(request(block))]


def test_long_requests_are_not_remembered(rig: Rig) -> None:
    pools = [Block() for _ in range(burst.server.MAX_REMEMBERED_BYTES)]
    for number in (1, len(pools)):
        rig.send(request(*pools[:number]))
    assert len(rig.server._known) == 1


def test_release_before_begin_returns_lets_the_next_begin(rig: Rig) -> None:
    """Another thread may be that fast."""
    begin = rig.device.begin

    def begin_and_end(
        request: Request, config: ExecutionConfig, **options: Any
    ) -> Callable[[], None] | None:
        cancel = begin(request, config, **options)
        rig.device.begun[-1].end()
        return cancel

    rig.server._begin = begin_and_end
    first = rig.send(request(Block()))
    second = rig.send(request(Block()))
    assert rig.outcome(first) == rig.outcome(second) == ExecutionResult()
    assert rig.device.begun[1].may_run
    assert rig.server._cancels == {}


@given(st.lists(st.integers(0, 2), max_size=40), st.randoms(use_true_random=False))
def test_executions_never_overlap(steps: list[int], random: Any) -> None:
    """Send, end one that may run, or answer one that waits: one at most runs, in order."""
    rig = Rig()
    unreleased: list[Begun] = []
    started: list[int] = []
    for step in steps:
        if step == 0 or not unreleased:
            rig.send(request(Block()))
            unreleased.append(rig.device.begun[-1])
        elif step == 1:
            unreleased.pop(0).end()
        else:
            unreleased.pop(random.randrange(len(unreleased))).end(GeneralFailure("over"))
        able = [rig.device.begun.index(begun) for begun in unreleased if begun.may_run]
        assert able == [rig.device.begun.index(unreleased[0])] if unreleased else able == []
        started += able
    assert started == sorted(started)
    assert all(len(found) <= 1 for found in rig.outcomes.values())


# -- cancelling and closing


def test_cancel_reaches_the_execution_once(rig: Rig) -> None:
    first, second = rig.send(request(Block())), rig.send(request(Block()))
    rig.controller.cancel(second)
    rig.controller.cancel(second)
    assert [begun.cancelled for begun in rig.device.begun] == [0, 1]
    rig.device.begun[0].end()
    rig.controller.cancel(first)
    rig.controller.cancel(999)
    assert rig.device.begun[0].cancelled == 0
    assert rig.server._cancels == {}


def test_closing_in_flight_answers_once(rig: Rig) -> None:
    serials = [rig.send(request(Block())) for _ in range(3)]
    rig.controller.close(DeviceUnavailable("the burst is closed"))
    for serial in serials:
        assert isinstance(rig.error(serial), DeviceUnavailable)
    assert [begun.cancelled for begun in rig.device.begun] == [1, 1, 1]
    for begun in rig.device.begun:
        begun.end(GeneralFailure("cancelled"))
    assert all(len(found) == 1 for found in rig.outcomes.values())
    with pytest.raises(BadState):
        rig.send(request(Block()))


def test_cancel_after_the_end_is_harmless(rig: Rig) -> None:
    serial = rig.send(request(Block()))
    rig.controller.close(DeviceUnavailable("closed"))
    rig.controller.cancel(serial)
    assert rig.device.begun[0].cancelled == 1


def test_failed_send_leaves_nothing_waiting(rig: Rig) -> None:
    rig.requests.close()
    with pytest.raises(BadState):
        rig.send(request(Block()))
    assert rig.controller._waiting == {}


def test_closed_server_answers_and_keeps_nothing(rig: Rig) -> None:
    serial = rig.send(request(Block()))
    rig.server.close()
    assert rig.device.begun[0].cancelled == 1
    rig.device.begun[0].end(GeneralFailure("cancelled"))
    assert isinstance(rig.error(serial), GeneralFailure)
    late = rig.send(request(Block()))
    assert isinstance(rig.error(late), DeviceUnavailable)
    assert rig.server._memories == {}
    assert not rig.server._known


def test_what_is_sent_while_the_burst_closes_is_refused_or_answered(rig: Rig) -> None:
    """Another thread may send when all that waited are answered and the channel is still open."""
    refusals = list[BaseException]()

    class Context:
        def free_memory(self, slot: int) -> None:
            """There is none."""

        def close(self) -> None:
            with pytest.raises(BadState, match="closed") as sent:
                rig.send(request(Block()))
            with pytest.raises(BadState, match="closed") as asked:
                rig.controller.ask(b"")
            refusals.extend((sent.value, asked.value))

    rig.controller.attach(Context())
    rig.controller.close(DeviceUnavailable("the burst is closed"))
    assert len(refusals) == 2
    assert rig.device.begun == []
    assert not rig.controller._waiting
    assert not rig.controller._early
    with pytest.raises(DeviceUnavailable, match="closed"):
        rig.controller.get_memories([0])


@pytest.mark.parametrize("frees", [False, True], ids=["closes", "frees"])
def test_a_server_that_is_closed_while_it_asks_for_memory(rig: Rig, *, frees: bool) -> None:
    known, get_memories = Block(), rig.controller.get_memories
    first = rig.send(request(known))
    rig.device.begun[0].end()

    def ends(slots: Sequence[int]) -> tuple[Memory, ...]:
        found = get_memories(slots)
        if frees:
            rig.server.free_memory(0)
        else:
            rig.server.close()
        return found

    rig.asked.get_memories = ends  # type: ignore[method-assign]  # It is the client's.
    second = rig.send(request(known, Block()))
    assert isinstance(rig.outcome(first), ExecutionResult)
    assert isinstance(rig.error(second), InvalidArgument if frees else DeviceUnavailable)


def test_what_begins_while_the_server_closes_is_cancelled(rig: Rig) -> None:
    begin = rig.device.begin

    def closing(*what: Any, **how: Any) -> Callable[[], None] | None:
        rig.server.close()
        return begin(*what, **how)

    rig.server._begin = closing
    serial = rig.send(request(Block()))
    assert rig.device.begun[0].cancelled == 1
    rig.device.begun[0].end(GeneralFailure("cancelled"))
    assert isinstance(rig.error(serial), GeneralFailure)


@pytest.mark.parametrize("error", [BadState("gone"), ResourceExhaustedTransient("full")])
def test_client_that_takes_no_answers_loses_its_burst(error: NNError) -> None:
    server, results, device = alone()
    device.at_once = None
    server._memories[0] = Block()
    message = encode(burst.BurstRequest(1, encode(burst.BurstArguments((), (), (0,)))))
    server.receive(message)
    server.receive(message)
    results.error = error
    device.begun[0].end()
    assert device.begun[1].cancelled == 1
    assert server._memories == {}
    server.receive(b"nonsense")


def test_results_and_close_at_once() -> None:
    for _ in range(30):
        rig = Rig()
        serials = [rig.send(request(Block())) for _ in range(20)]
        start = threading.Barrier(2)

        def answer(rig: Rig = rig, start: threading.Barrier = start) -> None:
            start.wait()
            for begun in rig.device.begun:
                begun.end()

        thread = threading.Thread(target=answer)
        thread.start()
        start.wait()
        rig.controller.close(DeviceUnavailable("closed"))
        thread.join(60)
        for serial in serials:
            rig.outcome(serial)
