"""What a fuzzing process is told, and what it says, as lines of JSON.

Of the inputs of a `Stretch` only those are told that end badly; how far the process is, and how the
others ended, is on its `Board`.
"""

from __future__ import annotations

import msgspec

from nnasync.suites.fuzz.inputs import FuzzKind, Recipe
from nnasync.suites.fuzz.verdicts import InputResult

MAX_LINE_BYTES = 64 << 20


class Setting(msgspec.Struct, frozen=True):
    """Where inputs are tried: the first line of all but the descriptor of the board.

    device: its name, or module:factory. isolate: it runs in a process of its own. corpus: folder of
    files to begin with besides the own ones. memory_bytes: what one input may take. is_sanitized:
    the engine is built with a sanitizer, whose address space knows no limit.
    """

    device: str
    isolate: bool = False
    corpus: str | None = None
    memory_bytes: int = 2 << 30
    is_sanitized: bool = False


class Stretch(msgspec.Struct, frozen=True, tag="stretch"):
    """Numbered inputs of a seed, one after the other."""

    seed: int
    kind: FuzzKind
    start: int
    stop: int


class Single(msgspec.Struct, frozen=True, tag="single"):
    """One input by its recipe, or by its number: then its recipe is told before it is tried."""

    recipe: Recipe | None = None
    seed: int = 0
    kind: FuzzKind = FuzzKind.MODELS
    number: int = 0
    part: int = 0


class Guided(msgspec.Struct, frozen=True, tag="guided"):
    """So many inputs of a kind, chosen by what code they reach; the last task of a process."""

    kind: FuzzKind
    runs: int
    seed: int


Task = Stretch | Single | Guided


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The device is open."""

    device: str


class Begun(msgspec.Struct, frozen=True, tag="begun"):
    """An input begins; `recipe` and `digest` where it is one that may not come back."""

    number: int
    part: int = 0
    recipe: Recipe | None = None
    digest: str = ""


class Done(msgspec.Struct, frozen=True, tag="done"):
    """What came of the input that began last; of a stretch only those are told that are broken."""

    number: int
    result: InputResult
    part: int = 0


class TaskEnded(msgspec.Struct, frozen=True, tag="ended"):
    """A task is over; `grown_bytes` is what the process has grown by in it."""

    grown_bytes: int = 0


class Unfit(msgspec.Struct, frozen=True, tag="unfit"):
    """Nothing can be tried, for this reason."""

    reason: str


Said = Ready | Begun | Done | TaskEnded | Unfit
