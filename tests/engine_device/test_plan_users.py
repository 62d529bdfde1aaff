"""The terms of a plan, which all of its prepared models keep to."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from nnasync._core.engine_device import PlanTerms
from nnasync.hal import NEVER_NS, Priority
from tests.engine_device.rig import Rig, Row, null, until_inline

pytestmark = pytest.mark.anyio

Rigs = Callable[..., Rig]


@pytest.mark.parametrize(
    "terms",
    [PlanTerms("others", runs_inline=False), PlanTerms("others", concurrency=1)],
    ids=["waits for the loop", "limited"],
)
async def test_nothing_runs_inline_under_such_terms(rigs: Rigs, terms: PlanTerms) -> None:
    rig = rigs(null(), cores=2)
    prepared, row = await rig.prepare(), Row()
    twin = await rig.device.share(prepared, Priority.LOW)
    await until_inline(rig, prepared, row.request)
    quick = prepared.quick_run(row.request)
    assert quick is not None
    before = rig.workers.statistics().inline_runs
    prepared.change_terms(terms)
    for each in (prepared, twin, await rig.device.share(prepared, Priority.HIGH)):
        await each.execute_synchronously(row.request)
        assert each.quick_run(row.request) is None
    assert not quick.run(None, NEVER_NS)
    assert not quick.goes_beside()
    assert rig.workers.statistics().inline_runs == before
    assert row.is_right


async def test_terms_that_ask_for_nothing_change_nothing_but_the_name(rigs: Rigs) -> None:
    rig = rigs(null())
    prepared, row = await rig.prepare(), Row()
    await until_inline(rig, prepared, row.request)
    before = rig.workers.statistics().inline_runs
    prepared.change_terms(PlanTerms("another"))
    await prepared.execute_synchronously(row.request)
    assert rig.workers.statistics().inline_runs == before + 1
    await prepared.close()
    with pytest.raises(Exception, match="on another is closed"):
        await prepared.execute(row.request)
