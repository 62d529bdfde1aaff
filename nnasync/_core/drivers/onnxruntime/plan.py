"""A session as a plan: which operand is which input or output of its graph, and bound calls."""

from __future__ import annotations

import ctypes
import math
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nnasync import hal
from nnasync._core.drivers.onnxruntime.bound_call import Move, OnnxCall, OwnOutputs, narrowed
from nnasync._core.drivers.onnxruntime.providers import package
from nnasync._core.formats.onnx import Element, element_of
from nnasync.engine import OutputBuffer, Plan, Target, deliver
from nnasync.errors import GeneralFailure, InvalidArgument
from nnasync.hal import Array, Shape, Struct

_WARM_RUNS = 2
_MOST_WARM_S = 5.0
"""A warm-up that takes longer is terminated."""


class SessionPort(Struct, frozen=True):
    """An input or output of a session; `rank` is None where its shape says nothing.

    ONNX Runtime tells a rank of 0 and an unknown one alike: both are None here.
    """

    name: str
    element: Element
    shape: tuple[int | None, ...]

    @property
    def rank(self) -> int | None:
        """The number of dimensions, if that is known to be above 0."""
        return len(self.shape) or None

    @property
    def is_settled(self) -> bool:
        """Returns whether the shape is known."""
        return bool(self.shape) and None not in self.shape


def ports_of(nodes: Sequence[Any], kind: str) -> list[SessionPort]:
    """Returns the inputs or outputs of a session.

    Raises GeneralFailure for a type that nobody takes, and for a name that is no text.
    """
    try:
        return [_port(node, kind) for node in nodes]
    except UnicodeDecodeError as error:
        raise GeneralFailure(f"the name of an {kind} is no UTF-8: {error}") from error


def _port(node: Any, kind: str) -> SessionPort:
    element = element_of(node.type)
    if element is None:
        raise GeneralFailure(f'{kind} "{node.name}" is {node.type}, which no operand can hold')
    shape = tuple(n if isinstance(n, int) else None for n in node.shape)
    return SessionPort(node.name, element, shape)


class OnnxPlan(Plan):
    """A session and the operands around it; any number of its calls may run at once.

    `sources` says for each input of the session which input of the model it is, or the constant,
    `outputs` for each output of the model which one of the session it is. With `needs_numbers`
    the engine is not given inputs without elements: it would end the process.
    """

    def __init__(
        self,
        session: Any,
        sources: Sequence[int | Array],
        outputs: Sequence[int],
        *,
        needs_numbers: bool = False,
    ) -> None:
        self._session = session
        self._inputs = ports_of(session.get_inputs(), "input")
        ports = ports_of(session.get_outputs(), "output")
        self._outputs = [ports[index] for index in outputs]
        self._sources = tuple(sources)
        self._needs_numbers = needs_numbers
        if len(self._inputs) != len(self._sources):
            raise GeneralFailure(
                f"the graph has {len(self._inputs)} inputs, the operation gives it {len(sources)}"
            )

    def bind(self, inputs: Sequence[Array | None], outputs: Sequence[Target]) -> OnnxCall:
        """A call on C-contiguous arrays.

        Raises InvalidArgument for an omitted input, or one whose shape or type the graph refuses,
        or of which the engine would end the process.
        """
        binding = self._session.io_binding()
        before, after, kept = self._bind_inputs(binding, inputs), list[Move](), list[object]()
        finish = self._bind_outputs(binding, outputs, after)
        kept += [inputs, outputs, before, after, self._sources]
        return OnnxCall(
            self._session,
            binding,
            package().RunOptions(),
            before=before,
            after=after,
            finish=finish,
            kept=kept,
        )

    def trim(self) -> None:
        """ONNX Runtime keeps its arena as long as the session lives."""

    def warm_up(self) -> None:
        """Run, if all shapes are known, so that the first execution is as fast as others.

        The first run finds out how memory is used, the second uses it so. A loop that zeros never
        end is given up after a while.
        """
        if not all(port.is_settled for port in self._inputs):
            return
        if self._needs_numbers and any(0 in port.shape for port in self._inputs):
            return
        binding = self._session.io_binding()
        zeros = [np.zeros([n or 0 for n in p.shape], p.element.dtype) for p in self._inputs]
        for port, array in zip(self._inputs, zeros, strict=True):  # A binding keeps no array.
            binding.bind_input(*_place(port, array.shape, array))
        for port in self._outputs:
            binding.bind_output(port.name, "cpu")
        options = package().RunOptions()
        limit = threading.Timer(_MOST_WARM_S, setattr, (options, "terminate", True))
        limit.start()
        try:
            for _ in range(_WARM_RUNS):
                self._session.run_with_iobinding(binding, options)
        except Exception:  # what zeros cannot do, the caller's numbers may
            return
        finally:
            limit.cancel()
            limit.join()

    def _bind_inputs(self, binding: Any, inputs: Sequence[Array | None]) -> list[Move]:
        """Binds the inputs; returns the copies to make before each run."""
        moves: list[Move] = []
        for port, source in zip(self._inputs, self._sources, strict=True):
            array = inputs[source] if isinstance(source, int) else source
            if array is None:
                raise InvalidArgument(f'input "{port.name}" of the graph cannot be omitted')
            if self._needs_numbers and not array.size:
                raise InvalidArgument(
                    f'input "{port.name}" of shape {list(array.shape)} has no elements, of which'
                    " ONNX Runtime computes no InstanceNormalization"
                )
            if array.dtype != port.element.dtype or not _is_bindable(array):
                _check_type(port, array.dtype, f'input "{port.name}"', "takes")
                staged = np.empty(array.shape, port.element.dtype)
                moves.append((staged, array))
                array = staged
            binding.bind_input(*_place(port, _inner_shape(port, array), array))
        return moves

    def _bind_outputs(
        self, binding: Any, outputs: Sequence[Target], moves: list[Move]
    ) -> Callable[[], None] | None:
        """Binds the outputs; returns what delivers them if ONNX Runtime has to allocate one."""
        if len(outputs) != len(self._outputs):
            raise InvalidArgument(f"{len(outputs)} outputs given, expected {len(self._outputs)}")
        for port, output in zip(self._outputs, outputs, strict=True):
            _check_type(port, output.dtype, f'output "{port.name}"', "gives")
        if not all(isinstance(output, np.ndarray) for output in outputs) or any(
            port.rank is None for port in self._outputs
        ):
            return _Delivery(binding, self._outputs, outputs).bound()
        for port, output in zip(self._outputs, outputs, strict=True):
            array = output
            if isinstance(array, OutputBuffer):
                continue
            if array.dtype != port.element.dtype or not _is_bindable(array):
                array = np.empty(array.shape, port.element.dtype)
                moves.append((output, array))  # type: ignore[arg-type]
            binding.bind_output(*_place(port, _inner_shape(port, array), array))
        return None


