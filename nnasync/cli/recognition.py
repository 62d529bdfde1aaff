"""From scores of the demo's networks to what was heard and seen, and how much of it was right.

Pure: scores and positions go in, events and shares come out. A word counts once, when its smoothed
score has passed a threshold and falls again; a digit counts in every frame of its own. What was not
answered (a dropped or late frame, a missed hop) is a mistake.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence

import numpy as np

from nnasync import hal

NONE = 10
"""The class of a frame without a digit and of a hop without a word."""

HOP_SAMPLES = 160


class Word(hal.Struct):
    """A recognized word: its class 0 to 9, the hop at which it was decided, its peak score."""

    label: int
    hop: int
    score: float


class SpokenWord(hal.Struct):
    """A word that was spoken: its class, first sample and the one after its last (16 kHz)."""

    label: int
    start: int
    end: int
    voice: str = ""


class WordDecoder:
    """Turns scores [11] per hop of 10 ms into words.

    Scores are averaged over the last `smooth` hops. While the best word's average stays above
    `release` (dips shorter than `settle` hops aside), something is being heard; when that is over,
    or after `patience` hops, the word with the highest average is decided, if it reached
    `threshold`.
    Scores from before a gap of `smooth` hops or more are forgotten.
    """

    def __init__(
        self,
        *,
        smooth: int = 10,
        release: float = 0.2,
        threshold: float = 0.5,
        settle: int = 12,
        patience: int = 60,
    ) -> None:
        self._smooth = smooth
        self._release = release
        self._threshold = threshold
        self._settle = settle
        self._patience = patience
        self._window: deque[hal.Array] = deque(maxlen=smooth)
        self._last_hop = -1
        self._best: Word | None = None
        self._since = self._last_active = 0
        self._decided = False

    def feed(self, hop: int, scores: hal.Array) -> Word | None:
        """Take the scores of hop number `hop`; numbers rise, gaps are hops without an answer."""
        if hop - self._last_hop > self._smooth:
            self._window.clear()
        self._last_hop = hop
        self._window.append(np.asarray(scores, np.float64).reshape(-1)[:NONE])
        mean: hal.Array = np.mean(self._window, axis=0)
        label = int(mean.argmax())
        return self._follow(Word(label, hop, float(mean[label])))

    def _follow(self, current: Word) -> Word | None:
        if current.score >= self._release:
            if self._best is None:
                self._best, self._since, self._decided = current, current.hop, False
            elif current.score > self._best.score:
                self._best = current
            self._last_active = current.hop
        best = self._best
        if best is None:
            return None
        over = current.hop - self._last_active >= self._settle
        if over:
            self._best = None
        if self._decided or not (over or current.hop - self._since >= self._patience):
            return None
        self._decided = True
        return Word(best.label, current.hop, best.score) if best.score >= self._threshold else None


def answers(
    events: Sequence[Word], truth: Sequence[SpokenWord], *, grace_hops: int = 50
) -> list[tuple[SpokenWord, Word | None]]:
    """Returns each spoken word, by start, with the event that answers it.

    That is the first event from the word's start to `grace_hops` after its end that answers no
    earlier word; None if there is none.
    """
    waiting = deque(sorted(events, key=lambda event: event.hop))
    found: list[tuple[SpokenWord, Word | None]] = []
    for word in sorted(truth, key=lambda spoken: spoken.start):
        first, last = word.start // HOP_SAMPLES, word.end // HOP_SAMPLES + grace_hops
        while waiting and waiting[0].hop < first:
            waiting.popleft()
        answered = bool(waiting) and waiting[0].hop <= last
        found.append((word, waiting.popleft() if answered else None))
    return found


def word_accuracy(
    events: Sequence[Word], truth: Sequence[SpokenWord], *, grace_hops: int = 50
) -> float:
    """Share of right answers among all spoken words and all false alarms.

    An answer (see `answers`) is right if the label agrees; events that answer no word are false
    alarms.
    """
    given = [
        (word, event)
        for word, event in answers(events, truth, grace_hops=grace_hops)
        if event is not None
    ]
    right = sum(event.label == word.label for word, event in given)
    total = len(truth) + len(events) - len(given)
    return right / total if total else 1.0


class DigitVote:
    """Steadies what is shown: the commonest of the last `span` labels, the newest on a tie."""

    def __init__(self, *, span: int = 5) -> None:
        self._labels: deque[int] = deque(maxlen=span)

    def feed(self, label: int) -> int:
        """Take the label of the next answered frame; returns the one to show."""
        self._labels.append(label)
        counts = Counter(reversed(self._labels))
        return counts.most_common(1)[0][0]


def digit_accuracy(seen: Mapping[int, int], truth: Sequence[int]) -> float:
    """Share of the frames of `truth` whose label in `seen` (by frame number) is right.

    Every frame counts on its own; one without an answer is wrong.
    """
    if not truth:
        return 1.0
    return sum(seen.get(frame) == label for frame, label in enumerate(truth)) / len(truth)
