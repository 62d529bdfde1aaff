"""A prepared model with driver-managed buffers of it, for the checks of memory domains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Self

import msgspec
import numpy as np

from nnasync import hal
from nnasync._core.model import ModelBuilder
from nnasync.conformance.cases import Case
from nnasync.conformance.hal_suite.check import Skipped
from nnasync.conformance.hal_suite.fixture import Bench
from nnasync.conformance.hal_suite.subjects import case_of
from nnasync.conformance.paths import CaseBuffers, Path, execute
from nnasync.conformance.trial import Fault, error_text
from nnasync.device import Buffer, Device, PreparedModel
from nnasync.errors import BadState, GeneralFailure, ResourceExhausted
from nnasync.hal import (
    Array,
    BufferDesc,
    BufferRole,
    DataLocation,
    ExecutionResult,
    OperandType,
    OperationType,
    Request,
    RequestArgument,
    Shape,
    Struct,
)
from nnasync.kernels import Tensor
from nnasync.memory import Pool

SHAPE = (2, 3)


class TensorForm(Struct, frozen=True):
    """What tensors of the small models are like."""

    name: str
    type: OperandType
    scale: float = 0.0
    zero_point: int = 0
    shape: Shape = SHAPE

    @property
    def value(self) -> Array:
        """A tensor of it, of the first dimensions that it allows."""
        shape = tuple(known or n for known, n in zip(self.shape, SHAPE, strict=True))
        numbers = np.arange(int(np.prod(shape))).reshape(shape) + 1
        return numbers.astype(hal.dtype_of(self.type))

    def sum(self) -> Case:
        """y = a + b."""
        m = ModelBuilder(f"sum of {self.name}")
        a, b = (
            m.input(name, self.shape, type=self.type, scale=self.scale, zero_point=self.zero_point)
            for name in "ab"
        )
        tensor = Tensor(
            type=self.type, shape=self.shape, scale=self.scale, zero_point=self.zero_point
        )
        m.output("y", m.operation(OperationType.ADD, a, b, 0, output=tensor))
        return case_of(m.build(), [self.value, self.value], shapes=[self.value.shape])

    def like(self, **changes: object) -> TensorForm:
        """Another form that differs from this one so far."""
        changed: TensorForm = msgspec.structs.replace(self, **changes)
        return changed


FORMS = (
    TensorForm("float32", OperandType.TENSOR_FLOAT32),
    TensorForm("quant8", OperandType.TENSOR_QUANT8_ASYMM, 0.5, 0),
)


def two_outputs() -> Case:
    """y = a + b and z = a * b."""
    m = ModelBuilder("sum and product")
    a, b = m.input("a", SHAPE), m.input("b", SHAPE)
    m.output("y", m.add(a, b))
    m.output("z", m.mul(a, b))
    value = FORMS[0].value
    return case_of(m.build(), [value, value])


def pool_of(value: Array) -> Pool:
    """Memory of exactly the size of an array, which it holds."""
    pool = Pool.allocate(value.nbytes)
    pool.array(value.dtype, value.shape)[...] = value
    return pool


class Domain:
    """A case on the device for one check; closes what the check has allocated.

    The checks of a case share the prepared model that the bench keeps of it.
    """

    def __init__(self, bench: Bench, case: Case) -> None:
        self.bench = bench
        self.case = case
        self.memory = CaseBuffers(case)
        self._buffers: list[Buffer] = []
        self._shared: PreparedModel | None = None
        self._others: list[PreparedModel] = []

    async def __aenter__(self) -> Self:
        self._shared = await self.bench.prepared(self.case)
        return self

    async def __aexit__(self, *exception: object) -> None:
        for buffer in self._buffers:
            await buffer.close()
        for prepared in self._others:
            await prepared.close()
        self.memory.close()

    @property
    def device(self) -> Device:
        """The device under test."""
        return self.bench.device

    @property
    def prepared(self) -> PreparedModel:
        """The case, prepared; raises BadState outside of the block."""
        if self._shared is None:
            raise BadState("a case on the device is prepared by `async with`")
        return self._shared

    async def prepare(self, case: Case) -> PreparedModel:
        """Another prepared model, closed at the end."""
        self._others.append(await self.device.prepare_model(case.model))
        return self._others[-1]

    async def allocate(
        self, *, inputs: Sequence[int] = (), outputs: Sequence[int] = (), dimensions: Shape = ()
    ) -> Buffer:
        """A buffer for these inputs and outputs; raises Skipped where the device has none."""
        roles = [BufferRole(0, index) for index in inputs]
        written = [BufferRole(0, index) for index in outputs]
        try:
            buffer = await self.device.allocate(
                BufferDesc(dimensions), [self.prepared], roles, written
            )
        except (GeneralFailure, ResourceExhausted) as error:
            raise Skipped(f"the device allocates no such buffer: {error_text(error)}") from error
        self._buffers.append(buffer)
        if buffer.token < 1:
            raise Fault(f"a token must be above 0, not {buffer.token}")
        return buffer

    def request(
        self,
        *,
        inputs: Mapping[int, int] | None = None,
        outputs: Mapping[int, int] | None = None,
        input_dimensions: Shape = (),
        output_dimensions: Shape = (),
    ) -> Request:
        """The request of the case, with tokens for some of its arguments, by their positions."""
        request = self.memory.request()
        pools = list(request.pools)
        changed = {}
        for kind, tokens, dimensions in (
            ("inputs", inputs or {}, input_dimensions),
            ("outputs", outputs or {}, output_dimensions),
        ):
            arguments = list(getattr(request, kind))
            for position, token in tokens.items():
                location = DataLocation(len(pools), 0, 0)
                arguments[position] = RequestArgument(location=location, dimensions=dimensions)
                pools.append(token)
            changed[kind] = tuple(arguments)
        return Request(changed["inputs"], changed["outputs"], tuple(pools))

    async def execute(
        self, path: Path, request: Request, prepared: PreparedModel | None = None
    ) -> ExecutionResult:
        """Execute on a path; raises what the device does."""
        return await execute(path, prepared or self.prepared, request)

    async def fill(self, buffer: Buffer, value: Array) -> None:
        """Copy a value into a buffer."""
        with pool_of(value) as pool:
            await buffer.copy_from(pool, value.shape)

    async def contents(self, buffer: Buffer, like: Array) -> Array:
        """Returns the contents of a buffer, as an array like another one."""
        with Pool.allocate(like.nbytes) as pool:
            await buffer.copy_to(pool)
            return pool.array(like.dtype, like.shape).copy()
