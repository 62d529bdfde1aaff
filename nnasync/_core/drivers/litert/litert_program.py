"""What a model becomes: a file, and how the caller's arrays and its tensors go together."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence

from nnasync.hal import Array, Shape, Struct

Shapes = tuple[Shape | None, ...]
"""Those of the inputs of a model; None for one that is omitted."""

ShapeRule = Callable[[Sequence[Array | None]], Shape]
"""The shape of an output from the inputs of a run; raises ModelError where they are not legal."""


class Copy(enum.Enum):
    """The way in which an array of the caller and a tensor of the engine are copied."""

    BYTES = enum.auto()
    CONVERT = enum.auto()
    """Float16 to and from float32."""
    SHIFT = enum.auto()
    """The memory of an SVDF, which the engine shifts before a step and the HAL after it."""


class Feed(Struct, frozen=True, eq=False):
    """A tensor to be written before a run: from input `source`, or from a constant."""

    tensor: int
    source: int
    constant: Array | None = None
    copy: Copy = Copy.BYTES
    columns: int = 0
    """Entries of an SVDF's memory for each feature."""


class Fetch(Struct, frozen=True):
    """An output to be read after a run."""

    target: int
    tensor: int
    copy: Copy = Copy.BYTES
    columns: int = 0


class LiteRTProgram(Struct, frozen=True, eq=False):
    """A file, and what is written before and read after a run of it.

    With `delegated` XNNPACK runs what it can, otherwise LiteRT's own kernels run everything.
    """

    content: bytes
    feeds: tuple[Feed, ...]
    fetches: tuple[Fetch, ...]
    input_shapes: Shapes
    output_shapes: tuple[Shape, ...]
    delegated: bool = True
    shape_rules: tuple[ShapeRule | None, ...] = ()
    """Where values of the inputs give shapes of outputs: how, for each of these."""
    finds_shapes: bool = False
    """Whether only a run tells the shapes of outputs, and nothing before it."""
    resizes: tuple[tuple[int, Shape], ...] = ()
    """Inputs that have another shape than the file states."""

    @property
    def is_open(self) -> bool:
        """Returns whether outputs have different shapes from run to run."""
        return bool(self.shape_rules) or self.finds_shapes

    @property
    def reads_plainly(self) -> bool:
        """Returns whether every input becomes one tensor unchanged, and nothing else is written."""
        return all(feed.constant is None and feed.copy is Copy.BYTES for feed in self.feeds)
