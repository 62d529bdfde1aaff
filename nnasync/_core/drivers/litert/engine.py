"""The LiteRT engine: which operations it takes, and models compiled to its files."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from nnasync import hal
from nnasync._core.deferred import deferred
from nnasync._core.drivers.litert.plan import LiteRTPlan, ModelFileSource
from nnasync._core.drivers.litert.session import PACKAGE, package
from nnasync._core.engine_packages import loading_ns
from nnasync._core.packages import version_of
from nnasync.engine import CacheFiles, EngineBase, Lowering, Phase, Plan, span
from nnasync.errors import BadState
from nnasync.hal import (
    Capabilities,
    DeviceType,
    ExecutionPreference,
    Extension,
    Model,
    OperandType,
    PerformanceInfo,
    is_quantized,
    uniform_performance,
)
from nnasync.hal.file_operands import FILE_OPERAND_TYPES

if TYPE_CHECKING:
    from nnasync._core.drivers.litert import caching, litert_programs
    from nnasync._core.drivers.litert import whole_file as wholes
else:
    caching = deferred("nnasync._core.drivers.litert.caching")
    wholes = deferred("nnasync._core.drivers.litert.whole_file")
    litert_programs = deferred("nnasync._core.drivers.litert.litert_programs")

_PRODUCTS, _DELEGATED, _OWN = "xnnpack-products", "xnnpack", "builtin"
_FILE_DELEGATED, _FILE_OWN = "file-xnnpack", "file-builtin"
_FIGURES = PerformanceInfo(exec_time=0.3, power_usage=0.3)
"""An estimate; `nnasync calibrate` measures it by type."""
_RATED = (
    OperandType.TENSOR_FLOAT32,
    OperandType.TENSOR_FLOAT16,
    OperandType.TENSOR_INT32,
    OperandType.TENSOR_BOOL8,
    OperandType.TENSOR_QUANT8_ASYMM,
    OperandType.TENSOR_QUANT8_ASYMM_SIGNED,
    OperandType.TENSOR_QUANT8_SYMM,
    OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL,
)
"""The types of first inputs that it takes."""


_BESIDE = "is beside a TFLite file that is kept whole: that is a run of its own"


class LiteRTEngine(EngineBase):
    """`litert-cpu`: LiteRT with XNNPACK on the processor; the least overhead of a call."""

    name = "litert-cpu"
    type = DeviceType.CPU
    extensions: tuple[Extension, ...] = (
        Extension("org.nnasync.litert", FILE_OPERAND_TYPES),
        Extension("org.nnasync.common"),
        Extension("org.nnasync.tflite"),
    )
    """Those of `nnasync.extensions`, by their names: a warm start does without that module."""
    concurrency = 0
    cache_files = (2, 0)
    loads_in_ms = 20.0
    tries_ahead = True
    """A run cannot be aborted, but every new interpreter is run once anyway."""

    capabilities = Capabilities(
        relaxed_float32_to_float16_performance_scalar=PerformanceInfo(),
        relaxed_float32_to_float16_performance_tensor=_FIGURES,
        operand_performance=uniform_performance(_FIGURES, _RATED),
        if_performance=PerformanceInfo(),
        while_performance=PerformanceInfo(),
    )

    def __init__(self) -> None:
        self.cores = 1

    @cached_property
    def version(self) -> str:
        """Version of the engine's package."""
        return version_of("ai-edge-litert") or "not installed"

    def loading_ns(self) -> int:
        """Returns how long importing the package took."""
        return loading_ns(PACKAGE)

    def get_ready(self) -> None:
        """Import the package, and make what plans are read with."""
        with span(Phase.INITIALIZATION, "import LiteRT"):
            package()
            caching.get_ready()

    def supported_operations(self, model: Model) -> list[bool]:
        """Returns whether each operation of the main subgraph can be lowered, or is a file."""
        return [reason is None for reason in self.why_not(model)]

    def why_not(self, model: Model) -> list[str | None]:
        """Returns for each operation of the main subgraph why it cannot be lowered.

        None if it can.
        """
        if wholes.is_whole(model):
            return [None]
        are_files = [wholes.is_part(model, each) for each in model.main.operations]
        if any(are_files):
            return [None if is_one else _BESIDE for is_one in are_files]
        return litert_programs.reasons(model)

    def lowerings(self, model: Model, preference: ExecutionPreference) -> Sequence[Lowering]:
        """With XNNPACK, and quantized models also with LiteRT's own kernels, which are exact.

        XNNPACK is tried on matrix products first, where operations can become those. A whole file
        has ways of its own, which compete with those of the operations that it becomes.
        """
        if wholes.is_whole(model):
            found = [Lowering(_FILE_DELEGATED, count) for count in self._threads(preference)]
            return [*found, Lowering(_FILE_OWN, 1, is_exact=True)]
        names = (_PRODUCTS, _DELEGATED) if litert_programs.has_products(model) else (_DELEGATED,)
        threads = self._threads(preference)
        found = [Lowering(name, count) for name in names for count in threads]
        if any(is_quantized(operand.type) for operand in model.main.operands):
            found.append(Lowering(_OWN, 1, is_exact=_is_integer(model)))
        return found

    def compile(
        self, model: Model, preference: ExecutionPreference, lowering: Lowering | None = None
    ) -> LiteRTPlan:
        """Lower and load a model.

        Raises ModelError that names an operation that is not supported, GeneralFailure with what
        LiteRT says of a file that it refuses.
        """
        way = lowering or self.lowerings(model, preference)[0]
        delegated = way.name not in (_OWN, _FILE_OWN)
        source: ModelFileSource
        if wholes.is_whole(model):
            source = wholes.WholeFile(model, delegated=delegated)
        else:
            source = litert_programs.LiteRTPrograms(
                model, delegated=delegated, products=way.name == _PRODUCTS
            )
        with span(Phase.COMPILATION, f"compile {model.name or 'model'} as {way.name}"):
            return LiteRTPlan(source, way.threads)

    def serialize(self, plan: Plan) -> CacheFiles:
        """The files of a plan; raises BadState where the shapes of its inputs may change."""
        if not isinstance(plan, LiteRTPlan):
            raise BadState(f"this plan is not one of {self.name}")
        return caching.pack(plan)

    def deserialize(self, files: CacheFiles, lowering: Lowering | None) -> LiteRTPlan:
        """The plan of its files, which must be unchanged: the engine trusts them.

        Raises GeneralFailure for files of another form.
        """
        return caching.unpack(files, None if lowering is None else lowering.threads)

    def _threads(self, preference: ExecutionPreference) -> Sequence[int]:
        if preference == ExecutionPreference.FAST_SINGLE_ANSWER and self.cores > 1:
            return (self.cores, 1)
        return (1,)


def _is_integer(model: Model) -> bool:
    """Returns whether nothing is computed in floating point, so that results are portable."""
    reals = (hal.OperandType.TENSOR_FLOAT32, hal.OperandType.TENSOR_FLOAT16)
    return not any(operand.type in reals for operand in model.main.operands)
