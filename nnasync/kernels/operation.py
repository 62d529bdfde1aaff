"""The form every operation takes: signatures as data, a shape rule, kernels bound to memory.

An `Operation` answers three questions. *Is it legal?* Its `signatures` list every combination of
operand types and ranks with the HAL version that introduced it. *What comes out?* `infer` gives
type, shape and, where the rule fixes or inherits it, quantization of the outputs. *How is it
computed?* `prepare` packs constants into a `Kernel`, and `Kernel.bind` ties that to arrays and
scratch memory and returns a `Step`, a function without arguments that allocates nothing.

What a family file writes is a rule and a compute function over `Arguments`. This file adds what all
share: an operand whose value is needed but only known when the network runs makes `infer` answer
"unknown" and `prepare` fall back to preparing at each run; `specialize` also finds the shapes that
depend on such values, for whoever has them; empty tensors are refused or need no work; float16 is
computed in float32 unless it is only moved; numbers that overflow, as scales of a hostile model do,
warn nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any

import msgspec
import numpy as np

from nnasync import hal
from nnasync.errors import ModelError
from nnasync.hal import Array, HalVersion, is_quantized
from nnasync.kernels.arguments import Arguments, NotConstant
from nnasync.kernels.facts import RELAXED, Facts
from nnasync.kernels.halves import any_half, half_kernel
from nnasync.kernels.kernel import Kernel, Step, bind_nothing
from nnasync.kernels.signature import Parameter, Signature, mismatch
from nnasync.kernels.tensor import ArraySpec, Tensor, quantized_range

__all__ = [
    "MEMORY_BYTES",
    "ArraySpec",
    "Arguments",
    "Compute",
    "Kernel",
    "NotConstant",
    "Operation",
    "Parameter",
    "Rule",
    "Signature",
    "Step",
    "Tensor",
    "quantized_range",
]

MEMORY_BYTES: ContextVar[int] = ContextVar("MEMORY_BYTES", default=1 << 32)
"""How much memory there is for the outputs of an operation that is prepared, and for scratch that a
step needs but could not be planned. Whoever prepares or runs sets it.
"""

_MAX_RANK = 64
"""Most dimensions that a numpy array can have."""

Rule = Callable[[Arguments], list[Tensor]]
Compute = Callable[[Arguments, Sequence[Tensor]], Kernel]
Requires = Callable[[Arguments, Sequence[Tensor]], HalVersion]


class Operation:
    """One operation of the HAL or of an extension: signatures, shape rule and computation.

    `empty` says that inputs without elements are legal, `moves` that values are only moved or
    converted, so that float16 stays as it is. `requires` gives the HAL version that the
    quantization of the operands needs beyond their types, or raises ModelError if none allows it.
    `facts` are for others than the kernel.
    """

    __slots__ = (
        "_compute",
        "_requires",
        "_rule",
        "empty",
        "facts",
        "moves",
        "name",
        "signatures",
        "type",
    )

    def __init__(
        self,
        type: int,
        signatures: Sequence[Signature],
        rule: Rule,
        compute: Compute,
        *,
        name: str = "",
        empty: bool = False,
        moves: bool = False,
        requires: Requires | None = None,
        facts: Facts = RELAXED,
    ) -> None:
        self.type = type
        self.name = name or hal.operation_name(type)
        self.signatures = tuple(signatures)
        self.empty = empty
        self.moves = moves
        self.facts = facts
        self._rule = rule
        self._compute = compute
        self._requires = requires

    @property
    def since(self) -> HalVersion:
        """The HAL version that introduced the operation."""
        return min(signature.since for signature in self.signatures)

    def signature(self, inputs: Sequence[int | None], outputs: Sequence[int] = ()) -> Signature:
        """The signature of these operand types; None stands for an omitted operand.

        Without `outputs` it is the first that fits the inputs. Raises ModelError when none does.
        """
        for signature in self.signatures:
            if signature.accepts(inputs, outputs):
                return signature
        raise ModelError(f"{self.name}: {mismatch(self.signatures, inputs, outputs)}")

    def arguments(
        self, inputs: Sequence[Tensor | None], output_types: Sequence[int] = ()
    ) -> Arguments:
        """The inputs, to be read by the signature of their types and known ranks; or ModelError."""
        return self._arguments(inputs, self._signature(inputs, output_types))

    @np.errstate(all="ignore")
    def minimum_version(
        self, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]
    ) -> HalVersion:
        """The first HAL version in which the operation is legal with these operands.

        Types, known ranks and quantization count, values do not. Raises ModelError if none is.
        """
        signature = self._signature(inputs, [tensor.type for tensor in outputs])
        if self._requires is None:
            return signature.since
        arguments = self._arguments(inputs, signature)
        return max(signature.since, self._requires(arguments, outputs))

    @np.errstate(all="ignore")
    def infer(
        self, inputs: Sequence[Tensor | None], output_types: Sequence[int] = ()
    ) -> list[Tensor]:
        """Returns the outputs' tensors for these inputs.

        Shape () stands for "not known yet": a dimension or a needed value of an input is not known.
        Scale and zero point stay 0 where the rule leaves them to the caller. `output_types` chooses
        where the inputs leave a choice. Raises ModelError that names the argument at fault.
        """
        signature = self._signature(inputs, output_types)
        count = len(output_types)
        try:
            if all(tensor is None or tensor.is_known for tensor in inputs):
                return self._results(self._arguments(inputs, signature), count or None)
        except NotConstant:
            pass
        parameters = signature.results(count) or signature.outputs
        return [Tensor(type=parameter.type) for parameter in parameters]

    def prepare(self, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]) -> Kernel:
        """Checks all operands, packs the constants and returns the kernel.

        All shapes must be known. Raises ModelError that names the argument at fault.
        """
        _require_known(f"{self.name}: input", inputs)
        _require_known(f"{self.name}: output", outputs)
        try:
            return self.specialize(inputs, outputs)[1]
        except NotConstant:
            return _late_kernel(self, inputs, outputs)

    @np.errstate(all="ignore")
    def specialize(
        self, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]
    ) -> tuple[list[Tensor], Kernel]:
        """The outputs as they will be, and the kernel; shapes of outputs need not be known.

        Raises NotConstant where a shape depends on a value that is not given, and ModelError that
        names the argument at fault.
        """
        _require_known(f"{self.name}: input", inputs)
        signature = self._signature(inputs, [tensor.type for tensor in outputs])
        if not self.moves and any_half(*inputs, *outputs):
            return half_kernel(self.specialize, inputs, outputs)
        arguments = self._arguments(inputs, signature)
        rules = self._results(arguments, len(outputs))
        results = [
            _resolved(f"{self.name}: output {index}", given, rule)
            for index, (given, rule) in enumerate(zip(outputs, rules, strict=True))
        ]
        if not any(tensor.size for tensor in results):
            return results, Kernel(bind_nothing)
        sizes = [tensor.size * tensor.dtype.itemsize for tensor in results]
        _check_memory(f"{self.name}: its outputs", sizes)
        try:
            return results, _without_empty(inputs, arguments, self._compute(arguments, results))
        except NotConstant:
            return results, _late_kernel(self, inputs, results)

    def _signature(self, inputs: Sequence[Tensor | None], output_types: Sequence[int]) -> Signature:
        """The signature of these operands, by types and known ranks."""
        types = [None if tensor is None else tensor.type for tensor in inputs]
        shapes = [None if tensor is None else tensor.shape for tensor in inputs]
        first = self.signature(types, output_types)
        if first.takes_ranks(shapes):
            return first
        for signature in self.signatures:
            if signature.accepts(types, output_types) and signature.takes_ranks(shapes):
                return signature
        index = first.rank_fault(shapes) or 0
        parameter = (first.parameters(len(types)) or ())[index]
        ranks = " or ".join(str(rank) for rank in parameter.ranks)
        raise ModelError(
            f"{self.name}: input {index} ({parameter.name}): has shape {shapes[index]}, expected"
            f" rank {ranks}"
        )

    def _arguments(self, inputs: Sequence[Tensor | None], signature: Signature) -> Arguments:
        """The arguments; an optional tensor without elements counts as omitted."""
        given = [
            None if parameter.optional and _is_empty(tensor) else tensor
            for tensor, parameter in zip(
                inputs, signature.parameters(len(inputs)) or (), strict=True
            )
        ]
        return Arguments(self.name, given, signature)

    def _results(self, arguments: Arguments, count: int | None) -> list[Tensor]:
        """Returns the rule's result for `count` outputs; NotConstant where it needs a value."""
        for index, tensor in enumerate(arguments.inputs):
            if tensor is not None and 0 in tensor.shape and not self.empty:
                raise arguments.error(index, f"has shape {tensor.shape}, which has no elements")
        results = self._rule(arguments)
        if count is not None and count != len(results):
            raise arguments.fail(f"has {count} outputs, expected {len(results)}")
        for index, result in enumerate(results):
            nbytes = hal.byte_size(result.type, result.shape)
            if nbytes > hal.MAX_TENSOR_BYTES or result.rank > _MAX_RANK:
                raise arguments.fail(f"output {index} would have shape {result.shape}: too large")
        return [
            msgspec.structs.replace(result, exact=True) if 0 in result.shape else result
            for result in results
        ]


