"""The prepared model of the last input, for a next one that leaves the model as it is.

To prepare takes longer than many a request. A model that serves several inputs is besides what
applications have: what one request leaves behind is there for the next.
"""

from __future__ import annotations

from nnasync.device import PreparedModel
from nnasync.hal import Model

__all__ = ["KeptModel"]


class KeptModel:
    """At most one prepared model; `take` gives it away, `keep` brings it back."""

    def __init__(self) -> None:
        self._model: Model | None = None
        self._prepared: PreparedModel | None = None

    async def take(self, model: Model) -> PreparedModel | None:
        """The prepared model, if it is of this model; one of another model is closed.

        Raises what closing raises.
        """
        prepared, is_same = self._prepared, self._model is model
        self.forget()
        if prepared is None or is_same:
            return prepared
        await prepared.close()
        return None

    def keep(self, model: Model, prepared: PreparedModel) -> None:
        """Hold a prepared model until the next input."""
        self._model, self._prepared = model, prepared

    def forget(self) -> None:
        """Have none any more: its device died, or somebody else closes it."""
        self._model = self._prepared = None

    async def close(self) -> None:
        """Close what is held. Raises what closing raises."""
        prepared = self._prepared
        self.forget()
        if prepared is not None:
            await prepared.close()
