"""Inputs and outputs of a network: their descriptions, and checked copies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from nnasync._core.deferred import deferred
from nnasync._core.notebook import html_table
from nnasync._core.words import counted
from nnasync.errors import InvalidArgument
from nnasync.hal import Array, Model, Operand, Shape, dtype_of, is_fully_specified

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from nnasync import extensions

    R = TypeVar("R", default=Array | Any)
else:
    from typing import TypeVar

    R = TypeVar("R")
    extensions = deferred("nnasync.extensions")


"""What a call gives, where the application says it: `net: nn.Net[Array]`; checked by nobody."""

_BEYOND = np.float32(2**20)
"""More steps than any type has, in either direction; their sums are exact in float32."""


class Port(msgspec.Struct, frozen=True):
    """One input or output; `scale` and `zero_point` are 0 where it is not quantized.

    A quantized value q stands for scale * (q - zero_point).
    """

    name: str
    shape: Shape
    dtype: np.dtype[Any]
    scale: float
    zero_point: int
    position: int
    """Place among all inputs or outputs of the model, states included."""
    is_settled: bool = True
    """Whether rank and all dimensions are known; a 0 in `shape` is one that is not."""

    def __str__(self) -> str:
        """Say its name, type and shape; a dimension that is not known is a question mark."""
        shape = ", ".join(str(size or "?") for size in self.shape)
        return f"{self.name} {self.dtype}[{shape if self.shape or self.is_settled else '...'}]"

    def quantize(self, values: Any) -> Array:
        """Quantizes real values for this port: round(values / scale) + zero_point, within its type.

        Halves are rounded away from zero and NaN becomes the highest value, as the operation
        QUANTIZE does it. A port of floats has them as they are. Raises InvalidArgument for others.
        """
        real = np.asarray(values, np.float32)
        if self._is_real():
            return real.astype(self.dtype)
        limits = np.iinfo(self.dtype)
        with np.errstate(over="ignore", invalid="ignore"):
            steps = np.clip(real / np.float32(self.scale), -_BEYOND, _BEYOND)
            whole = np.trunc(steps)
            whole += np.trunc(2 * (steps - whole))
            clipped = np.fmin(whole + np.float32(self.zero_point), np.float32(limits.max))
        quantized: Array = np.maximum(clipped, np.float32(limits.min)).astype(self.dtype)
        return quantized

    def dequantize(self, values: Any) -> Array:
        """Returns the float32 values that values of this port stand for; see `quantize`."""
        real = np.asarray(values).astype(np.float32)
        if self._is_real():
            return real
        real -= np.float32(self.zero_point)
        real *= np.float32(self.scale)
        return real

    @property
    def stands_for_real(self) -> bool:
        """Returns whether its values are or stand for real numbers, unlike those of labels."""
        return self.scale != 0 or self.dtype.kind == "f"

    def _is_real(self) -> bool:
        """Returns whether its values are real; raises InvalidArgument where they stand for none."""
        if not self.stands_for_real:
            raise InvalidArgument(f"{self.name!r} has {self.dtype}, which is not quantized")
        return not self.scale

    @property
    def zero(self) -> Any:
        """Returns the element that stands for zero: bytes where the type is a vendor's."""
        return b"" if self.dtype.type is np.void else self.zero_point


class Ports(msgspec.Struct, frozen=True):
    """The inputs and outputs of a model, apart from the states that a stream carries."""

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    state_inputs: tuple[Port, ...]
    state_outputs: tuple[Port, ...]

    def __str__(self) -> str:
        sides = (", ".join(map(str, ports)) for ports in (self.inputs, self.outputs))
        states = f", {counted(len(self.state_inputs), 'state')}" if self.state_inputs else ""
        return " -> ".join(sides) + states

    def table(self, title: str) -> str:
        """Returns inputs, outputs and states as an HTML table for notebooks."""
        ways = (("input", self.inputs), ("output", self.outputs), ("state", self.state_inputs))
        rows = [(way, port) for way, ports in ways for port in ports]
        return html_table(("", "name, type, shape"), rows, title)

    @property
    def are_settled(self) -> bool:
        """Returns whether all shapes are known before a run."""
        ports = self.inputs + self.outputs + self.state_inputs + self.state_outputs
        return all(port.is_settled for port in ports)


def as_given(model: Model) -> Model:
    """Returns a compiled model without the sizes of extension types, as it can be stored."""
    return extensions.plain(model) if model.extension_name_to_prefix else model


def ports_of(model: Model) -> Ports:
    """Returns the ports of a model; state inputs and outputs are in the order of `model.state`."""
    operands = model.main.operands
    inputs = [_port(operands[i], n, "input") for n, i in enumerate(model.main.input_indexes)]
    outputs = [_port(operands[i], n, "output") for n, i in enumerate(model.main.output_indexes)]
    state_in = {pair.input for pair in model.state}
    state_out = {pair.output for pair in model.state}
    return Ports(
        inputs=tuple(port for port in inputs if port.position not in state_in),
        outputs=tuple(port for port in outputs if port.position not in state_out),
        state_inputs=tuple(inputs[pair.input] for pair in model.state),
        state_outputs=tuple(outputs[pair.output] for pair in model.state),
    )


