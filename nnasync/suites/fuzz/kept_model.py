"""The prepared model of the last input, for a next one of the same model.

To prepare takes longer than many a request. A model that serves several inputs is besides what
applications have: what one request leaves behind is there for the next.
"""

from __future__ import annotations

from nnasync.device import PreparedModel
from nnasync.hal import Model
from nnasync.suites.fuzz.samples import FuzzSample

__all__ = ["KeptModel"]

Subject = Model | bytes
"""What inputs have in common: a model, or the file of one; that very object."""
Kept = tuple[FuzzSample, PreparedModel]


class KeptModel:
    """At most one prepared model; `take` gives it away, `keep` brings it back."""

    def __init__(self) -> None:
        self._subject: Subject | None = None
        self._kept: Kept | None = None

    def is_of(self, subject: Subject) -> bool:
        """Returns whether what is held is of this subject."""
        return self._kept is not None and self._subject is subject

    async def take(self, subject: Subject) -> Kept | None:
        """The prepared model, if it is of this subject; one of another is closed.

        Raises what closing raises.
        """
        kept, is_same = self._kept, self.is_of(subject)
        self.forget()
        if kept is None or is_same:
            return kept
        await kept[1].close()
        return None

    def keep(self, subject: Subject, sample: FuzzSample, prepared: PreparedModel) -> None:
        """Hold a prepared model until the next input."""
        self._subject, self._kept = subject, (sample, prepared)

    def forget(self) -> None:
        """Have none any more: its device died, or somebody else closes it."""
        self._subject = self._kept = None

    async def close(self) -> None:
        """Close what is held. Raises what closing raises."""
        kept = self._kept
        self.forget()
        if kept is not None:
            await kept[1].close()
