"""What answers are worth: an evaluator turns outputs and what is right into scores.

An evaluator gets the real values of all outputs and gives one value for each sequence beside the
score as a whole, so that two devices can be compared pair by pair. Only output 0 is looked at,
unless an evaluator says otherwise. Sequences without a truth are left out.

Top k: the expected class is among the k best. Equal scores are ranked by their class, the lower one
first. Phone and word error rates: the edits (insert, delete, substitute, each costs 1) that make
the recognized row from the right one, as a share of the right one's length. Phones are the largest
output of each step, repetitions included, and the right ones are the truth or, without it, those of
the golden outputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec
import numpy as np

from nnasync.errors import InvalidArgument
from nnasync.experiments.intervals import student_t
from nnasync.hal import Array
from nnasync.suites.benchmark.data import DataSequence, Outputs
from nnasync.suites.results import Better

MOST_PHONE_ERRORS = 5.0
TOP1_TOLERANCE = 0.05
_BEST = 5


class Score(msgspec.Struct, frozen=True):
    """One score of a device: the whole, and a value for each sequence.

    `margin` is how much worse the mean of the values may be than a baseline's.
    """

    name: str
    value: float
    items: tuple[float, ...]
    unit: str = ""
    better: Better = Better.MORE
    margin: float = 0.0


class Evaluation(msgspec.Struct, frozen=True):
    """The scores of a device, and what of them is beyond what is allowed, in words."""

    scores: tuple[Score, ...] = ()
    faults: tuple[str, ...] = ()


class Evaluator(Protocol):
    """Turns the outputs for sequences into scores; pure."""

    def evaluate(self, sequences: Sequence[DataSequence], outputs: Sequence[Outputs]) -> Evaluation:
        """The scores; raises InvalidArgument for outputs that are not of its kind."""
        ...


class TopK(msgspec.Struct, frozen=True):
    """Shares of the sequences, of one step each, whose class is among the best 1 to 5.

    It is a fault if top 1 is below `expected_top1` less a tolerance of 0.05 beyond doubt: with all
    of its interval.
    """

    expected_top1: float = 0.0

    def evaluate(self, sequences: Sequence[DataSequence], outputs: Sequence[Outputs]) -> Evaluation:
        """Scores top 1 to top 5; see `Evaluator`."""
        ranks = [
            rank_of(given[0], int(sequence.truth[0]))
            for sequence, given in zip(sequences, outputs, strict=True)
            if sequence.truth is not None
        ]
        if not ranks:
            return Evaluation()
        scores = tuple(
            Score(f"top {k}", _mean(hits), hits)
            for k in range(1, _BEST + 1)
            for hits in [tuple(float(rank < k) for rank in ranks)]
        )
        return Evaluation(scores, self._faults(scores[0]))

    def _faults(self, top1: Score) -> tuple[str, ...]:
        wanted = self.expected_top1 - TOP1_TOLERANCE
        if self.expected_top1 <= 0 or wilson(top1.value, len(top1.items))[1] >= wanted:
            return ()
        return (
            f"top 1 is {top1.value:.3f} on {len(top1.items)} inputs; {self.expected_top1:.3f} is "
            f"expected, give or take {TOP1_TOLERANCE}",
        )


class PhoneErrors(msgspec.Struct, frozen=True):
    """Rates of phones that are wrong, in %, of each sequence; the largest and the mean.

    More than 5 % against golden outputs is a fault; against a truth the network itself may be
    wrong.
    """

    def evaluate(self, sequences: Sequence[DataSequence], outputs: Sequence[Outputs]) -> Evaluation:
        """Scores "phone error rate", its mean, and "largest phone error rate"."""
        rates: list[float] = []
        faults: list[str] = []
        for number, (sequence, given) in enumerate(zip(sequences, outputs, strict=True)):
            right = _right_phones(sequence)
            if right is None:
                continue
            heard = _best_of_steps(given[0])
            rates.append(100 * edit_distance(heard, right) / max(len(right), 1))
            if sequence.golden and rates[-1] > MOST_PHONE_ERRORS:
                faults.append(f"sequence {number}: phone error rate {rates[-1]:.1f} % is above 5 %")
        return _rates("phone error rate", rates, faults, margin=0.5)


class WordErrors(msgspec.Struct, frozen=True):
    """Rates of words that are wrong, in %; `decode` gives the words in the outputs of all steps."""

    decode: Callable[[Array], Sequence[int]]

    def evaluate(self, sequences: Sequence[DataSequence], outputs: Sequence[Outputs]) -> Evaluation:
        """Scores "word error rate", its mean, and "largest word error rate"."""
        rates = [
            100 * edit_distance(self.decode(given[0]), right) / max(len(right), 1)
            for sequence, given in zip(sequences, outputs, strict=True)
            if sequence.truth is not None
            for right in [sequence.truth.tolist()]
        ]
        return _rates("word error rate", rates, [], margin=0.5)


def rank_of(scores: Array, label: int) -> int:
    """Returns how many classes come before a label by score; raises InvalidArgument without it."""
    row = scores.reshape(-1)
    if not 0 <= label < len(row):
        raise InvalidArgument(f"the right class is {label}, the network has {len(row)} classes")
    mine = row[label]
    if np.isnan(mine):
        return len(row)
    return int(np.count_nonzero(row > mine) + np.count_nonzero(row[:label] == mine))


def edit_distance(left: Sequence[int], right: Sequence[int]) -> int:
    """Returns how many insertions, deletions and substitutions make one row from the other."""
    before = list(range(len(right) + 1))
    for count, item in enumerate(left, 1):
        row = [count]
        for place, other in enumerate(right, 1):
            row.append(min(row[-1] + 1, before[place] + 1, before[place - 1] + (item != other)))
        before = row
    return before[-1]


def wilson(share: float, count: int) -> tuple[float, float]:
    """The interval of a share of `count`, with 95 % confidence, after Wilson."""
    z = student_t(0.95, 10_000)
    middle = share + z * z / (2 * count)
    half = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    whole = 1 + z * z / count
    return (middle - half) / whole, (middle + half) / whole


def _right_phones(sequence: DataSequence) -> list[int] | None:
    if sequence.truth is not None:
        return [int(phone) for phone in sequence.truth]
    return _best_of_steps(sequence.golden[0]) if sequence.golden else None


def _best_of_steps(scores: Array) -> list[int]:
    best: list[int] = scores.reshape(len(scores), -1).argmax(axis=1).tolist()
    return best


def _rates(name: str, rates: list[float], faults: list[str], *, margin: float) -> Evaluation:
    if not rates:
        return Evaluation()
    items = tuple(rates)
    less = Better.LESS
    mean = Score(name, _mean(items), items, "%", less, margin)
    largest = Score(f"largest {name}", max(items), (), "%", less)
    return Evaluation((mean, largest), tuple(faults))


def _mean(items: Sequence[float]) -> float:
    return math.fsum(items) / len(items)