class _Delivery:
    """Outputs that ONNX Runtime allocates in each run, and their way to the caller's memory."""

    def __init__(
        self, binding: Any, ports: Sequence[SessionPort], outputs: Sequence[Target]
    ) -> None:
        self._own = OwnOutputs(binding, [port.name for port in ports])
        self._ports = tuple(ports)
        self._outputs = tuple(outputs)
        self._checked: list[Shape | None] = [None] * len(self._outputs)
        """The shapes of the last results, which fit."""

    def bound(self) -> _Delivery:
        """This, with outputs bound for a run: what the last run allocated would be used again."""
        self._own.bind()
        return self

    def __call__(self) -> None:
        results, checked = self._own.values(), self._checked
        for number, (port, output) in enumerate(zip(self._ports, self._outputs, strict=True)):
            array = narrowed(_values(results[number], port), output.dtype)
            if array.shape != checked[number]:
                array = _outer(array, output)
                checked[number] = array.shape
            results[number] = array
        self._own.bind()
        deliver(self._outputs, results)


def _outer(array: Array, output: Target) -> Array:
    """A result in a shape that the HAL has.

    Where a file leaves an output open, and states another rank than its results have, ONNX Runtime
    believes the results, and so do we.
    """
    if not array.shape:
        array = array.reshape((1,))
    expected = output.dimensions if isinstance(output, OutputBuffer) else output.shape
    has_another_rank = 0 in expected and len(array.shape) != len(expected)
    if not has_another_rank and not hal.has_dimensions(array.shape, expected):
        raise GeneralFailure(f"a result has shape {list(array.shape)}, expected {list(expected)}")
    return array


def _check_type(port: SessionPort, dtype: np.dtype[Any], who: str, verb: str) -> None:
    """Raise InvalidArgument unless values are of a port's type, or as the HAL has them."""
    held = port.element.operand
    legal = [port.element.dtype] if held is None else [port.element.dtype, hal.dtype_of(held)]
    if dtype not in legal:
        raise InvalidArgument(f"{who} is {dtype}, the graph {verb} {legal[-1]}")


def _values(value: Any, port: SessionPort) -> Array:
    """Returns an output that ONNX Runtime allocated; types unknown to numpy are no arrays there."""
    dtype = port.element.dtype
    if dtype.isbuiltin == 1:
        array: Array = value.numpy()
        return array
    shape = value.shape()
    memory = (ctypes.c_char * (math.prod(shape) * dtype.itemsize)).from_address(value.data_ptr())
    return np.frombuffer(bytes(memory), dtype).reshape(shape)


def _is_bindable(array: Array) -> bool:
    return bool(array.flags.aligned and array.flags.c_contiguous and array.size)


def _inner_shape(port: SessionPort, array: Array) -> Shape:
    """The shape that the graph sees; raises InvalidArgument where it contradicts the graph's."""
    if port.rank is None:
        return () if math.prod(array.shape) == 1 and array.ndim == 1 else array.shape
    fits = len(array.shape) == port.rank and all(
        b is None or a == b for a, b in zip(array.shape, port.shape, strict=True)
    )
    if not fits:
        wanted = ", ".join("?" if n is None else str(n) for n in port.shape)
        raise InvalidArgument(f'"{port.name}" has shape {list(array.shape)}, not [{wanted}]')
    return array.shape


def _place(port: SessionPort, shape: Shape, array: Array) -> tuple[Any, ...]:
    """Returns the arguments that io_binding takes for memory."""
    type = port.element.dtype if port.element.dtype.isbuiltin == 1 else port.element.number
    return (port.name, "cpu", 0, type, list(shape), array.ctypes.data)
