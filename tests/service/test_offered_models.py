"""Models that are sent to a service, and what it forgets of them."""

from __future__ import annotations

import functools
from typing import Any

import anyio
import numpy as np
import pytest

from nnasync import errors
from nnasync._core.drivers.service.link import Link
from nnasync._core.service import Limits
from nnasync._core.wire.messages import OfferModel
from tests import rigs
from tests.service.rig import Slot, served

pytestmark = pytest.mark.anyio


def offers_of(link: Link, monkeypatch: pytest.MonkeyPatch) -> list[OfferModel]:
    """The models that are sent from now on."""
    sent: list[OfferModel] = []
    begin = link.begin

    def noted(make: Any, fds: Any = ()) -> Any:
        def made(number: int) -> Any:
            message = make(number)
            if isinstance(message, OfferModel):
                sent.append(message)
            return message

        return begin(made, fds)

    monkeypatch.setattr(link, "begin", noted)
    return sent


async def test_a_model_that_several_ask_for_at_once_is_sent_once(monkeypatch: Any) -> None:
    async with served(limits=Limits(models=1)) as it:
        sent = offers_of(it.device.link, monkeypatch)
        for _ in range(3):  # A model that is gone leaves its place to the next.
            model = rigs.doubler()
            async with anyio.create_task_group() as tasks:
                for _ in range(4):
                    tasks.start_soon(it.device.get_supported_operations, model)
            del model
        assert len(sent) == 3


async def test_models_that_nobody_asks_about_make_room_for_others(monkeypatch: Any) -> None:
    """Programs keep models, as part of their networks; the service needs them to prepare alone."""
    models = [rigs.doubler() for _ in range(5)]
    async with served(limits=Limits(models=2)) as it:
        sent = offers_of(it.device.link, monkeypatch)
        prepared = [await it.device.prepare_model(model) for model in models]
        before, slot = len(sent), Slot()
        assert await it.device.get_supported_operations(models[0]) == (True,)
        assert len(sent) > before
        for each in prepared:
            slot.y[...] = 0
            await each.execute_synchronously(slot.request)
            assert np.array_equal(slot.y, 2 * slot.x)


async def test_a_model_that_is_asked_about_makes_no_room(monkeypatch: Any) -> None:
    async with served(limits=Limits(models=1)) as it:
        models = it.device._supervisor.session.models
        asked, other = rigs.doubler(), rigs.doubler()
        async with models.named(asked):
            with pytest.raises(errors.ResourceExhaustedTransient, match="1 models"):
                await it.device.get_supported_operations(other)
        assert await it.device.get_supported_operations(other) == (True,)


async def test_room_that_is_made_is_for_all_who_found_none(monkeypatch: Any) -> None:
    idle, new = [rigs.doubler() for _ in range(2)], [rigs.doubler() for _ in range(2)]
    async with served(limits=Limits(models=2)) as it:
        for model in idle:
            await it.device.get_supported_operations(model)
        async with anyio.create_task_group() as tasks:
            for model in new:
                tasks.start_soon(it.device.get_supported_operations, model)


async def test_one_who_gives_up_sending_a_model_leaves_it_to_the_next(monkeypatch: Any) -> None:
    async with served(limits=Limits(models=1)) as it:
        sent = offers_of(it.device.link, monkeypatch)
        for _ in range(3):
            model = rigs.doubler()
            async with anyio.create_task_group() as tasks:
                ask = functools.partial(it.device.get_supported_operations, model)
                hasty = await rigs.attempt(tasks, ask)
                tasks.start_soon(it.device.get_supported_operations, model)
                hasty.scope.cancel()
            assert await it.device.get_supported_operations(model) == (True,)
            del ask, model, hasty
        assert 3 <= len(sent) <= 6
