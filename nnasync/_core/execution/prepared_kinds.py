"""What a prepared model can do beside the contract, found out from its class.

Python looks through all methods of a protocol whenever an object is held to it, which takes longer
than much of what a compilation does; for a class the answer is remembered.
"""

from __future__ import annotations

from typing import TypeGuard

from nnasync.device import InlinePreparedModel, PreparedModel, QuickPreparedModel


def is_inline(prepared: PreparedModel) -> TypeGuard[InlinePreparedModel]:
    """Returns whether a prepared model is in this process, and may run on its caller's thread."""
    return issubclass(type(prepared), InlinePreparedModel)


def is_quick(prepared: PreparedModel) -> TypeGuard[QuickPreparedModel]:
    """Returns whether a prepared model can run one request repeatedly at the least cost."""
    return issubclass(type(prepared), QuickPreparedModel)
