"""Arrays of a request for a network, and the answer from what the network gave."""

from __future__ import annotations

import math
from collections.abc import Sequence
from http import HTTPStatus

import numpy as np

from nnasync._core.execution import Port
from nnasync.hal import Array, Struct
from nnasync.serving.datatypes import DTYPES, from_raw, from_values, of_strings, to_raw
from nnasync.serving.limits import Limits
from nnasync.serving.messages import (
    Bytes,
    InferRequest,
    InputTensor,
    OutputTensor,
    RegionSlice,
    RequestedOutput,
    TensorMetadata,
)
from nnasync.serving.problems import ServingError, invalid, too_large
from nnasync.serving.shared_memory import SharedMemory


class ServedPort(Struct, frozen=True):
    """An input or output of a network as clients see it; -1 stands for an open dimension.

    `plain_bytes` are the bytes of one whose elements in a request are those of an array as they
    are, so that nothing but their number has to be checked; -1 for any other.
    """

    port: Port
    datatype: str
    shape: tuple[int, ...]
    labels: tuple[str, ...] = ()
    plain_bytes: int = -1

    @property
    def name(self) -> str:
        """Returns the name that requests use."""
        return self.port.name

    @property
    def metadata(self) -> TensorMetadata:
        """Returns the description that clients get."""
        return TensorMetadata(self.name, self.datatype, self.shape)


class Signature(Struct, frozen=True):
    """The inputs and outputs of a served model; `max_batch_size` 0 is for one without batches."""

    model: str
    inputs: tuple[ServedPort, ...]
    outputs: tuple[ServedPort, ...]
    max_batch_size: int = 0


def arrays_of(
    request: InferRequest, signature: Signature, limits: Limits, shared: SharedMemory
) -> list[Array]:
    """One array per input of the network; raises ServingError where the request does not fit."""
    if request.body is not None:
        return [_of_body(request, signature)]
    ports = signature.inputs
    given = request.inputs
    if len(given) == 1 == len(ports) and given[0].name == ports[0].port.name:
        return [_array(request, given[0], ports[0], signature, limits, shared)]
    by_name = {tensor.name: tensor for tensor in given}
    known = {port.name for port in ports}
    for name in by_name:
        if name not in known:
            raise invalid(f"unexpected inference input '{name}' for model '{signature.model}'")
    if len(given) != len(ports) or len(by_name) != len(ports):
        raise _wrong_number(request, signature)
    return [_array(request, by_name[port.name], port, signature, limits, shared) for port in ports]


def _array(
    request: InferRequest,
    tensor: InputTensor,
    port: ServedPort,
    signature: Signature,
    limits: Limits,
    shared: SharedMemory,
) -> Array:
    if tensor.datatype != port.datatype:
        raise invalid(
            f"{_of(request)}inference input '{tensor.name}' data-type is '{tensor.datatype}', but "
            f"model '{signature.model}' expects '{port.datatype}'"
        )
    shape, raw = tensor.shape, tensor.raw
    if shape != port.shape or port.plain_bytes < 0:
        _check_shape(request, tensor, port, signature, limits)
    elif raw is not None and len(raw) == port.plain_bytes:
        return np.ndarray(shape, port.port.dtype, raw)
    if raw is not None:
        array = from_raw(tensor.name, tensor.datatype, shape, raw, signature.model)
    elif tensor.region is not None:
        memory = shared.view(tensor.region)
        array = from_raw(tensor.name, tensor.datatype, shape, memory, signature.model)
    else:
        array = from_values(tensor.datatype, shape, tensor.values)
    return array if array.dtype == port.port.dtype else array.astype(port.port.dtype)


