"""Things that stay the same from picture to picture: boxes with identities.

A thing is where it was and moves on as fast as it did (constant velocity); every box that is found
corrects place, size and speed by a share of what they were wrong by (an alpha-beta filter, the
steady state of a Kalman filter). Boxes belong to the thing whose expected place they overlap most;
what is left may be a small or quick thing that has moved further than its size, so it is looked for
nearby. The label is the one that the thing had most often and most surely of late.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from nnasync._core.arguments import check_positive, check_whole
from nnasync.hal import Array
from nnasync.vision.boxes import Boxes, check_boxes, overlaps
from nnasync.vision.heads.head import around

_PLACE, _SPEED, _SIZE, _SCORE = 0.7, 0.25, 0.5, 0.5
"""Shares of an error by which place, speed, size and score are corrected."""
_MEMORY = 0.9
"""What a label's weight is multiplied with at every sight."""
_FAR = 1e6
"""Pixels, and pixels a second, beyond which a network's numbers are no place and no speed."""


class _Track:
    """Follows one thing: center, speed and size in pixels (and pixels a second), and its labels."""

    def __init__(
        self, identity: int, corners: Array, score: float, label: int, now_ns: int
    ) -> None:
        self.identity = identity
        self.center: Array = (corners[:2] + corners[2:]) / 2
        self.size: Array = corners[2:] - corners[:2]
        self.velocity: Array = np.zeros(2, np.float32)
        self.score = score
        self.seen_ns = now_ns
        self.sights = 1
        self._weights: dict[int, float] = {label: score}

    @property
    def label(self) -> int:
        """Returns the label with the most weight."""
        return max(self._weights, key=self._weights.__getitem__)

    def center_at(self, now_ns: int) -> Array:
        """Returns where the center of the thing should be."""
        moved: Array = self.center + self.velocity * np.float32(_seconds(self.seen_ns, now_ns))
        return moved

    def see(self, corners: Array, score: float, label: int, now_ns: int) -> None:
        """Take in a box that is this thing."""
        expected = self.center_at(now_ns)
        wrong = (corners[:2] + corners[2:]) / 2 - expected
        passed_s = _seconds(self.seen_ns, now_ns)
        self.center = expected + np.float32(_PLACE) * wrong
        if passed_s > 0:
            # The second sight is the first that tells of speed at all.
            share = 1.0 if self.sights == 1 else _SPEED
            faster = self.velocity + np.minimum(share / passed_s, _FAR).astype(np.float32) * wrong
            self.velocity = np.clip(faster, -_FAR, _FAR)
        self.size = self.size + np.float32(_SIZE) * (corners[2:] - corners[:2] - self.size)
        self.score += _SCORE * (score - self.score)
        self.seen_ns = max(now_ns, self.seen_ns)
        self.sights += 1
        self._weights = {each: _MEMORY * weight for each, weight in self._weights.items()}
        self._weights[label] = self._weights.get(label, 0.0) + score