def _is_empty(tensor: Tensor | None) -> bool:
    return tensor is not None and 0 in tensor.shape and tensor.is_known


def _without_empty(inputs: Sequence[Tensor | None], arguments: Arguments, kernel: Kernel) -> Kernel:
    """A kernel that gets None for the optional tensors that count as omitted."""
    omitted = [
        index for index, tensor in enumerate(inputs) if tensor is not arguments.inputs[index]
    ]
    if not omitted:
        return kernel

    def bind(inputs: Sequence[Any], outputs: Sequence[Array], scratch: Sequence[Array]) -> Step:
        given = [None if index in omitted else array for index, array in enumerate(inputs)]
        return kernel.bind(given, outputs, scratch)

    return Kernel(bind, kernel.scratch, view_of=kernel.view_of)


def _require_known(kind: str, tensors: Sequence[Tensor | None]) -> None:
    for index, tensor in enumerate(tensors):
        if tensor is not None and not tensor.is_known:
            raise ModelError(f"{kind} {index}: shape {tensor.shape} is not known")


def _check_memory(what: str, sizes: Sequence[int]) -> None:
    nbytes, limit = sum(sizes), MEMORY_BYTES.get()
    if nbytes > limit:
        raise ModelError(f"{what} would take {nbytes} bytes of memory, of at most {limit}")


