"""Whom a contest tries first that cannot try all: those that did best for models of the same kind.

A contest in the background has little processor time, and preparing is what costs most of it. Who
competes in time decides how quick the network is until it is compiled again. So the verdicts on
other models are asked: what a run took each contender there, as a multiple of the chosen one's, on
the average over models of this kind (the geometric mean, as of all ratios). Contenders that nothing
is known about come behind those that usually win, and before those that usually lose, so that they
become known. Among them drivers have said which of their ways are promising (`Lowering.promise`),
and each device has its best way tried before any has its second.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

from nnasync._core.compilation.report import Fate
from nnasync._core.compilation.verdicts import Question, Verdict
from nnasync.hal import Model, OperandType, Struct

_UNKNOWN = 1.25
"""A contender of which nothing is known is taken to be so many times slower than the best."""
_MOST = 8.0
_REALS = (OperandType.TENSOR_FLOAT32, OperandType.TENSOR_FLOAT16)
_MEASURED = (Fate.CHOSEN, Fate.EQUAL, Fate.SLOWER)


class Promise(Struct, frozen=True):
    """States how long a contender's runs took on average, as a multiple of the chosen one's."""

    device: str
    lowering: str
    ratio: float


class _HasModel(Protocol):
    @property
    def model(self) -> Model: ...


class Promising(Protocol):
    """The part of a contender that `by_promise` looks at."""

    @property
    def name(self) -> str:
        """Returns the name of the contender's device."""

    @property
    def lowering(self) -> str:
        """Returns in words how the device runs the model."""

    @property
    def promise(self) -> int:
        """Returns how likely the device takes this lowering for its fastest."""

    @property
    def spec(self) -> _HasModel:
        """Returns the spec with the model that is compiled."""


ContenderT = TypeVar("ContenderT", bound=Promising)


def kind_of(model: Model) -> str:
    """Returns the kind of a model: whether anything is computed in floats, or all in integers.

    Nothing else decides as much which engine is the fastest.
    """
    operands = model.main.operands
    results = (operands[index].type for each in model.main.operations for index in each.outputs)
    return "floats" if any(type in _REALS for type in results) else "integers"


def learnt(verdicts: Iterable[Verdict], question: Question, kind: str) -> tuple[Promise, ...]:
    """Returns what contenders took in verdicts on models of this kind.

    Only verdicts count that answer the same question about their models.
    """
    logarithms: dict[tuple[str, str], list[float]] = {}
    for verdict in verdicts:
        lines = [line for line in verdict.candidates if line.fate in _MEASURED and line.median_us]
        best = [line.median_us for line in lines if line.fate is Fate.CHOSEN]
        if verdict.kind != kind or not _is_alike(verdict.question, question) or not best:
            continue
        for line in lines:
            ratio = min(_MOST, (line.median_us or 0.0) / (best[0] or 1.0))
            logarithms.setdefault((line.device, line.lowering), []).append(math.log(ratio))
    return tuple(
        Promise(*who, math.exp(sum(found) / len(found))) for who, found in logarithms.items()
    )


def _is_alike(one: Question, other: Question) -> bool:
    return (one.preference, one.precision, one.cores) == (
        other.preference,
        other.precision,
        other.cores,
    )


def by_promise(
    contenders: Sequence[ContenderT], promises: Sequence[Promise], whole: Model | None
) -> list[ContenderT]:
    """Returns the contenders, the most promising first.

    `whole` is the file as one operation, whose contenders are counted apart.
    """
    known = {(each.device, each.lowering): each.ratio for each in promises}
    ranked = sorted(contenders, key=lambda each: -each.promise)
    ways = _ways(ranked, whole)

    def key(contender: ContenderT) -> tuple[float, int]:
        ratio = known.get((contender.name, contender.lowering), _UNKNOWN)
        return ratio, ways[id(contender)]

    return sorted(contenders, key=key)


def _ways(ranked: Sequence[Promising], whole: Model | None) -> dict[int, int]:
    """Returns for each contender, by its id, how many of the same device come before it."""
    counted: dict[tuple[str, bool], int] = {}
    ways: dict[int, int] = {}
    for contender in ranked:
        form = contender.name, contender.spec.model is whole
        place = ways[id(contender)] = counted.get(form, 0)
        counted[form] = place + 1
    return ways