def _check_shape(
    request: InferRequest,
    tensor: InputTensor,
    port: ServedPort,
    signature: Signature,
    limits: Limits,
) -> None:
    shape, most = tensor.shape, signature.max_batch_size
    if len(shape) > limits.dimensions:
        raise too_large(f"a tensor has at most {limits.dimensions} dimensions")
    if any(size < 0 for size in shape) or math.prod(shape) > limits.elements:
        raise invalid(
            f"input '{tensor.name}' has shape {_listed(shape)}; sizes are 0 or more, and a tensor "
            f"has at most {limits.elements} elements"
        )
    fits = port.shape == (-1,) * len(port.shape) and not port.port.shape
    if not fits:
        fits = len(shape) == len(port.shape) and all(
            size in (-1, given) for size, given in zip(port.shape, shape, strict=True)
        )
    if not fits:
        raise invalid(
            f"{_of(request)}unexpected shape for input '{tensor.name}' for model "
            f"'{signature.model}'. Expected {_listed(port.shape)}, got {_listed(shape)}."
        )
    if most and shape[0] > most:
        raise invalid(
            f"{_of(request)}inference request batch-size must be <= {most} for '{signature.model}'"
        )


def _of_body(request: InferRequest, signature: Signature) -> Array:
    """Returns the array of a request that is a bare body: its shape follows from its length."""
    body = request.body or b""
    if len(signature.inputs) != 1:
        raise invalid(
            f"raw request must only have 1 input (found {len(signature.inputs)}) to be deduced "
            f"for model '{signature.model}'"
        )
    port = signature.inputs[0]
    if port.datatype == "BYTES":
        raise invalid(f"a raw request cannot be for input '{port.name}' of BYTES")
    item = 2 if port.datatype in ("BF16", "FP16") else port.port.dtype.itemsize
    if signature.max_batch_size:
        shape = (1, *_shape_of_body(port.shape[1:], body, item))
    else:
        shape = _shape_of_body(port.shape, body, item)
    array = from_raw(port.name, port.datatype, shape, body, signature.model)
    return array if array.dtype == port.port.dtype else array.astype(port.port.dtype)


def _shape_of_body(shape: tuple[int, ...], body: Bytes, item: int) -> tuple[int, ...]:
    if shape.count(-1) > 1:
        raise invalid("the shape of a raw request cannot be known: the input has several open "
                      "dimensions")  # fmt: skip
    rest = math.prod(size for size in shape if size != -1) * item
    missing = len(body) // rest if rest else 0
    return tuple(missing if size == -1 else size for size in shape)


def _wrong_number(request: InferRequest, signature: Signature) -> ServingError:
    given = [tensor.name for tensor in request.inputs]
    names = [port.name for port in signature.inputs]
    missing = [name for name in names if name not in given]
    return invalid(
        f"{_of(request)}expected {len(names)} inputs but got {len(given)} inputs for model "
        f"'{signature.model}'. Got input(s) [{_quoted(given)}], but missing required input(s) "
        f"[{_quoted(missing)}]. Please provide all required input(s)."
    )


def _quoted(names: Sequence[str]) -> str:
    return ",".join(f"'{name}'" for name in names)


def _listed(shape: Sequence[int]) -> str:
    return f"[{','.join(map(str, shape))}]"


def _of(request: InferRequest) -> str:
    return f"[request id: {request.id or '<id_unknown>'}] "


def wanted_outputs(
    request: InferRequest, signature: Signature
) -> Sequence[tuple[int, RequestedOutput]]:
    """Returns the outputs that a request asks for, each with its place among the network's outputs.

    A request that names none gets all. Raises ServingError for one that the network has not.
    """
    if not request.outputs:
        return ()
    places = {port.name: place for place, port in enumerate(signature.outputs)}
    found: list[tuple[int, RequestedOutput]] = []
    for output in request.outputs:
        if output.name not in places:
            raise invalid(
                f"unexpected inference output '{output.name}' for model '{signature.model}'"
            )
        if output.classification and output.region is not None:
            raise invalid("shared memory can't be used with classification "
                          f"for output '{output.name}'")  # fmt: skip
        found.append((places[output.name], output))
    if len({place for place, _ in found}) != len(found):
        raise invalid(f"an output is requested twice from model '{signature.model}'")
    return found


