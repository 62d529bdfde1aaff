"""Questions to a prompt device: answered at once, early, late, twice, or by the end of all."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from nnasync import burst
from nnasync.burst import BurstController, BurstResult, LocalChannel, Outcome
from nnasync.errors import (
    BadState,
    DeviceDied,
    DeviceUnavailable,
    GeneralFailure,
    InvalidArgument,
    NNError,
    ResourceExhaustedTransient,
)
from nnasync.hal import ErrorStatus, ExecutionConfig, ExecutionResult
from tests.burst.halves import Block, Rig, encode, request

Exchange = Callable[[int], BurstResult | None]
CLOSED = DeviceUnavailable("closed by the test")


def late(_serial: int) -> None:
    """An exchange that finds no answer."""


class Prompt:
    """A context whose exchanges do what a test says, and a channel for late answers."""

    def __init__(self, exchange: Exchange = late) -> None:
        self.requests, self.results = LocalChannel(), LocalChannel()
        self.controller = BurstController(self.requests, self.results)
        self.controller.attach(self)
        self.does = exchange
        self.asked_with: list[tuple[int, ExecutionConfig]] = []
        self.told: list[bytes] = []
        self.requests.listen(self.told.append)
        self.closed = 0
        self.arguments = self.controller.encode(request(Block()))

    def exchange(
        self, serial: int, arguments: bytes, config: ExecutionConfig
    ) -> BurstResult | None:
        assert arguments == self.arguments
        self.asked_with.append((serial, config))
        return self.does(serial)

    def free_memory(self, slot: int) -> None:
        pass

    def close(self) -> None:
        self.closed += 1

    def ask(self) -> Outcome | int:
        return self.controller.ask(self.arguments, ExecutionConfig(measure=True, deadline_ns=7))

    def asked(self) -> int:
        """The serial number of what is not answered at once."""
        serial = self.ask()
        assert isinstance(serial, int)
        return serial

    def answer(self, serial: int, status: int = 0, message: str = "") -> None:
        self.results.send(encode(BurstResult(serial, status, message)))

    def follow(self, serial: int) -> list[Outcome]:
        found: list[Outcome] = []
        self.controller.follow(serial, found.append)
        return found

    def check_nothing_is_kept(self) -> None:
        assert self.controller._waiting == {}
        assert self.controller._early == {}


def test_an_answer_at_once() -> None:
    prompt = Prompt(BurstResult)
    assert prompt.controller.is_prompt
    assert prompt.ask() == ExecutionResult()
    assert prompt.asked_with == [(1, ExecutionConfig(measure=True, deadline_ns=7))]
    assert prompt.told == []
    prompt.check_nothing_is_kept()


def test_an_error_at_once_is_returned() -> None:
    prompt = Prompt(lambda serial: BurstResult(serial, ErrorStatus.INVALID_ARGUMENT, "no"))
    outcome = prompt.ask()
    assert isinstance(outcome, InvalidArgument)
    assert str(outcome) == "no"
    prompt.check_nothing_is_kept()


def test_a_device_that_is_not_prompt_answers_through_the_channel(rig: Rig) -> None:
    controller, found = rig.controller, list[Outcome]()
    assert not controller.is_prompt
    serial = controller.ask(controller.encode(request(Block())))
    assert isinstance(serial, int)
    controller.follow(serial, found.append)
    rig.device.begun[0].end()
    assert found == [ExecutionResult()]


def test_an_answer_after_it_is_followed() -> None:
    prompt = Prompt()
    serial = prompt.asked()
    found = prompt.follow(serial)
    assert found == []
    prompt.answer(serial)
    assert found == [ExecutionResult()]
    prompt.answer(serial)
    assert len(found) == 1
    prompt.check_nothing_is_kept()


def test_an_answer_before_it_is_followed() -> None:
    prompt = Prompt()
    serial = prompt.asked()
    prompt.answer(serial, ErrorStatus.GENERAL_FAILURE, "broken")
    prompt.answer(serial)
    (outcome,) = prompt.follow(serial)
    assert isinstance(outcome, GeneralFailure)
    prompt.check_nothing_is_kept()


def test_an_answer_on_another_thread_within_the_exchange() -> None:
    def exchange(serial: int) -> None:
        prompt.answer(serial)

    prompt = Prompt(exchange)
    assert prompt.follow(prompt.asked()) == [ExecutionResult()]
    prompt.check_nothing_is_kept()


def test_answers_out_of_order_and_among_what_was_sent() -> None:
    prompt = Prompt()
    first, second = prompt.asked(), prompt.asked()
    sent: list[Outcome] = []
    third = prompt.controller.send(prompt.arguments, sent.append)
    prompt.answer(third)
    prompt.answer(second)
    assert len(sent) == 1
    assert prompt.follow(first) == []
    assert len(prompt.follow(second)) == 1


def test_what_nobody_asked_is_not_answered() -> None:
    prompt = Prompt()
    prompt.answer(1)
    assert prompt.follow(prompt.asked()) == []


@pytest.mark.parametrize("error", [ResourceExhaustedTransient("full"), KeyError("x")])
def test_what_cannot_be_sent_raises_and_is_forgotten(error: Exception) -> None:
    def exchange(serial: int) -> None:
        raise error

    prompt = Prompt(exchange)
    with pytest.raises(type(error)):
        prompt.ask()
    prompt.check_nothing_is_kept()
    prompt.answer(1)
    prompt.check_nothing_is_kept()


def test_what_was_refused_although_the_end_of_the_device_answered_it() -> None:
    def exchange(serial: int) -> None:
        prompt.answer(serial, ErrorStatus.GENERAL_FAILURE, "dead")
        raise DeviceDied("dead")

    prompt = Prompt(exchange)
    with pytest.raises(DeviceDied):
        prompt.ask()
    prompt.check_nothing_is_kept()


def test_an_answer_that_was_found_although_the_end_of_the_device_answered_it() -> None:
    def exchange(serial: int) -> BurstResult:
        prompt.answer(serial, ErrorStatus.GENERAL_FAILURE, "dead")
        return BurstResult(serial)

    prompt = Prompt(exchange)
    assert prompt.ask() == ExecutionResult()
    prompt.check_nothing_is_kept()


def test_an_answer_that_was_found_while_the_burst_was_closed() -> None:
    def exchange(serial: int) -> BurstResult:
        prompt.controller.close(CLOSED)
        return BurstResult(serial)

    prompt = Prompt(exchange)
    assert prompt.ask() == ExecutionResult()
    prompt.check_nothing_is_kept()


def test_closing_answers_what_is_followed_and_what_will_be() -> None:
    prompt = Prompt()
    first, second = prompt.asked(), prompt.asked()
    found = prompt.follow(first)
    prompt.controller.close(CLOSED)
    assert found == [CLOSED]
    assert prompt.follow(second) == [CLOSED]
    prompt.answer(first)
    prompt.answer(second)
    assert len(found) == 1
    assert prompt.closed == 1
    prompt.check_nothing_is_kept()


def test_closing_while_it_is_asked() -> None:
    prompt = Prompt(lambda serial: prompt.controller.close(CLOSED))
    assert prompt.follow(prompt.asked()) == [CLOSED]
    prompt.check_nothing_is_kept()


def test_nonsense_answers_what_is_asked() -> None:
    prompt = Prompt()
    followed, asked = prompt.asked(), prompt.asked()
    found = prompt.follow(followed)
    prompt.results.send(b"\xc1")
    assert isinstance(found[0], GeneralFailure)
    assert isinstance(prompt.follow(asked)[0], GeneralFailure)
    assert prompt.closed == 1


def test_cancelling_tells_the_device_and_leaves_the_answer_to_it() -> None:
    prompt = Prompt()
    serial = prompt.asked()
    found = prompt.follow(serial)
    prompt.controller.cancel(serial)
    (packet,) = prompt.told
    assert burst.packets.decode_request(packet) == burst.BurstCancel(serial)
    assert found == []
    prompt.answer(serial, ErrorStatus.GENERAL_FAILURE, "cancelled")
    assert len(found) == 1


@pytest.mark.parametrize(
    "error", [DeviceDied("gone"), ResourceExhaustedTransient("full"), BadState("closed")]
)
def test_cancelling_does_not_raise_what_keeps_the_device_from_hearing(error: NNError) -> None:
    def receive(_packet: bytes) -> None:
        raise error

    prompt = Prompt()
    prompt.requests.listen(receive)
    prompt.controller.cancel(prompt.asked())
