"""When to stop repeating: points that a few repeats do not decide get more, up to a number.

Whoever looks at the figures again and again until they suit finds something in the end. So what is
done is fixed before the first run: it is looked at after `real_repeats` repeats, and then each time
when there are twice as many, until there are `real_most`. All intervals are wide enough that with
95 % confidence none of those that all these looks give of one error is wrong (Bonferroni): with
three looks each has 98.3 %. That holds however many looks were needed. A point that is decided gets
no more repeats.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from nnasync.experiments.experiment import Experiment, Point
from nnasync.experiments.fidelity import fidelity_of
from nnasync.experiments.intervals import CONFIDENCE
from nnasync.experiments.run_of_point import Run


def looks(experiment: Experiment) -> tuple[int, ...]:
    """Returns the numbers of real repeats after which it is tested whether a point is decided."""
    found = [experiment.real_repeats]
    while found[-1] < experiment.real_most:
        found.append(min(2 * found[-1], experiment.real_most))
    return tuple(found)


def confidence_of(experiment: Experiment) -> float:
    """Returns the confidence of each look that gives all looks together a confidence of 95 %."""
    return 1 - (1 - CONFIDENCE) / len(looks(experiment))


def undecided(
    points: Sequence[Point], runs: Sequence[Run], networks: Collection[str], confidence: float
) -> list[Point]:
    """Returns the points at which more repeats could tell whether a stream is within its limits."""
    found = {
        error.point
        for error in fidelity_of(runs, networks, confidence=confidence)
        if error.verdict == "cannot tell" and not error.is_disturbed
    }
    return [point for point in points if point.index in found]