def _resolved(where: str, given: Tensor, rule: Tensor) -> Tensor:
    """An output as declared, with the shape that the rule says; ModelError if they differ."""
    fits = given.shape == rule.shape or (
        not given.exact and hal.has_dimensions(rule.shape, given.shape)
    )
    if not fits:
        raise ModelError(f"{where}: has shape {given.shape}, expected {rule.shape}")
    if is_quantized(given.type) and not given.scale > 0:
        raise ModelError(f"{where}: has scale {given.scale}, expected a positive one")
    if rule.scale and (given.scale, given.zero_point) != (rule.scale, rule.zero_point):
        raise ModelError(
            f"{where}: has scale {given.scale} and zero point {given.zero_point}, expected"
            f" {rule.scale} and {rule.zero_point}"
        )
    return msgspec.structs.replace(given, shape=rule.shape, value=None, exact=True)


def _late_kernel(
    operation: Operation, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]
) -> Kernel:
    """A kernel for operands, such as weights, that are only known at each run: it prepares then."""
    tensors, targets = tuple(inputs), tuple(outputs)

    def bind(inputs: Sequence[Any], outputs: Sequence[Array], scratch: Sequence[Array]) -> Step:
        def step() -> None:
            known = [
                None if tensor is None else msgspec.structs.replace(tensor, value=array)
                for tensor, array in zip(tensors, inputs, strict=True)
            ]
            kernel = operation.prepare(known, targets)
            _check_memory(f"{operation.name}: its scratch", [s.nbytes for s in kernel.scratch])
            temporary = [np.empty(spec.shape, spec.dtype) for spec in kernel.scratch]
            kernel.bind(inputs, outputs, temporary)()

        return step

    return Kernel(bind)
