"""Decisions are written down, made again, and shrunk; inputs follow from them alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from nnasync import run
from nnasync.suites.fuzz.bytes_edits import byte_edits, edited
from nnasync.suites.fuzz.decisions import RecordedRandom, ReplayedRandom, decisions_in
from nnasync.suites.fuzz.inputs import FuzzKind, made, numbered, recipe_of
from nnasync.suites.fuzz.mutations import Mutator
from nnasync.suites.fuzz.seeds import FuzzSeeds
from nnasync.suites.fuzz.shrinking import Decisions, shrunk


@pytest.fixture(scope="module")
def seeds() -> FuzzSeeds:
    return FuzzSeeds()


def drawn(source: RecordedRandom | ReplayedRandom) -> list[object]:
    items = list(range(9))
    source.shuffle(items)
    return [
        source.random(),
        source.getrandbits(40),
        source.choice("abcdefg"),
        source.randint(-3, 12),
        source.choices("ab", (1, 3)),
        items,
    ]


def test_decisions_are_made_again() -> None:
    recorded = RecordedRandom("7")
    first = drawn(recorded)
    assert drawn(ReplayedRandom(recorded.decisions)) == first
    assert drawn(RecordedRandom("8")) != first


def test_behind_the_end_all_is_zero() -> None:
    replayed = ReplayedRandom([5])
    assert (replayed.randrange(9), replayed.randrange(9), replayed.random()) == (5, 0, 0.0)
    assert replayed.used == 3


def test_decisions_in_bytes_choose_and_weigh() -> None:
    few, many = decisions_in(b"\x02\0\0\0" + b"\xff" * 4)
    assert ReplayedRandom([few]).randrange(4) == 2
    assert ReplayedRandom([many]).random() > 0.99
    assert decisions_in(b"") == []


@pytest.mark.parametrize(
    ("kind", "different"),
    [(FuzzKind.MODELS, 12), (FuzzKind.REQUESTS, 11), (FuzzKind.MEMORY, 12), (FuzzKind.NNM, 12)],
)
def test_a_recipe_makes_the_same_input(kind: FuzzKind, different: int, seeds: FuzzSeeds) -> None:
    digests = set()
    for number in range(12):
        given = numbered(3, number, kind, seeds)
        assert made(recipe_of(3, number, kind, seeds), seeds).digest == given.digest
        digests.add(given.digest)
    assert len(digests) == different  # Requests share a model, and two of these are alike.


def test_no_decisions_make_no_change(seeds: FuzzSeeds) -> None:
    sample = seeds.samples[10]
    assert Mutator(ReplayedRandom(())).sample(sample, seeds.samples).model == sample.model


def test_edits_fit_contents_of_any_length() -> None:
    for number in range(200):
        edits = byte_edits(RecordedRandom(f"{number}"))
        for length in (0, 1, 2, 3, 9000):
            content = bytes(range(256)) * 36
            assert len(edited(content[:length], edits)) <= length + 256


def shrunk_by(
    decisions: Decisions, test: Callable[[Decisions], bool], most: int = 1000
) -> Decisions:
    async def main() -> Decisions:
        async def still(some: Decisions) -> bool:
            return test(some)

        return await shrunk(decisions, still, most)

    return run(main)


def test_what_is_not_needed_goes() -> None:
    decisions = tuple(range(1, 101))
    assert shrunk_by(decisions, lambda some: 7 in some and 60 in some) == (7, 60)


def test_what_must_keep_its_place_keeps_it() -> None:
    decisions = tuple(range(1, 33))
    found = shrunk_by(decisions, lambda some: len(some) > 20 and some[20] == 21)
    assert found == (0,) * 20 + (21,)


def test_nothing_is_lost_where_nothing_may_go() -> None:
    decisions = (3, 1, 4, 1, 5)
    assert shrunk_by(decisions, lambda some: some == decisions) == decisions


def test_no_more_questions_than_allowed() -> None:
    asked = 0

    def test(some: Decisions) -> bool:
        nonlocal asked
        asked += 1
        return False

    shrunk_by(tuple(range(1, 1000)), test, most=17)
    assert asked == 17
