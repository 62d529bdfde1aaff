"""Models: built by hand with `ModelBuilder`, kept in `.nnm` files, told apart by `fingerprint`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nnasync._core.deferred import names

if TYPE_CHECKING:
    from nnasync._core.model.builder import ModelBuilder as ModelBuilder
    from nnasync._core.model.graph import Value as Value
    from nnasync._core.model.nnm import fingerprint as fingerprint
    from nnasync._core.model.nnm import load_nnm as load_nnm
    from nnasync._core.model.nnm import save as save
    from nnasync._core.model.nnm import write as write

__getattr__ = names(
    __name__,
    {
        "ModelBuilder": "builder",
        "Value": "graph",
        "fingerprint": "nnm",
        "load_nnm": "nnm",
        "save": "nnm",
        "write": "nnm",
    },
)