def _port(operand: Operand, position: int, kind: str) -> Port:
    return Port(
        name=operand.name or f"{kind}{position}",
        shape=operand.dimensions,
        dtype=dtype_of(operand.type),
        scale=operand.scale,
        zero_point=operand.zero_point,
        position=position,
        is_settled=is_fully_specified(operand.type, operand.dimensions),
    )


def chosen(ports: Sequence[Port], which: str | int, kind: str) -> Port:
    """Returns a port by name or number; raises InvalidArgument and lists the names there are."""
    for number, port in enumerate(ports):
        if which in (number, port.name):
            return port
    names = ", ".join(port.name for port in ports)
    raise InvalidArgument(f"the network has no {kind} {which!r}; there are: {names}")


def in_order(ports: Sequence[Port], arguments: Sequence[Any], what: str) -> Sequence[Any]:
    """Returns one value per port, from positional values or one mapping by name."""
    if len(arguments) == 1:
        first = arguments[0]
        # The class is asked last: that is slow where it has to say no.
        if hasattr(first, "keys") and isinstance(first, Mapping):
            return _by_name(ports, first, what)
    if len(arguments) != len(ports):
        names = ", ".join(port.name for port in ports)
        raise InvalidArgument(
            f"{len(arguments)} {what}s given, the network has {len(ports)}: {names}"
        )
    return arguments


def _by_name(ports: Sequence[Port], values: Mapping[str, Any], what: str) -> Sequence[Any]:
    names = [port.name for port in ports]
    given = set(map(str, values))
    missing = [name for name in names if name not in given]
    unknown = sorted(given - set(names))
    if missing or unknown:
        wrong = [
            f"{kind} {', '.join(each)}"
            for kind, each in (("missing", missing), ("unknown", unknown))
            if each
        ]
        raise InvalidArgument(
            f"{what}s by name: {'; '.join(wrong)}; the network has {', '.join(names)}"
        )
    return [values[name] for name in names]


def quantized_values(ports: Sequence[Port], arguments: Sequence[Any]) -> Any:
    """Quantizes real values for these inputs: one, or a tuple of several; see `Net.quantize`."""
    values = in_order(ports, arguments, "input")
    made = tuple(
        port.quantize(value) if value is not None and port.stands_for_real else value
        for port, value in zip(ports, values, strict=True)
    )
    return made if len(made) > 1 else made[0]


def real_values(ports: Sequence[Port], result: Any) -> Any:
    """Returns the real values that the result of a call stands for; see `Net.dequantize`."""
    is_one = len(ports) == 1 or not isinstance(result, (tuple, list))
    values = in_order(ports, (result,) if is_one else result, "output")
    made = tuple(
        port.dequantize(value) if port.stands_for_real else value
        for port, value in zip(ports, values, strict=True)
    )
    return made if len(made) > 1 else made[0]


def copy_in(target: Array, value: Any, port: Port) -> None:
    """Copies a value into the memory of an input; raises InvalidArgument if it does not fit."""
    if value.__class__ is not np.ndarray or value.dtype is not port.dtype:
        value = as_array(value, port)
    if value.shape != port.shape and not is_number(value, port):
        raise InvalidArgument(
            f"input {port.name!r} has shape {list(value.shape)}, should be {list(port.shape)}"
            f"{_to_mend(value, port)}"
        )
    target[...] = value


def is_number(array: Array, port: Port) -> bool:
    """Returns whether an array without dimensions is the one number that a port takes."""
    return array.shape == () and port.shape == (1,)


def _to_mend(value: Array, port: Port) -> str:
    """Returns advice on a wrong shape: several examples, none, or channels at the other end."""
    if port.shape[:1] == (1,) and value.shape[1:] == port.shape[1:]:
        return "; several examples are for nnasync.batching.one_by_one(net, ...)"
    if (1, *value.shape) == port.shape:
        return "; x[np.newaxis] makes one example of it"
    if len(port.shape) == 4 and value.ndim == 4:
        for there, here, is_last in ((1, -1, "last"), (-1, 1, "first")):
            if np.moveaxis(value, there, here).shape == port.shape:
                return f"; np.moveaxis(x, {there}, {here}) puts the channels {is_last}"
    return ""


