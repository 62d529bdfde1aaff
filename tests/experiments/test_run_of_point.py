"""How much others disturbed a run, and which runs are trusted."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from nnasync.experiments.run_of_point import Run, trusted
from tests.experiments.rigs import runs, served

REAL = Run(0, {}, 0, 0.1, served("real"))


@pytest.mark.parametrize(
    ("others", "stolen", "waited", "disturbance"),
    [
        (0.0, 0.0, None, 0.0),
        (0.4, 0.0, None, 0.4),
        (0.9, 0.0, 0.02, 0.02),  # it went before all others
        (0.01, 0.0, 0.3, 0.01),  # its threads waited for each other
        (0.2, 0.08, 0.0, 0.08),  # nobody waits for what the hypervisor took
    ],
)
def test_others_disturb_as_far_as_the_run_waits_for_them(
    others: float, stolen: float, waited: float | None, disturbance: float
) -> None:
    run = replace(REAL, others=others, stolen=stolen, result=replace(REAL.result, waited=waited))
    assert run.disturbance == disturbance
    assert run.is_disturbed == (disturbance >= 0.05)


def test_disturbed_runs_are_not_trusted_where_others_are_there() -> None:
    simulated, real = runs(), runs(("real",))
    assert trusted([*simulated, *real]) == (*simulated, *real)
    first, second, *rest = real
    disturbed = replace(first, others=0.5)
    assert trusted([*simulated, disturbed, second, *rest]) == (*simulated, second, *rest)
    both = [disturbed, replace(second, others=0.6)]
    assert trusted([*simulated, *both, *rest]) == (*simulated, *both, *rest)
