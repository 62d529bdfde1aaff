"""The contract of a driver author: a synchronous `Engine`, of which a whole `Device` is made.

An engine says which operations it supports, compiles a model to a `Plan`, and binds a plan to
arrays; a `BoundCall` runs. It knows nothing of coroutines, fences, deadlines or threads:
`nnasync._core.engine_device` gives it all of them.

An engine may say what it spends time on: `with span(Phase.TRANSFORMATION, "pack the weights"):` is
in the traces of its runtime, and does nothing where nobody traces. One whose library computes
without the interpreter lock says so by `giving_way(library.run)`.
"""

from typing import TYPE_CHECKING

from nnasync._core.deferred import names
from nnasync._core.giving_way import giving_way as giving_way
from nnasync._core.workers import Given as Given
from nnasync._core.workers import StopFlag as StopFlag
from nnasync.device import Lowering as Lowering
from nnasync.engine.contract import BoundCall as BoundCall
from nnasync.engine.contract import CacheFiles as CacheFiles
from nnasync.engine.contract import CachingEngine as CachingEngine
from nnasync.engine.contract import Engine as Engine
from nnasync.engine.contract import EngineBase as EngineBase
from nnasync.engine.contract import LateFiles as LateFiles
from nnasync.engine.contract import LoweringEngine as LoweringEngine
from nnasync.engine.contract import OutputBuffer as OutputBuffer
from nnasync.engine.contract import Plan as Plan
from nnasync.engine.contract import Target as Target
from nnasync.engine.contract import deliver as deliver
from nnasync.engine.contract import fit as fit
from nnasync.engine.problems import problems as problems
from nnasync.tracing import Layer as Layer
from nnasync.tracing import Phase as Phase
from nnasync.tracing import span as span

if TYPE_CHECKING:
    from nnasync._core.model import fingerprint as fingerprint
    from nnasync._core.validation import operand_value as operand_value
    from nnasync._core.validation.reading import Argument as Argument
    from nnasync._core.validation.reading import arguments as arguments
    from nnasync._core.validation.reading import resolved as resolved

__all__ = [
    "Argument",
    "BoundCall",
    "CacheFiles",
    "CachingEngine",
    "Engine",
    "EngineBase",
    "Given",
    "LateFiles",
    "Layer",
    "Lowering",
    "LoweringEngine",
    "OutputBuffer",
    "Phase",
    "Plan",
    "StopFlag",
    "Target",
    "arguments",
    "deliver",
    "fingerprint",
    "fit",
    "giving_way",
    "operand_value",
    "problems",
    "resolved",
    "span",
]

__getattr__ = names(
    __name__,
    {
        "Argument": "nnasync._core.validation.reading",
        "arguments": "nnasync._core.validation.reading",
        "fingerprint": "nnasync._core.model",
        "operand_value": "nnasync._core.validation",
        "resolved": "nnasync._core.validation.reading",
    },
)