def as_array(value: Any, port: Port) -> Array:
    """Converts anything array-like to an array of the port's dtype.

    An array of another kind, or of a wider one, is refused rather than converted: it hints at a
    missing step (scaling, quantization) of the caller. Integers are taken in any width that holds
    them, but for those that stand for real numbers.
    """
    if value.__class__ is np.ndarray and value.dtype == port.dtype:
        return value
    if value is None:
        raise InvalidArgument(f"input {port.name!r} is None; only a plain call can omit an input")
    try:
        if hasattr(value, "__dlpack__") and not hasattr(value, "__array__"):
            array = np.from_dlpack(value)
        else:
            # To numpy, bytes are text; their buffer is an array.
            array = np.asarray(memoryview(value) if isinstance(value, bytes) else value)
    except Exception as error:
        raise InvalidArgument(f"input {port.name!r} is not an array: {error}") from error
    if array.dtype == port.dtype:
        return array
    if port.dtype.kind == "V":
        return _as_bytes(array, port)
    if not port.scale and _keeps(port.dtype, array):
        return array.astype(port.dtype)
    if isinstance(value, (int, float, bool, list, tuple)) and _holds(port.dtype, array):
        return array.astype(port.dtype)
    raise InvalidArgument(
        f"input {port.name!r} has dtype {array.dtype}, should be {port.dtype}{_advice(array, port)}"
    )


def _keeps(dtype: np.dtype[Any], array: Array) -> bool:
    """Returns whether `dtype` can hold all values of an array of integers."""
    if dtype.kind not in "iu" or array.dtype.kind not in "iu":
        return False
    return np.can_cast(array.dtype, dtype) or _holds(dtype, array)


def _advice(array: Array, port: Port) -> str:
    """Returns advice on how to convert an array to the port's dtype.

    A cast alone is rarely right.
    """
    if array.dtype.kind not in "fiub":
        return ": it is no array of real numbers"
    if port.scale:
        formula = f"round(x / {port.scale:.9g})"
        formula += f" {'-' if port.zero_point < 0 else '+'} {abs(port.zero_point)}"
        return (
            f", quantized: real values x as {formula} within its range, which Port.quantize(x) "
            "computes (net.inputs has the ports); a cast alone would give other values"
        )
    if port.dtype.kind == "f" and array.dtype.kind in "iub":
        return (
            f"; .astype(np.{port.dtype}) converts it, to numbers in the range that the network was "
            "trained with (a picture's bytes are often divided by 255)"
        )
    if port.dtype.kind == "f":
        return f"; .astype(np.{port.dtype}) converts it"
    return f"; .astype(np.{port.dtype}) converts it, if it keeps all of your values"


def _as_bytes(array: Array, port: Port) -> Array:
    """Returns an array as elements of a vendor's type, of which only the size is known."""
    if array.dtype.itemsize == port.dtype.itemsize and array.dtype.kind != "O":
        return array.view(port.dtype)
    raise InvalidArgument(
        f"input {port.name!r} has elements of {array.dtype.itemsize} bytes ({array.dtype}), should "
        f"have {port.dtype.itemsize}: its type is a vendor's; view the bytes as {port.dtype.str!r}"
    )


def _holds(dtype: np.dtype[Any], array: Array) -> bool:
    """Returns whether `dtype` can hold plain Python numbers without loss of range."""
    if array.dtype.kind == "f":
        return dtype.kind == "f"
    if array.dtype.kind not in "iub" or dtype.kind == "b":
        return array.dtype.kind == dtype.kind
    if dtype.kind == "f" or array.size == 0:
        return True
    limits = np.iinfo(dtype)
    return bool(limits.min <= array.min() and array.max() <= limits.max)


def out_in_order(ports: Sequence[Port], out: Any) -> Sequence[Any]:
    """Returns one value per output for `out=` (one, several, or some by name); None if none."""
    if out is None:
        return [None] * len(ports)
    outs: Sequence[Any]
    if isinstance(out, (tuple, list)):
        outs = out
    elif hasattr(out, "keys") and isinstance(out, Mapping):
        names = [port.name for port in ports]
        unknown = sorted(set(map(str, out)) - set(names))
        if unknown:
            raise InvalidArgument(
                f"out= names {', '.join(unknown)}; the network gives {', '.join(names)}"
            )
        return [out.get(name) for name in names]
    else:
        outs = (out,)
    if len(outs) != len(ports):
        raise InvalidArgument(f"out= has {len(outs)} arrays, the network gives {len(ports)}")
    return outs


def check_out(ports: Sequence[Port], out: Any) -> Sequence[Any] | None:
    """Returns `out=` as one array or None per output; None if all outputs are new arrays."""
    if out is None:
        return None
    outs = out_in_order(ports, out)
    for array, port in zip(outs, ports, strict=True):
        if array is not None:
            check_target(array, port)
    return outs


def check_target(array: Any, port: Port) -> None:
    """Raises InvalidArgument for an array that cannot be written as an output."""
    if (
        not isinstance(array, np.ndarray)
        or array.shape != port.shape
        or array.dtype != port.dtype
        or not array.flags.writeable
    ):
        raise InvalidArgument(
            f"out for {port.name!r} must be a writable {port.dtype} array of shape "
            f"{list(port.shape)}"
        )
