"""Boxes around things in a picture, with scores and labels, and how much they overlap.

A box is left, top, right and bottom in pixels: 0, 0 is the outer corner of the first pixel, so a
box around the whole picture is 0, 0, width, height. Boxes are kept as columns, because everything
that is done with them is done with all of them at once; iterating gives them one by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np

from nnasync._core.arguments import check_kind, check_number, told, words
from nnasync.errors import InvalidArgument
from nnasync.hal import Array, Struct


class Box(Struct, frozen=True):
    """One box; `label` is the number of its class, `name` the name of that, "" if there is none.

    `identity` is the number that a `Tracker` gave what is in it, None where none did.
    """

    left: float
    top: float
    right: float
    bottom: float
    score: float = 1.0
    label: int = 0
    name: str = ""
    identity: int | None = None


class Boxes(Struct, frozen=True, eq=False):
    """Any number of boxes; make them with `Boxes.of`, which checks and converts."""

    corners: Array
    """Float32 [n, 4]: left, top, right, bottom in pixels."""
    scores: Array
    """Float32 [n]: how sure it is, usually 0 to 1."""
    labels: Array
    """Int32 [n]: the number of the class of each."""
    names: tuple[str, ...] = ()
    """Names of the classes, by number."""
    identities: Array | None = None
    """Int32 [n]: the numbers that a tracker gave."""

    @classmethod
    def of(
        cls,
        corners: Any = (),
        scores: Any = None,
        labels: Any = None,
        *,
        names: Sequence[str] = (),
        identities: Any = None,
    ) -> Boxes:
        """Boxes of anything array-like: corners [n, 4] in pixels, scores [n], labels [n].

        Scores are 1 and labels 0 unless given. Raises InvalidArgument where numbers or shapes do
        not fit.
        """
        row = words("names", names)
        places = _column(corners, np.float32, "corners").reshape(-1, 4)
        count = len(places)
        return cls(
            places,
            _checked(np.ones(count) if scores is None else scores, np.float32, "scores", count),
            _checked(np.zeros(count) if labels is None else labels, np.int32, "labels", count),
            row,
            None if identities is None else _checked(identities, np.int32, "identities", count),
        )

    def __len__(self) -> int:
        return len(self.corners)

    def __iter__(self) -> Iterator[Box]:
        return (self._box(index) for index in range(len(self)))

    def _box(self, index: int) -> Box:
        left, top, right, bottom = map(float, self.corners[index])
        label = int(self.labels[index])
        return Box(
            left,
            top,
            right,
            bottom,
            float(self.scores[index]),
            label,
            self.name_of(label),
            None if self.identities is None else int(self.identities[index]),
        )

    def name_of(self, label: int) -> str:
        """Returns the name of a class, "" where it has none."""
        return self.names[label] if 0 <= label < len(self.names) else ""

    def chosen(self, which: Any) -> Boxes:
        """Returns some of the boxes: `which` is a mask, indexes, or a slice.

        Raises InvalidArgument for anything else, and for indexes of boxes that are not there.
        """
        try:
            corners = self.corners[which]
        except (IndexError, TypeError) as error:
            raise InvalidArgument(f"which is {told(which)}: {error}") from error
        if corners.ndim != 2:
            raise InvalidArgument(f"which is {told(which)}, it must be a mask, indexes or a slice")
        return msgspec.structs.replace(
            self,
            corners=corners,
            scores=self.scores[which],
            labels=self.labels[which],
            identities=None if self.identities is None else self.identities[which],
        )

    def above(self, threshold: float) -> Boxes:
        """Returns the boxes that score at least `threshold`.

        Raises InvalidArgument for a threshold that is no number.
        """
        check_number("threshold", threshold)
        return self.chosen(self.scores >= threshold)

    def finite(self) -> Boxes:
        """Returns the boxes whose corners and score are finite; a network may give others."""
        return self.chosen(np.isfinite(self.corners).all(axis=1) & np.isfinite(self.scores))

    def sorted(self) -> Boxes:
        """Returns the boxes sorted, the highest score first; equal scores stay in their order."""
        return self.chosen(np.argsort(-self.scores, kind="stable"))


def areas(corners: Array) -> Array:
    """Areas float32 [n] of corners [n, 4]; 0 where right is not right of left.

    Raises InvalidArgument for other arrays.
    """
    _check_corners("corners", corners)
    with np.errstate(over="ignore", invalid="ignore"):
        sides = np.maximum(corners[:, 2:] - corners[:, :2], 0)
        found: Array = sides[:, 0] * sides[:, 1]
    return found


def overlaps(a: Array, b: Array) -> Array:
    """Intersection over union, float32 [n, m], of corners [n, 4] and [m, 4].

    It is 0 for empty boxes, and for those whose areas are no finite number. Raises InvalidArgument
    for other arrays.
    """
    _check_corners("a", a)
    _check_corners("b", b)
    with np.errstate(over="ignore", invalid="ignore"):
        low = np.maximum(a[:, None, :2], b[None, :, :2])
        sides = np.maximum(np.minimum(a[:, None, 2:], b[None, :, 2:]) - low, 0)
        common = sides[..., 0] * sides[..., 1]
        union = areas(a)[:, None] + areas(b)[None] - common
    has_one = (union > 0) & np.isfinite(union)
    found: Array = np.divide(common, union, out=np.zeros_like(common), where=has_one)
    return found


def check_boxes(name: str, boxes: object) -> None:
    """Raise InvalidArgument for what is not `Boxes`."""
    check_kind(name, boxes, Boxes, "Boxes, which a Detector gives and Boxes.of makes")


def _check_corners(name: str, corners: object) -> None:
    is_table = isinstance(corners, np.ndarray) and corners.ndim == 2 and corners.shape[1] == 4
    if not is_table:
        raise InvalidArgument(f"{name} is {told(corners)}, it must be an array of corners [n, 4]")


def _checked(values: Any, dtype: type, what: str, count: int) -> Array:
    column = _column(values, dtype, what)
    if column.shape != (count,):
        raise InvalidArgument(f"{what} of {count} boxes have shape [{count}], not {column.shape}")
    return column


def _check_whole(values: Array, dtype: type, what: str) -> None:
    """Raise InvalidArgument for numbers that a type of whole numbers cannot have."""
    limits = np.iinfo(dtype)
    if not ((values >= limits.min) & (values <= limits.max)).all():
        raise InvalidArgument(f"{what} of boxes are from {limits.min} to {limits.max}")


def _column(values: Any, dtype: type, what: str) -> Array:
    try:
        given = np.asarray(values)
        if given.dtype.kind not in "biufO":
            raise TypeError(f"they are {given.dtype}")
        if np.issubdtype(dtype, np.integer):
            _check_whole(given, dtype, what)
        with np.errstate(over="ignore"):
            column: Array = given.astype(dtype, copy=False)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidArgument(f"{what} of boxes are no array of numbers: {error}") from error
    if what == "corners" and column.size and column.shape[-1:] != (4,):
        raise InvalidArgument(
            f"corners of boxes have shape [n, 4] (left, top, right, bottom), not {column.shape}"
        )
    return column
