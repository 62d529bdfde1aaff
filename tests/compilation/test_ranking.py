"""Who wins by what was measured: pure choices."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnasync._core.compilation.choice import Choice, Part
from nnasync._core.compilation.ranking import Standing, close, crowding, near, rule_out, winner
from nnasync._core.compilation.report import Fate
from nnasync._core.compilation.trials import TurnTimes
from nnasync.hal import ExecutionPreference
from nnasync.machine import decide
from tests.compilation.rig import REFERENCE
from tests.machine.rig import costs

MARGINS = decide(None, 1_000_000).margins
FAST, LOW = ExecutionPreference.FAST_SINGLE_ANSWER, ExecutionPreference.LOW_POWER


class Named:
    """What a standing wants of a contender."""

    lowering = "f32, 1 thread"

    def __init__(self, name: str) -> None:
        self.name = name
        self.choice = Choice((Part(name, "1"),))


def unmeasured(name: str) -> Standing:
    """One that never ran."""
    contender: Any = Named(name)
    return Standing(contender)


def standing(
    name: str,
    us: float,
    cold_us: float | None = None,
    *,
    agrees: bool | None = True,
    cpu_us: float | None = None,
    cold_cpu_us: float | None = None,
) -> Standing:
    """One that was measured."""
    made = unmeasured(name)
    made.agrees = agrees
    made.note(TurnTimes((int(us * 1000),), cpu_us and cpu_us * 1000))
    if cold_us is not None:
        made.note_cold(TurnTimes((int(cold_us * 1000),), cold_cpu_us and cold_cpu_us * 1000))
    return made


def names(standings: list[Standing]) -> list[str]:
    return [each.contender.name for each in standings]


def won(*standings: Standing, preference: ExecutionPreference = FAST) -> str:
    return winner(standings, preference, MARGINS).contender.name


def test_cold_runs_decide_between_those_that_are_near() -> None:
    assert won(standing("a", 350, 880), standing("b", 366, 560)) == "b"
    assert won(standing("a", 350, 880), standing("b", 384, 560)) == "a"


def test_cold_runs_that_differ_little_leave_it_to_the_others() -> None:
    assert won(standing("a", 350, 600), standing("b", 366, 500)) == "a"
    assert won(standing("a", 350, 550), standing("b", 345, 500)) == "a"


def test_what_a_cold_run_saves_must_be_more_than_what_others_cost() -> None:
    assert won(standing("a", 100, 250), standing("b", 107, 200)) == "a"
    assert won(standing("a", 100, 250), standing("b", 100, 200)) == "b"


def test_calls_back_to_back_pay_a_part_of_what_cold_caches_cost() -> None:
    assert won(standing("a", 100, 400), standing("b", 108, 130)) == "b"
    assert won(standing("a", 100), standing("b", 108)) == "a"
    assert won(standing("a", 100, 400), standing("b", 108)) == "a"


def test_no_stream_outweighs_calls_that_take_longer_back_to_back() -> None:
    assert won(standing("a", 100, 250), standing("b", 110, 150)) == "a"
    assert won(standing("a", 100, 250), standing("b", 109, 115)) == "b"


def test_among_those_that_are_left_the_order_decides() -> None:
    lines = [
        standing("a", 100, 900),
        standing("b", 104, 300),
        standing("c", 103, 310),
        standing("d", 103, 290),
    ]
    assert won(*lines) == "b"
    assert [each.verdict for each in lines] == [
        "slower when cold: 3.00 times the chosen, 0.96 times back to back",
        "chosen",
        "equal: order decides",
        "equal: order decides",
    ]


def test_without_cold_runs_it_is_as_if_there_were_none() -> None:
    assert won(standing("a", 100), standing("b", 102, 120)) == "a"
    assert won(standing("a", 100, 500), standing("b", 102)) == "a"


def test_an_engine_near_the_reference_is_better_in_a_stream() -> None:
    reference, engine = standing(REFERENCE, 85, 330), standing("engine", 97, 155)
    other = standing("other", 101, 150)
    assert names(near([reference, engine, other], FAST, MARGINS)) == [REFERENCE, "engine", "other"]
    assert won(reference, engine, other) == "engine"
    assert reference.verdict == "slower when cold: 2.13 times the chosen, 0.88 times back to back"
    assert other.verdict == "slower: 1.04 times the chosen"


def test_the_reference_wins_where_no_engine_is_near_or_better_when_cold() -> None:
    assert won(standing(REFERENCE, 85, 330), standing("engine", 105, 155)) == REFERENCE
    assert won(standing(REFERENCE, 85, 160), standing("engine", 97, 155)) == REFERENCE
    assert won(standing("engine", 97, 155), standing(REFERENCE, 110, 60)) == "engine"


def test_what_became_of_them_is_told_apart_from_the_words() -> None:
    lines = [
        standing("a", 100, 100),
        standing("b", 103, 103),
        standing("c", 200, 200),
        standing("d", 50, 50, agrees=False),
    ]
    winner(lines, FAST, MARGINS)
    assert [each.candidate().fate for each in lines] == [
        Fate.CHOSEN,
        Fate.EQUAL,
        Fate.SLOWER,
        Fate.DISAGREES,
    ]


def test_who_was_never_judged_is_not_said_to_be_slower() -> None:
    """What is slower agrees, and may be kept as a quick plan before the best one."""
    lines = [standing("a", 1, 1), standing("b", 1, 1), standing("c", 1, 1)]
    for line, impression_ns, agrees in zip(lines, (1e3, 1e6, 1e6), (True, True, None), strict=True):
        line.impression_ns, line.agrees = impression_ns, agrees
    rule_out(lines)
    assert [each.fate for each in lines] == [None, Fate.SLOWER, Fate.UNTRIED]
    assert all("slower: about" in each.verdict for each in lines[1:])


def test_who_disagrees_or_failed_is_not_near() -> None:
    wrong = standing("wrong", 50, 60, agrees=False)
    gone = standing("gone", 100, 50)
    gone.settle(Fate.FAILED, "failed: gone")
    right = standing("right", 100, 200)
    assert names(near([wrong, gone, right], FAST, MARGINS)) == ["right"]
    assert won(wrong, gone, right) == "right"
    assert wrong.verdict == "disagrees with the reference"
    assert gone.verdict == "failed: gone"


def test_low_power_counts_processor_time_hot_and_cold() -> None:
    lines = (
        standing("a", 100, 150, cpu_us=100, cold_cpu_us=400),
        standing("b", 200, 900, cpu_us=102, cold_cpu_us=200),
    )
    assert won(*lines, preference=LOW) == "b"
    assert lines[0].verdict.endswith("slower when cold: 2.00 times the chosen")


def test_more_threads_are_for_who_is_close() -> None:
    assert names(close([standing("a", 100), standing("b", 149), standing("c", 160)], FAST)) == [
        "a",
        "b",
    ]


@pytest.mark.parametrize("agrees", [True, None])
def test_who_was_never_run_is_taken_where_nobody_was(agrees: bool | None) -> None:
    first, second = unmeasured("first"), unmeasured("second")
    first.agrees = second.agrees = agrees
    assert winner([first, second], FAST, MARGINS) is first
    assert first.verdict == "chosen: first that is ready"
    assert second.verdict == "not measured: the deadline was near"


measured = st.tuples(
    st.floats(1, 200), st.none() | st.floats(1, 2000), st.sampled_from(["a", "b", REFERENCE])
)


@given(st.lists(measured, min_size=1, max_size=6))
def test_whoever_wins_is_near_the_cheapest_engine(lines: list[Any]) -> None:
    standings = [standing(name, us, cold_us) for us, cold_us, name in lines]
    taken = winner(standings, FAST, MARGINS)
    engines = [each.cost(FAST) for each in standings if not each.is_reference]
    least = min(each.cost(FAST) for each in standings)
    # Of those within 1.1 back to back; by what calls pay for cold caches, too, it may be the best.
    assert taken.cost(FAST) <= 1.1 * max(least, min(engines, default=0.0))
    assert taken.cost(FAST) <= 1.2 * 1.1 * least
    assert [each.verdict for each in standings].count("chosen") == 1
    assert all(each.verdict for each in standings)


@given(st.lists(st.floats(1, 200), min_size=1, max_size=6))
def test_without_cold_runs_only_a_tie_is_not_the_cheapest(lines: list[float]) -> None:
    standings = [standing("a", us) for us in lines]
    assert winner(standings, FAST, MARGINS).cost(FAST) <= 1.03 * min(
        each.cost(FAST) for each in standings
    )


def threads(made: Standing, count: int) -> Standing:
    contender: Any = made.contender
    contender.choice = Choice((Part(made.contender.name, "1", threads=count),))
    return made


def test_runs_that_waited_for_a_core_were_disturbed() -> None:
    assert crowding([]) == 1
    assert crowding([standing("a", 100), standing("b", 100)]) == 1
    assert crowding([standing("a", 110, cpu_us=100), standing("b", 100, cpu_us=100)]) == 1.05
    assert crowding([standing("a", 150, cpu_us=100), standing("b", 100, cpu_us=100)]) == 1.25


def test_several_threads_do_not_tell_whether_they_waited() -> None:
    wide = threads(standing("a", 200, cpu_us=100), 2)
    assert crowding([wide, standing("b", 100, cpu_us=100)]) == 1
    assert crowding([threads(standing("a", 100, cpu_us=190), 2)]) == 1


@pytest.mark.parametrize(("noise", "chosen"), [(0.01, "second"), (0.03, "first"), (0.2, "first")])
def test_what_counts_as_equal_follows_from_the_noise_of_the_machine(
    noise: float, chosen: str
) -> None:
    margins = decide(msgspec.structs.replace(costs(), noise=noise), 1_000_000).margins
    lines = [standing("first", 102.0), standing("second", 100.0)]
    assert winner(lines, FAST, margins).contender.name == chosen
