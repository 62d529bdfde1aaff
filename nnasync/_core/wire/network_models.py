"""A model as it is sent to another machine: its description, and its constants as values."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from nnasync._core.model.description import ModelDescription
from nnasync._core.wire.messages import OfferModel, PoolForm, decode
from nnasync._core.wire.model_transfer import Offer
from nnasync.errors import GeneralFailure, InvalidArgument, ResourceExhausted
from nnasync.hal import Memory, Model
from nnasync.memory import Pool, Unusable, mapped


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
    """The model that came with these values, one for each pool that the client could read.

    Raises InvalidArgument for what is no model. May block.
    """
    try:
        form: ModelDescription = decode(message.form, ModelDescription)
    except GeneralFailure as error:
        raise InvalidArgument(f"no legal model: {error}") from error
    rest = list(pools)
    values = message.values
    if isinstance(values, PoolForm):
        if values.refusal:
            raise InvalidArgument(f"no legal model: its operand values: {values.refusal}")
        values = bytes(rest.pop(0).view)
    constants: list[Memory] = []
    for each in message.pools:
        if each.refusal:
            constants.append(Unusable(each.kind, each.size, each.refusal))
        else:
            pool = rest.pop(0)
            pool.name = each.kind
            constants.append(pool)
    return msgspec.structs.replace(form, operand_values=values).model(tuple(constants))