def target_of(
    wanted: Sequence[tuple[int, RequestedOutput]], signature: Signature, shared: SharedMemory
) -> Array | None:
    """Returns the shared memory that the network can write its only output to, else None.

    Raises ServingError where there is no such place.
    """
    if len(signature.outputs) != 1 or len(wanted) != 1 or wanted[0][1].region is None:
        return None
    port, region = signature.outputs[0], wanted[0][1].region
    if not 0 <= port.plain_bytes <= region.byte_size:
        return None
    array: Array | None = shared.target(region, port.port.dtype, port.shape)
    return array


def outputs_of(
    wanted: Sequence[tuple[int, RequestedOutput]],
    values: Sequence[Array],
    signature: Signature,
    shared: SharedMemory,
    out: Array | None = None,
) -> tuple[OutputTensor, ...]:
    """Returns the outputs of an answer, after writing those that go to shared memory there.

    The array `out` was written there by the network itself.
    """
    if not wanted:
        return tuple(map(_whole, signature.outputs, values))
    found = []
    for place, output in wanted:
        port, array = signature.outputs[place], _typed(signature.outputs[place], values[place])
        if output.classification:
            found.append(_classes(port, array, output.classification, signature.max_batch_size))
        elif output.region is not None:
            if array is not out:
                _write(port, array, output.region, shared)
            tensor = OutputTensor(port.name, port.datatype, array.shape, None, output.region)
            found.append(tensor)
        else:
            found.append(_whole(port, array))
    return tuple(found)


def _whole(port: ServedPort, array: Array) -> OutputTensor:
    return OutputTensor(port.port.name, port.datatype, array.shape, _typed(port, array))


def plain_bytes_of(port: Port, datatype: str, shape: tuple[int, ...]) -> int:
    """Returns `ServedPort.plain_bytes`: the size of inputs that are checked by their size alone."""
    is_plain = datatype not in ("BOOL", "BYTES", "BF16") and DTYPES[datatype] == port.dtype
    return math.prod(shape) * port.dtype.itemsize if is_plain and min(shape, default=1) > 0 else -1


def _typed(port: ServedPort, array: Array) -> Array:
    if port.datatype != "FP16" or array.dtype.itemsize == 2:
        return array
    with np.errstate(over="ignore"):
        return array.astype(np.float16)


def _write(port: ServedPort, array: Array, region: RegionSlice, shared: SharedMemory) -> None:
    raw = to_raw(array, port.datatype)
    if len(raw) > region.byte_size:
        raise ServingError(
            HTTPStatus.INTERNAL_SERVER_ERROR,
            f"shared memory size specified with the request for output '{port.name}' "
            f"({region.byte_size} bytes) should be at least {len(raw)} bytes to hold the results",
        )
    shared.write(region, raw)


def _classes(port: ServedPort, array: Array, count: int, max_batch_size: int) -> OutputTensor:
    """Returns the highest values as texts "value:place" or "value:place:label".

    A batch gets a row for each of its inferences.
    """
    if array.dtype.kind not in "fiub" or array.size == 0:
        raise invalid(f"class result not available for output '{port.name}'")
    rows = array.reshape(array.shape[0] if max_batch_size else 1, -1)
    count = min(count, rows.shape[1])
    texts = []
    for row in rows:
        # Stable, so that of equal values the first place comes first; NaN sorts behind all.
        places = np.argsort(-row.astype(np.float64), kind="stable")[:count]
        for place in places.tolist():
            label = f":{port.labels[place]}" if place < len(port.labels) else ""
            value = f"{float(row[place]):f}" if row.dtype.kind == "f" else str(int(row[place]))
            texts.append(f"{value}:{place}{label}".encode())
    shape = (len(rows), count) if max_batch_size else (count,)
    return OutputTensor(port.name, "BYTES", shape, of_strings(texts, shape))
