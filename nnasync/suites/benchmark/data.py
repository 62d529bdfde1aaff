"""What a network is benchmarked on: sequences of steps, with what is known of the right answers.

A sequence is what a network with a state hears or sees in one go: its state is zero before the
first step. A network without a state has sequences of one step. Of each sequence there may be the
outputs of some other engine (golden), and the truth: what an evaluator compares outputs with.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from nnasync.errors import InvalidArgument
from nnasync.hal import Array

Outputs = tuple[Array, ...]
"""Of a sequence: for each output of the network an array, whose first axis are the steps."""

LEAST_SEQUENCES = 20
"""So many are taken of data that have as many, however short a benchmark is to be."""


class DataSequence(msgspec.Struct, frozen=True):
    """A sequence: for each input an array whose first axis are the steps, and so for `golden`.

    `truth` is for an evaluator: the number of the right class, [1]; phones or words [n]; boxes
    [n, 5] as label, left, top, right, bottom; a signal. Without golden outputs or truth they are
    empty, and None.
    """

    inputs: tuple[Array, ...]
    golden: Outputs = ()
    truth: Array | None = None

    @property
    def steps(self) -> int:
        """Returns how many steps it has."""
        return len(self.inputs[0])


class DataSet(msgspec.Struct, frozen=True):
    """What a network is run on, and what was left out, in words."""

    sequences: tuple[DataSequence, ...]
    notes: tuple[str, ...] = ()

    @property
    def steps(self) -> int:
        """Returns how many steps all sequences have."""
        return sum(each.steps for each in self.sequences)

    def sampled(self, share: float) -> DataSet:
        """A share of the sequences, evenly spread; at least LEAST_SEQUENCES, if there are."""
        count = len(self.sequences)
        wanted = min(count, max(LEAST_SEQUENCES, math.ceil(count * min(share, 1.0))))
        chosen = tuple(self.sequences[index * count // wanted] for index in range(wanted))
        return msgspec.structs.replace(self, sequences=chosen)


def write_arrays(path: Path, sequences: Sequence[tuple[Array, ...]]) -> None:
    """Write the arrays of sequences for another process; raises OSError."""
    named = {f"{n}.{k}": array for n, each in enumerate(sequences) for k, array in enumerate(each)}
    with path.open("wb") as file:
        np.savez(file, allow_pickle=False, count=np.array(len(sequences)), **named)


def read_arrays(path: Path) -> list[tuple[Array, ...]]:
    """Read what `write_arrays` wrote; raises OSError, and InvalidArgument for another file."""
    try:
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as file:
            widths = [0] * int(file["count"])
            for name in file.files:
                if name != "count":
                    widths[int(name.partition(".")[0])] += 1
            return [tuple(file[f"{n}.{k}"] for k in range(width)) for n, width in enumerate(widths)]
    except (ValueError, KeyError, IndexError) as error:
        raise InvalidArgument(f"{path} holds no sequences: {error}") from error
