"""Sequences: their state, order, beginning and end, limits, and what becomes of failures."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import Any

import anyio
import anyio.abc
import anyio.lowlevel
import numpy as np
import pytest

import nnasync as nn
from nnasync import Priority
from nnasync.errors import MissedDeadline
from nnasync.serving.messages import InferRequest, InputTensor
from nnasync.serving.model_settings import ModelSettings, SequenceSettings
from nnasync.serving.problems import ServingError
from nnasync.serving.sequences import EXPORT_STATE, Sequences
from nnasync.serving.served_model import ServedModel
from tests.rigs import doubler
from tests.serving.small_models import accumulator, served

pytestmark = pytest.mark.anyio

NO_START = "inference request for sequence {} to model 'acc' must specify the START flag on the "
SECOND_NS = 1_000_000_000


class Rig:
    """A model with sequences, and a clock that tests turn."""

    def __init__(self, model: ServedModel, **limits: Any) -> None:
        self.model = model
        self.time_ns = 0
        self.sequences = Sequences(now_ns=lambda: self.time_ns, **limits)

    async def __call__(
        self, value: float, which: int | str = 7, flags: str = "", **arguments: Any
    ) -> list[float]:
        """Send a value; `flags` has "s" for the first, "e" for the last, "x" to export states."""
        request = InferRequest(
            "acc",
            arguments.pop("version", ""),
            sequence_id=which,
            sequence_start="s" in flags,
            sequence_end="e" in flags,
            parameters={EXPORT_STATE: True} if "x" in flags else {},
        )
        arguments = {"deadline": None, "priority": Priority.MEDIUM, "client": "me"} | arguments
        model = arguments.pop("model", self.model)
        arrays = [np.array([[each]], np.float32) for each in (value, *arguments.pop("states", ()))]
        found = await self.sequences.run(model, request, arrays, **arguments)
        return [float(each[0, 0]) for each in found]

    @property
    def users(self) -> int:
        return self.model._users


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with opened() as rig:
        yield rig


@contextlib.asynccontextmanager
async def opened(**limits: int) -> AsyncIterator[Rig]:
    settings = ModelSettings(sequences=SequenceSettings(idle_s=60))
    async with served(accumulator(), settings=settings) as server:
        rig = Rig(server.models.find("acc"), **limits)
        yield rig
        rig.sequences.close()
        assert rig.users == len(rig.sequences) == 0


def no_start(which: int | str) -> pytest.RaisesExc[ServingError]:
    return pytest.RaisesExc(
        ServingError,
        match=NO_START.format(which),
        check=lambda error: error.code == HTTPStatus.BAD_REQUEST,
    )


async def test_requests_of_a_sequence_share_a_state(rig: Rig) -> None:
    assert await rig(1, flags="s") == [1]
    assert await rig(2) == [3]
    assert await rig(3, flags="e") == [6]
    assert len(rig.sequences) == rig.users == 0
    with no_start(7):
        await rig(4)


async def test_sequences_do_not_share_one_with_each_other(rig: Rig) -> None:
    assert await rig(1, 7, "s") == [1]
    assert await rig(10, "seven", "s") == [10]
    assert await rig(100, 7, "s", client="you") == [100]
    assert await rig(1, 7) == [2]
    assert await rig(1, "seven") == [11]
    assert await rig(1, 7, client="you") == [101]
    with no_start("7"):
        await rig(1, "7")


async def test_a_sequence_of_one_request(rig: Rig) -> None:
    assert await rig(5, flags="se") == [5]
    assert len(rig.sequences) == 0


async def test_a_second_beginning_begins_again(rig: Rig) -> None:
    assert await rig(1, flags="s") == [1]
    assert await rig(5, flags="s") == [5]
    assert await rig(1) == [6]
    assert len(rig.sequences) == rig.users == 1


async def test_requests_run_in_the_order_in_which_they_come(rig: Rig) -> None:
    """The burst is opened by the first, and the others come meanwhile."""
    came: list[int] = []
    sums: dict[int, list[float]] = {}

    async def send(value: int) -> None:
        flags = "" if came else "s"
        came.append(value)
        sums[value] = await rig(value, flags=flags)

    async with anyio.create_task_group() as tasks:
        for value in range(1, 9):
            tasks.start_soon(send, value)
    expected = itertools.accumulate(came)
    assert [sums[value] for value in came] == [[total] for total in expected]


async def test_what_is_idle_ends_when_it_is_due(rig: Rig) -> None:
    await rig(1, 1, "s")
    rig.time_ns = 20 * SECOND_NS
    await rig(1, 2, "s")
    assert rig.sequences.end_idle() == 60 * SECOND_NS
    rig.time_ns = 60 * SECOND_NS
    assert rig.sequences.end_idle() == 80 * SECOND_NS
    with no_start(1):
        await rig(1, 1)
    assert await rig(1, 2) == [2]
    rig.time_ns = 119 * SECOND_NS
    assert rig.sequences.end_idle() == 120 * SECOND_NS
    rig.time_ns = 120 * SECOND_NS
    assert rig.sequences.end_idle() is None
    assert len(rig.sequences) == rig.users == 0


async def test_a_task_ends_what_is_idle() -> None:
    settings = ModelSettings(sequences=SequenceSettings(idle_s=0.01))
    async with served(accumulator(), settings=settings) as server:
        model = server.models.find("acc")
        sequences = Sequences()
        request = InferRequest("acc", sequence_id=1, sequence_start=True)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(sequences.end_idle_forever)
            with anyio.fail_after(10):
                await sequences.run(
                    model,
                    request,
                    [np.zeros((1, 1), np.float32)],
                    deadline=None,
                    priority=Priority.MEDIUM,
                    client="me",
                )
                while len(sequences):
                    await anyio.lowlevel.checkpoint()
            tasks.cancel_scope.cancel()
        assert model._users == 0


async def test_limits() -> None:
    async with opened(per_client=2, most=3) as rig:
        await rig(1, 1, "s")
        await rig(1, 2, "s")
        with pytest.raises(nn.ResourceExhausted, match="2 open sequences of this client"):
            await rig(1, 3, "s")
        await rig(1, 1, "s")  # again, in the place of its own
        await rig(1, 1, "s", client="you")
        with pytest.raises(nn.ResourceExhausted, match="3 in all"):
            await rig(1, 2, "s", client="you")
        await rig(1, 2, "e")
        await rig(1, 2, "s", client="you")


async def test_a_failure_leaves_the_state_and_the_request_can_be_sent_again(rig: Rig) -> None:
    assert await rig(1, flags="s") == [1]
    with pytest.raises(MissedDeadline):
        await rig(2, deadline=nn.within(ms=-1))
    assert await rig(2) == [3]
    with pytest.raises(MissedDeadline):
        await rig(3, flags="e", deadline=nn.within(ms=-1))
    assert await rig(3, flags="e") == [6]


async def test_a_sequence_whose_first_request_fails_has_not_begun(rig: Rig) -> None:
    with pytest.raises(MissedDeadline):
        await rig(1, flags="s", deadline=nn.within(ms=-1))
    assert len(rig.sequences) == rig.users == 0
    with no_start(7):
        await rig(1)


async def test_what_was_sent_behind_a_first_request_that_fails_is_not_run(rig: Rig) -> None:
    async def send_first() -> None:
        with pytest.raises(MissedDeadline):
            await rig(1, flags="s", deadline=nn.within(ms=-1))

    async def send_behind(tasks: anyio.abc.TaskGroup) -> bool:
        """Send another one while the first is under way, if it is met there."""
        tasks.start_soon(send_first)
        for _ in range(20):
            await anyio.lowlevel.checkpoint()
            if len(rig.sequences):
                with no_start(7):
                    await rig(2)
                return True
        return False

    for _ in range(200):
        async with anyio.create_task_group() as tasks:
            is_behind = await send_behind(tasks)
        if is_behind:
            break
    assert is_behind
    assert len(rig.sequences) == rig.users == 0


async def test_a_deadline_holds_behind_a_first_request(rig: Rig) -> None:
    await rig(1, flags="s")
    (sequence,) = rig.sequences._open.values()

    async def be_late() -> None:
        with pytest.raises(MissedDeadline):
            await rig(2, deadline=nn.within(ms=1))
        tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks, sequence.line:
        tasks.start_soon(be_late)
        await anyio.sleep_forever()
    assert await rig(2) == [3]


async def test_a_cancelled_request_leaves_the_state(rig: Rig) -> None:
    assert await rig(1, flags="s") == [1]
    with anyio.CancelScope() as scope:
        scope.cancel()
        await rig(2)
    assert scope.cancelled_caught
    assert await rig(2) == [3]


async def test_states_go_elsewhere(rig: Rig) -> None:
    await rig(1, flags="s")
    assert await rig(2, flags="x") == [3, 3]
    assert await rig(10, 8, "s", states=[3]) == [13]
    assert await rig(1, 8, "ex") == [14, 14]
    with pytest.raises(ServingError, match="only the first request"):
        await rig(1, 7, states=[3])
    assert await rig(1) == [4]


async def test_a_sequence_stays_with_the_version_that_it_began_with(rig: Rig) -> None:
    newer = ServedModel("acc", rig.model.net, ModelSettings(version="2"))
    await rig(1, flags="s")
    assert await rig(1, model=newer) == [2]
    assert await rig(1, model=newer, version="1") == [3]
    with no_start(7):
        await rig(1, model=newer, version="2")
    assert newer._users == 0
    assert await rig(1, flags="s", model=newer) == [1]
    assert (rig.users, newer._users) == (0, 1)
    rig.sequences.close_model("acc")
    assert newer._users == 0


async def test_a_model_that_is_closed_ends_its_sequences_behind_their_requests(rig: Rig) -> None:
    await rig(1, flags="s")
    async with anyio.create_task_group() as tasks:
        answers: list[list[float]] = []
        is_sent = anyio.Event()

        async def send() -> None:
            is_sent.set()
            answers.append(await rig(1))

        tasks.start_soon(send)
        await is_sent.wait()
        rig.sequences.close_model("acc")
    assert answers == [[2]]
    assert rig.users == 0
    with no_start(7):
        await rig(1)


async def test_a_server_answers_and_accounts_for_the_version_that_a_sequence_has() -> None:
    async with served(accumulator()) as server:
        model = server.models.find("acc")
        (given,) = model.signature.inputs

        def told(**flags: Any) -> InferRequest:
            tensor = InputTensor(given.name, "FP32", (1, 1), values=[1.0])
            return InferRequest("acc", inputs=(tensor,), sequence_id=7, **flags)

        await server.infer(told(sequence_start=True))
        newer = await server.runtime.compile(doubler())
        await server.add(newer, ModelSettings(name="acc", version="2"))
        answer = await server.infer(told(sequence_end=True))
        assert answer.version == "1"
        assert answer.outputs[0].array is not None
        assert answer.outputs[0].array.tolist() == [[2.0]]