class Tracker:
    """Gives boxes that follow one another identities; one tracker is for one stream."""

    def __init__(
        self, *, overlap: float = 0.2, patience_ns: int = 500_000_000, confirmations: int = 3
    ) -> None:
        """Sets when a thing is reported: once it was seen `confirmations` times.

        It is forgotten `patience_ns` after it was last seen. A box may be a thing if they overlap
        by `overlap` or more. Raises InvalidArgument for an overlap that is not above 0 and at
        most 1, a negative patience, and confirmations below 1.
        """
        check_positive("overlap", overlap, 1)
        check_whole("patience_ns", patience_ns, 0)
        check_whole("confirmations", confirmations, 1)
        self._overlap = overlap
        self._patience_ns = patience_ns
        self._confirmations = confirmations
        self._tracks: list[_Track] = []
        self._next = 0
        self._names: tuple[str, ...] = ()

    def update(self, boxes: Boxes, now_ns: int) -> Boxes:
        """Take the boxes of a picture taken at `now_ns`; returns those of known things.

        Places are smoothed, labels are those of the thing. What moves back in time is taken as
        simultaneous, and boxes that are not finite, or a million pixels away, as none.
        Raises InvalidArgument for what are no `Boxes`, and for a time that is no whole number.
        """
        check_boxes("boxes", boxes)
        check_whole("now_ns", now_ns)
        boxes = boxes.finite()
        boxes = boxes.chosen((np.abs(boxes.corners) < _FAR).all(axis=1))
        self._names = boxes.names or self._names
        self._tracks = [
            track for track in self._tracks if now_ns - track.seen_ns <= self._patience_ns
        ]
        seen = []
        pairs = dict(self._pairs(boxes, now_ns))
        for index in range(len(boxes)):
            what = boxes.corners[index], float(boxes.scores[index]), int(boxes.labels[index])
            track = pairs.get(index)
            if track is None:
                track = _Track(self._next, *what, now_ns)
                self._next += 1
                self._tracks.append(track)
            else:
                track.see(*what, now_ns)
            seen.append(track)
        return self._told(seen, now_ns)

    def expected(self, now_ns: int) -> Boxes:
        """Returns all known things where they should be at `now_ns`, found just now or not."""
        check_whole("now_ns", now_ns)
        return self._told(self._tracks, now_ns)

    def _told(self, tracks: Sequence[_Track], now_ns: int) -> Boxes:
        known = [track for track in tracks if track.sights >= self._confirmations]
        return Boxes.of(
            _corners(known, now_ns),
            [track.score for track in known],
            [track.label for track in known],
            names=self._names,
            identities=[track.identity for track in known],
        )

    def _pairs(self, boxes: Boxes, now_ns: int) -> Iterator[tuple[int, _Track]]:
        """Boxes, by index, with the tracks that they are."""
        tracks = self._tracks
        if not tracks or not len(boxes):
            return
        expected = _corners(tracks, now_ns)
        table = overlaps(boxes.corners, expected)
        table[table < self._overlap] = 0
        left = [set(range(len(boxes))), set(range(len(tracks)))]
        for row, column in _best_first(table):
            left[0].discard(row)
            left[1].discard(column)
            yield row, tracks[column]
        near = _nearness(boxes, tracks, expected)
        near[[row for row in range(len(boxes)) if row not in left[0]]] = 0
        near[:, [column for column in range(len(tracks)) if column not in left[1]]] = 0
        for row, column in _best_first(near):
            yield row, tracks[column]


def _best_first(table: Array) -> Iterator[tuple[int, int]]:
    """Rows and columns of a table's positive entries, the largest first, each at most once."""
    rows, columns = np.nonzero(table > 0)
    free_rows, free_columns = np.ones(table.shape[0], bool), np.ones(table.shape[1], bool)
    for pair in np.argsort(-table[rows, columns], kind="stable"):
        row, column = int(rows[pair]), int(columns[pair])
        if free_rows[row] and free_columns[column]:
            free_rows[row] = free_columns[column] = False
            yield row, column


def _nearness(boxes: Boxes, tracks: Sequence[_Track], expected: Array) -> Array:
    """1 in the same place, 0 from the length of the thing on, and for those of other labels."""
    centers = (boxes.corners[:, :2] + boxes.corners[:, 2:]) / 2
    places = (expected[:, :2] + expected[:, 2:]) / 2
    away = np.sqrt(((centers[:, None] - places[None]) ** 2).sum(axis=2))
    reach = (expected[:, 2:] - expected[:, :2]).max(axis=1)
    near = np.maximum(1 - away / np.maximum(reach, 1e-6), 0)
    labels = np.array([track.label for track in tracks])
    same: Array = near * (boxes.labels[:, None] == labels[None])
    return same


def _corners(tracks: Sequence[_Track], now_ns: int) -> Array:
    if not tracks:
        return np.zeros((0, 4), np.float32)
    centers = np.stack([track.center_at(now_ns) for track in tracks])
    return around(centers, np.stack([track.size for track in tracks]))


def _seconds(before_ns: int, after_ns: int) -> float:
    return max(after_ns - before_ns, 0) / 1e9
