"""A model as it is sent to another machine: its description, and its constants as values."""

from __future__ import annotations

from collections.abc import Sequence

from nnasync._core.wire.messages import OfferModel, PoolForm
from nnasync._core.wire.model_transfer import Offer, assembled
from nnasync.errors import GeneralFailure, ResourceExhausted
from nnasync.hal import Memory, Model
from nnasync.memory import Pool, mapped


class ValueOffer(Offer):
    """A model whose constants go with it as bytes; nothing is copied here."""

    def _add(self, pool: Memory) -> PoolForm:
        try:
            view = memoryview(mapped(pool, "the memory of constants")).cast("B")
        except (GeneralFailure, ResourceExhausted) as error:
            return PoolForm(pool.name, max(pool.size, 1), 0, False, None, str(error))
        self.fds.append(view)
        return PoolForm(pool.name, view.nbytes, 0, False)


def received_model(message: OfferModel, pools: Sequence[Pool]) -> Model:
    """Builds a model from values, one for each pool that the client could read.

    Raises InvalidArgument for what is no model. May block.
    """
    rest = list(pools)

    def constants_of(form: PoolForm) -> Pool:
        pool = rest.pop(0)
        pool.name = form.kind
        return pool

    return assembled(message, lambda _: rest.pop(0), constants_of)
